"""kill -9 at random points, then --resume: the bits of the undisturbed run (promise 1)."""

import random
import time

import pytest

import pdecnn
from tests.runs import SOPHISTICATED, command, fingerprint, finish, small_options, start
from tests.runs import small_config as config_of

# Long enough for a random point to be in the middle of something.
LONGER = {"data__fraction": 0.5, "training__epochs": 5}
# Other optimisers and augmentations go on in tests/unit/learning/test_resumption.py.
NEWER = {
    "network__normalization": "batch",
    "training__batch_size": 24,
    "training__learning_rates": [4e-3, 2e-3, 1e-3],
    "training__optimizer": "muon",
    "data__padding": 0.125,
    "data__padding_mode": "reflect",
    "training__mixup": 0.4,
    "training__cutmix": 1.0,
    "training__label_smoothing": 0.1,
    "training__batch_norm_statistics": "reestimated",
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Undisturbed runs by their settings, each made once."""
    made = {}

    def run_of(settings):
        key = str(settings)
        if key not in made:
            folder = tmp_path_factory.mktemp("whole") / "run"
            made[key] = fingerprint(pdecnn.train(config_of(**settings), output=folder).folder)
        return made[key]

    return run_of


def num_epochs(folder):
    try:
        return (folder / "metrics.jsonl").read_text().count("\n")
    except FileNotFoundError:
        return 0


def kill_at_random_point(folder, options, randomness):
    """Start or resume the run and kill it a random time after a random epoch; whether it was."""
    last = LONGER["training__epochs"] - 1
    epoch = randomness.randint(min(num_epochs(folder), last), last)
    process = start("train", "--quiet", "--resume", "--output", folder, *options)
    while process.poll() is None and not ((folder / "config.json").exists()):
        time.sleep(0.005)
    while process.poll() is None and num_epochs(folder) < epoch:
        time.sleep(0.002)
    time.sleep(randomness.uniform(0, 0.4))
    process.kill()
    done = finish(process)
    assert done.code in (-9, 0), done.stderr
    return done.code == -9


def kill_often(folder, settings, seed, num_kills):
    randomness, options = random.Random(seed), small_options(**settings)
    killed = [kill_at_random_point(folder, options, randomness) for _ in range(num_kills)]
    assert killed[0]


def test_promise_1_killed_by_the_system_and_resumed(whole, tmp_path):
    kill_often(tmp_path / "run", LONGER, seed=1, num_kills=1)
    run = pdecnn.train(config_of(**LONGER), output=tmp_path / "run", resume=True)
    assert fingerprint(run.folder) == whole(LONGER)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "seed"),
    [(LONGER, 2), (LONGER | SOPHISTICATED, 5), (LONGER | NEWER, 8)],
)
def test_promise_1_killed_at_three_random_points(whole, tmp_path, settings, seed):
    kill_often(tmp_path / "run", settings, seed=seed, num_kills=3)
    # Nothing needs to be said again.
    done = command("train", "--quiet", "--resume", "--output", tmp_path / "run")
    assert done.code == 0, done.stderr
    assert fingerprint(tmp_path / "run") == whole(settings)
