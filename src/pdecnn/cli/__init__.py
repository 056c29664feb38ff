"""The command line: arguments in, one call into a room below, results out."""

from pdecnn.cli.application import app as app
from pdecnn.cli.application import main as main
