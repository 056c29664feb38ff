"""`pdecnn bench`: speed and memory, beside plain torch and the ceilings of the machine."""

from pdecnn.experiments.bench.suite import FORMAT_VERSION as FORMAT_VERSION
from pdecnn.experiments.bench.suite import PARTS as PARTS
from pdecnn.experiments.bench.suite import run_bench as run_bench
