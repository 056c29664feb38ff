"""The line that says where the numbers of a page were measured."""

from benchmarks.provenance import measured_on
from tests import bench_results, paper_results

DATED = {**paper_results.ENVIRONMENT, "date": "2026-11-20"}


def test_without_a_gpu_the_processor_is_named():
    assert measured_on(DATED) == (
        "2026-11-20, commit abc, torch 2.13.0, Python 3.12.1, A processor with 4 cores"
    )


def test_a_gpu_stands_for_the_machine():
    assert measured_on(bench_results.ENVIRONMENT).endswith(", Python 3.12.3, A graphics card")
