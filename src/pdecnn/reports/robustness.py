"""What `pdecnn attack` shows in the terminal: accuracies under attack and on worse images."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pdecnn.reports.terminal import make_console, number_table, print_files
from pdecnn.runs.diagnosis import AttackReport

_NORMS = {"linf": "each pixel by at most epsilon", "l2": "the image by at most epsilon (L2)"}


def print_attack(
    found: AttackReport, files: Sequence[Path], console: Console | None = None
) -> None:
    """The tables of accuracies, and where the files are."""
    console = console or make_console()
    console.print(
        f"{found.run}: {found.recipe}, {found.weights} weights, {found.clean_accuracy:.2%} of "
        f"{found.num_images:,} test images right",
        soft_wrap=True,
    )
    norm = found.results[0].norm
    console.print(f"\nUnder attack, {norm}: changing {_NORMS[norm]}", style="bold")
    console.print(_attack_table(found))
    console.print(
        "Pixels are in [0, 1]. An image counts if the clean one and every image an attack tries "
        "are right.",
        style="dim",
    )
    console.print("\nOn images made worse", style="bold")
    table = number_table("corruption", "amount", "accuracy")
    for result in found.corruptions:
        table.add_row(result.corruption, f"{result.amount:g}", f"{result.accuracy:.2%}")
    console.print(table)
    console.print(
        "noise: deviation in pixel values; blur: deviation in pixels; contrast: what is left.",
        style="dim",
    )
    print_files(console, files)


def _attack_table(found: AttackReport) -> Table:
    table = number_table("epsilon", "FGSM", "PGD")
    accuracies = {(result.epsilon, result.attack): result.accuracy for result in found.results}
    for epsilon in dict.fromkeys(result.epsilon for result in found.results):
        shown = [f"{accuracies[epsilon, attack]:.2%}" for attack in ("fgsm", "pgd")]
        table.add_row(f"{epsilon:g}", *shown)
    return table
