"""Made-up runs of all tables and figures: tests read the runs, and may draw beside them."""

import pytest

from pdecnn.runs import paper
from pdecnn.runs.paper import make_plan
from tests.paper_results import make_results


@pytest.fixture(scope="session")
def plan():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paper, "find_dataset", lambda name, folder: folder / name)
        return make_plan("all", data=paper.Path("data"), num_seeds=2)


@pytest.fixture(scope="session")
def output(plan, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reproduction")
    make_results(plan, folder / "runs")
    return folder


@pytest.fixture(scope="session")
def gaps(plan, tmp_path_factory):
    """All but one seed of an experiment, and all seeds of two others."""
    folder = tmp_path_factory.mktemp("gaps")
    without = {"resnet_cifar100-seed1"}
    for name in ("hamiltonian_stl10-40percent", "parabolic_stl10"):
        without |= {f"{name}-seed0", f"{name}-seed1"}
    make_results(plan, folder / "runs", without)
    return folder
