"""What a GPU captures of messages by nccl, in a group of one process; as JSON. Argument: FILE."""

import json
import logging
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import HashStore

from pdecnn.errors import RankError
from pdecnn.learning.distributed import Ranks
from tests.blocks import relative_error
from tests.unit.learning.test_capture import gpu_trainer
from tests.unit.learning.trainings import run, snapshot

SETTINGS = {"epochs": 1, "precision": "float32"}


class FirstOfTwo(Ranks):
    """It takes half of each batch and hears nobody: the group holds this process alone."""

    def __init__(self):
        super().__init__(0, 2, dist.new_group(backend="gloo"))

    def _gather(self, text):
        return [text]


def notes_of(function):
    """What a function returns, and what was logged meanwhile."""
    notes, handler = [], logging.Handler()
    handler.emit = lambda record: notes.append(record.getMessage())
    logger = logging.getLogger("pdecnn")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        return function(), notes
    finally:
        logger.removeHandler(handler)


def trained(sum_=None, **settings):
    """Everything after an epoch, and whether it went by a graph."""
    trainer = gpu_trainer(**SETTINGS | settings)
    if sum_ is not None:
        trainer._step.sum_ = sum_
    (report,) = run(trainer)
    state = {key: tensor.cpu() for key, tensor in snapshot(trainer).items()}
    captured = trainer.captured
    trainer.release_graphs()
    return state, captured, report, list(trainer._step.kernel_parts)


def one_message(ranks, **settings):
    """A step that sends its one message, beside the step that sends none."""
    sent = torch.zeros((), device="cuda")

    def sum_(tensor):
        ranks.sum_(tensor)
        sent.add_(1)  # as often as what is captured with it

    (several, captured, _, parts), notes = notes_of(lambda: trained(sum_, **settings))
    alone = trained(**settings)[0]
    sums = relative_error(several.pop("sums"), alone.pop("sums"))
    same = [torch.equal(several[key], alone[key]) for key in alone]
    found = {"captured": captured, "notes": notes, "parts": parts, "sent": int(sent)}
    return found | {"same bits": all(same), "sums": float(sums)}


def whole(ranks, **settings):
    """A training of a rank, batch norms included: captured, again, and operator by operator."""
    found, notes = notes_of(
        lambda: [
            trained(ranks=ranks, capture=capture, **settings) for capture in (True, True, False)
        ]
    )
    (state, captured, report, _), (again, *_), (_, eager, expected, _) = found
    return {
        "captured": [captured, eager],
        "notes": notes,
        "repeats": all(torch.equal(state[key], again[key]) for key in state),
        "losses": [report.data_loss, expected.data_loss],
    }


def refused(ranks):
    """A message that no graph can hold, since it waits for the device."""

    def sum_(tensor):
        ranks.sum_(tensor)
        float(tensor[0])

    (_, captured, report, _), notes = notes_of(lambda: trained(sum_))
    return {"captured": captured, "notes": notes, "loss": report.data_loss}


def patience(ranks):
    """What is said of a step that does not end in time."""
    torch.cuda._sleep(4_000_000_000)  # cycles: two seconds or so
    try:
        ranks.wait_for(torch.device("cuda"), seconds=0.2)
    except RankError as error:
        return str(error)
    finally:
        torch.cuda.synchronize()
    return None


def main():
    device = torch.device("cuda", 0)
    dist.init_process_group("nccl", store=HashStore(), rank=0, world_size=1, device_id=device)
    ranks = FirstOfTwo()
    result = {
        "one message": [one_message(ranks, accumulation=number) for number in (1, 2)],
        "whole": whole(ranks),
        "reestimated": whole(ranks, batch_norm_statistics="reestimated", average_decay=0.9),
        "refused": refused(ranks),
        "patience": patience(ranks),
    }
    dist.destroy_process_group()
    Path(sys.argv[1]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
