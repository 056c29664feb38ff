"""What several ranks compute beside one; figures as JSON. Arguments: FOLDER [CASE...].

Without a case: what they agree on.
"""

import json
import os
import sys
from contextlib import suppress
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from time import sleep
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from pdecnn.errors import ConfigError, DivergedError, RankError, TooLargeError
from pdecnn.learning import capture as capture_module
from pdecnn.learning import evaluate_network
from pdecnn.learning.distributed import ALONE, Ranks, joined_ranks
from tests.unit.learning.test_levels import LEVELS, first_level_network
from tests.unit.learning.trainings import (
    MODES,
    Poisoned,
    Rehearsed,
    digits,
    make_network,
    make_trainer,
    on_disk,
    rehearsed_graphs,
    run,
    scatter_weights_,
    snapshot,
)

NUM_STEPS = 12
# Layers of two channels would not do: training them is chaotic, so that a change of 1e-15 is one
# of 0.1 after twenty steps, with one process too.
CHANNELS = (8, 16, 16)
SETTINGS = {"epochs": 7, "batch_size": 20, "learning_rates": (0.05,), "phases": (1,)}
CASES = {
    **{f"{dynamics} {mode}": (dynamics, {"backprop": mode}, {}) for dynamics, mode in MODES},
    "batch norm in blocks": ("parabolic", {"normalization": "batch"}, {}),
    "batch norm recomputed": (
        "parabolic",
        {"normalization": "batch", "backprop": "checkpointed"},
        {},
    ),
    "batch norm computed backwards": (
        "hamiltonian",
        {"normalization": "batch", "backprop": "reversible"},
        {},
    ),
    "everything": (
        "hamiltonian",
        {"backprop": "reversible"},
        {
            "accumulation": 5,
            "average_decay": 0.9,
            "clip_norm": 0.5,
            "label_smoothing": 0.1,
            "class_weights": tuple(1 + k / 10 for k in range(10)),
        },
    ),
    "adamw": ("parabolic", {}, {"optimizer": "adamw", "learning_rates": (3e-3,)}),
    "muon": ("hamiltonian", {}, {"optimizer": "muon", "learning_rates": (3e-3,)}),
    "frozen opening": ("parabolic", {}, {"freeze": ("opening",)}),
}


def trained(dynamics, overrides, settings, ranks, *, disk=False, augmentation=None, gated=False):
    """A training after twelve steps in float64; `gated` as on a GPU."""
    network = make_network(dynamics, dtype=torch.float64, channels=CHANNELS, **overrides)
    scatter_weights_(network, size=0.1)
    sets = tuple(map(on_disk, digits())) if disk else digits()
    trainer = make_trainer(
        network, ranks=ranks, sets=sets, augmentation=augmentation, **(SETTINGS | settings)
    )
    trainer._step.gated = gated
    for step in range(NUM_STEPS):
        if step % trainer.steps_per_epoch == 0:
            trainer.progress.epoch, trainer.progress.batch = step // trainer.steps_per_epoch, 0
            trainer.begin_epoch()
        trainer.step()
        trainer.synchronize()
    return trainer


def compare(name, ranks):
    """A hash of all that is trained and an evaluation; on rank 0 beside those of one process."""
    dynamics, overrides, settings = CASES[name]
    several = trained(dynamics, overrides, settings, ranks, disk=name == "everything")
    state = snapshot(several)
    found = {
        "sha256": digest(state),
        "evaluation": evaluation(several.evaluated, ranks),
    }
    if ranks.is_first:
        one = trained(dynamics, overrides, settings, ALONE)
        found["difference"] = difference(state, snapshot(one))
        found["evaluation alone"] = evaluation(several.evaluated, ALONE)
    return found


def digest(state):
    return sha256(b"".join(tensor.numpy().tobytes() for tensor in state.values())).hexdigest()


def difference(found, expected):
    assert found.keys() == expected.keys()
    return max(float((found[k].double() - expected[k].double()).abs().max()) for k in expected)


def evaluated(network, ranks):
    images = digits()[1]
    score = ranks.scoring(network, images.images, batch_size=7)
    return ranks.agreed(evaluate_network(network, images, batch_size=7, score=score))


def evaluation(network, ranks):
    found = evaluated(network, ranks)
    return [found.loss, found.to_dict(), found.confusion]


def rounded_differently(ranks):
    """The loss where each rank's processor would round it in a way of its own."""
    network, exact = make_network(), functional.cross_entropy

    def rounded(*arguments):
        return exact(*arguments) * (1 + 1e-15 * ranks.rank)

    functional.cross_entropy = rounded
    try:
        return evaluated(network, ranks).loss
    finally:
        functional.cross_entropy = exact


def skip_one(ranks):
    """An image of one rank is not a number: all skip the step and count it."""
    several, one = (
        trained("parabolic", {}, {"max_nonfinite_steps": 1}, who, augmentation=Poisoned(index=3))
        for who in (ranks, ALONE)
    )
    counts = [trainer.progress.nonfinite_steps for trainer in (several, one)]
    return [*counts, difference(snapshot(several), snapshot(one))]


def messages(ranks):
    """How many numbers each message of a step holds, and those of its gradient."""
    trainer = make_trainer(make_network("parabolic"), ranks=ranks, accumulation=2)
    trainer.begin_epoch()
    with patch.object(dist, "all_reduce", wraps=dist.all_reduce) as sent:
        trainer.step()
    sizes = [call.args[0].numel() for call in sent.call_args_list]
    norms = sum(isinstance(part, _BatchNorm) for part in trainer.network.modules())
    return {"sizes": sizes, "norms": norms, "weights": trainer.network.num_weights}


def skipping(ranks):
    """A training as on a GPU, with a step that is thrown away."""
    settings = {"max_nonfinite_steps": 1, "accumulation": 2, "average_decay": 0.9}
    poisoned = Poisoned(index=3)
    return trained("parabolic", {}, settings, ranks, augmentation=poisoned, gated=True)


def by_graphs(ranks, num_failures):
    """The same by graphs, of which rank 1 fails to make so many."""
    notes, attempts = [], iter(range(10))

    class Graph(Rehearsed):
        def __init__(self, function, state):
            super().__init__(function, state)
            if ranks.rank == 1 and next(attempts) < num_failures:
                raise RuntimeError("no graph")

    with rehearsed_graphs(Graph), patch.object(capture_module.log, "info", notes.append):
        trainer = skipping(ranks)
    return {
        "captured": trainer.captured,
        "notes": notes,
        "skipped": trainer.progress.nonfinite_steps,
        "sha256": digest(snapshot(trainer)),
    }


def without_graphs(ranks):
    states = [snapshot(skipping(who)) for who in (ranks, ALONE)]
    return {"sha256": digest(states[0]), "difference": difference(*states)}


def in_levels(ranks):
    """From 1 to 4 steps, every block switched by the drift guard; then a rank that comes anew."""
    settings = {**LEVELS["time"], "reversal_tolerance": 1e-300, "learning_rates": (0.05,)}
    settings |= {"phases": (1,)}

    def fresh(who):
        network = first_level_network(settings, backprop="reversible", channels=CHANNELS)
        return make_trainer(network.double(), ranks=who, **settings)

    several, one = fresh(ranks), fresh(ALONE)
    reports = [[report._asdict() for report in run(trainer)] for trainer in (several, one)]
    if not ranks.is_first:
        several = fresh(ranks)
    several.copy_from_first()
    return {
        "reports": reports,
        "difference": difference(snapshot(several), snapshot(one)),
        "modes": [block.backprop for block in several.network.blocks],
    }


def reestimated(ranks):
    """Statistics of the validated weights, beside those of one process."""
    settings = {**SETTINGS, "epochs": 2, "batch_norm_statistics": "reestimated"}
    settings |= {"accumulation": 2, "average_decay": 0.9}

    def fresh(who):
        network = make_network("parabolic", dtype=torch.float64, channels=CHANNELS)
        return make_trainer(network, ranks=who, **settings)

    several, one = fresh(ranks), fresh(ALONE)
    reports = [[report._asdict() for report in run(trainer)] for trainer in (several, one)]
    states = [trainer.evaluated.state_dict() for trainer in (several, one)]
    return {"reports": reports, "difference": difference(*states)}


def message(function, *kinds):
    try:
        function()
    except kinds as error:
        return [type(error).__name__, str(error), getattr(error, "told", None)]
    return None


def fail(text):
    raise ConfigError(text)


def agreements(ranks):
    mine = ranks.rank
    tensors = [torch.full((2,), float(mine)), torch.tensor(mine)]
    ranks.copy_from_first_(tensors)
    poisoned = Poisoned(index=3)
    return {
        "first": ranks.first(lambda: {"rank": mine, "text": "Gauß"}),
        "largest": ranks.largest(mine * 7),
        "copied": [tensor.tolist() for tensor in tensors],
        "first fails": message(
            lambda: ranks.first(lambda: fail("no such folder")), ConfigError, RankError
        ),
        "one fails": message(
            lambda: ranks.together(lambda: fail("bad data") if mine == 1 else None),
            ConfigError,
            RankError,
        ),
        "both fail": message(lambda: ranks.together(lambda: fail("bad")), ConfigError, RankError),
        "together": ranks.together(lambda: mine),
        "diverged": message(
            lambda: trained("parabolic", {}, {}, ranks, augmentation=poisoned), DivergedError
        ),
        "odd batch": message(lambda: make_trainer(ranks=ranks, batch_size=15), ConfigError),
    }


def silence(ranks):
    """Rank 1 says nothing for a while: the other ends with an error in the time it is given."""
    group = dist.new_group()
    # Only now: on a busy machine meeting takes longer.
    distributed_c10d._set_pg_timeout(timedelta(seconds=2), group)
    impatient = Ranks(ranks.rank, ranks.size, group)
    if ranks.is_first:
        return message(lambda: impatient.largest(0), RankError)
    sleep(4)
    return None


def exhausted():
    """What ends each rank where rank 1 alone runs out of memory while a step is captured."""
    torch.set_num_threads(1)
    folder, place = Path(sys.argv[1]), sys.argv[2]

    def too_little(ranks, here):
        if ranks.rank == 1 and here == place:
            raise torch.OutOfMemoryError("CUDA out of memory")

    def train():
        with joined_ranks(torch.device("cpu")) as ranks:

            class Graph(Rehearsed):
                def __init__(self, function, state):
                    too_little(ranks, "before a message")
                    super().__init__(function, state)
                    too_little(ranks, "after all messages")

            with rehearsed_graphs(Graph):
                skipping(ranks)

    found = message(train, RankError, TooLargeError)
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(found))


def gloo_threads():
    """Those of this process, by the names that Linux has for them."""
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return [name for name in names if "gloo" in name]


def main():
    torch.set_num_threads(1)
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    with joined_ranks(torch.device("cpu")) as ranks:
        result = {name: compare(name, ranks) for name in names} or {
            "skipped": skip_one(ranks),
            "in levels": in_levels(ranks),
            "messages": messages(ranks),
            "by graphs": [by_graphs(ranks, number) for number in range(3)],
            "without graphs": without_graphs(ranks),
            "reestimated": reestimated(ranks),
            "rounded differently": rounded_differently(ranks),
            "agreements": agreements(ranks),
            "silence": silence(ranks),
        }
        result["threads"] = {"within": gloo_threads()}
    result["threads"]["after"] = gloo_threads()
    with suppress(ConfigError, RankError), joined_ranks(torch.device("cpu")) as ranks:
        ranks.together(lambda: fail("both"))
    result["threads"]["after an error"] = gloo_threads()
    (folder / f"{ranks.rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
