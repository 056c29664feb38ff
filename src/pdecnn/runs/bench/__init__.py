"""`pdecnn bench`: speed and memory, beside plain torch and the ceilings of the machine."""

from pdecnn.runs.bench.suite import FORMAT_VERSION as FORMAT_VERSION
from pdecnn.runs.bench.suite import PARTS as PARTS
from pdecnn.runs.bench.suite import run_bench as run_bench
