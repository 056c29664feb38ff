"""What is said about a plan beside its tables and figures, derived from its configs."""

from collections.abc import Iterable

from pdecnn.reports.provenance import TIES
from pdecnn.runs.narrowing import count_weights
from pdecnn.runs.paper import NARROW, TITLES, Experiment, Plan

QUICK = "Quick version on digits, not the paper's experiment"


def title(dataset: str, plan: Plan) -> str:
    """The data set that is shown, and what stands in for it."""
    return f"digits in place of {TITLES[dataset]}" if plan.quick else TITLES[dataset]


def seeds(plan: Plan) -> str:
    """'one seed' or '3 seeds'."""
    return "one seed" if plan.num_seeds == 1 else f"{plan.num_seeds} seeds"


def changed(plan: Plan) -> str:
    """The settings that are not the recipes', if any."""
    settings = ", ".join(f"{key} = {value}" for key, value in plan.settings.items())
    return f"Changed in every run: {settings}" if settings else ""


def notices(plan: Plan) -> list[str]:
    """What keeps the numbers from being compared with the paper's."""
    said = []
    if plan.quick:
        configs = plan.runs.values()
        epochs = _range(config.training.epochs for config in configs)
        weights = _range(count_weights(config.network) for config in configs)
        said.append(
            f"Quick version: {epochs} epochs of networks with {weights} weights on scikit-learn's "
            f"digits, which stand in for every data set. It shows that the whole works; its "
            f"numbers are not to be compared with the paper's."
        )
    return [*said, f"{changed(plan)}."] if plan.settings else said


def is_augmented(plan: Plan, experiments: Iterable[Experiment]) -> bool:
    """Whether training images are mirrored or moved at random in some of them."""
    data = [plan.config(one).data for one in experiments]
    return any(config.flip or config.padding > 0 for config in data)


def explain_table(plan: Plan) -> str:
    """What the numbers of Table 1 are."""
    spread = "" if plan.num_seeds == 1 else ", mean ± sample standard deviation"
    text = (
        "Accuracy and cross entropy with the weights of the best validation accuracy "
        f"({_ties(plan)}), on the test images and, as they are, on the training images; "
        f"{seeds(plan)}{spread}."
    )
    shown = [one.dynamics for one in plan.experiments["table1"]]
    if "resnet" in shown or NARROW in shown:
        text += (
            " `resnet`, ours and not the paper's, is a general residual network of the same "
            "widths, which has two stencils where the others have one."
        )
    if NARROW in shown:
        widths = ", ".join(
            f"{title(one.dataset, plan)} {'-'.join(map(str, plan.config(one).network.channels))}"
            for one in plan.experiments["table1"]
            if one.dynamics == NARROW
        )
        text += (
            " Narrowed, its channels are fewer, so that it comes nearest to the weight count of "
            f"the parabolic network: {widths}."
        )
    return text


def _ties(plan: Plan) -> str:
    """Which of equal epochs it is; one rule for all runs, or they are not of the plan."""
    return TIES[next(iter(plan.runs.values())).training.ties]


def caption(target: str, plan: Plan) -> str:
    """What a figure shows."""
    experiments = plan.experiments[target]
    names = ", ".join(dict.fromkeys(title(one.dataset, plan) for one in experiments))
    return _CAPTIONS[target](plan, experiments, names)


def _figure_1(plan: Plan, experiments: Iterable[Experiment], names: str) -> str:
    return f"Test images ({names}) and the probabilities that each network gives, seed 0."


def _figure_2(plan: Plan, experiments: Iterable[Experiment], names: str) -> str:
    whole = [one for one in experiments if one.percentage is None]
    augmentation = "with" if is_augmented(plan, whole) else "without"
    held_out = plan.config(whole[0]).data.validation_fraction
    return (
        f"Left: test accuracy against the part of the training images ({names}) that is trained "
        f"on, without augmentation, at the best epoch of each run by the {100 * held_out:g} % held "
        f"out for validation. Right: validation accuracy after each epoch, {augmentation} "
        f"augmentation, as in Table 1.{_reach('Bars and bands', plan)}"
    )


def _figure_3(plan: Plan, experiments: Iterable[Experiment], names: str) -> str:
    together = "" if plan.num_seeds == 1 else f", {plan.num_seeds} seeds together"
    return (
        f"Confusion matrices on the test images ({names}){together}: a row a network, a column "
        f"the part of the training images that is trained on, without augmentation."
    )


def _figure_4(plan: Plan, experiments: Iterable[Experiment], names: str) -> str:
    return f"Validation accuracy after each epoch ({names}).{_reach('Bands', plan)}"


_CAPTIONS = {
    "figure1": _figure_1,
    "figure2": _figure_2,
    "figure3": _figure_3,
    "figure4": _figure_4,
}


def _reach(what: str, plan: Plan) -> str:
    if plan.num_seeds == 1:
        return ""
    return f" {what} reach from the least to the most of the {plan.num_seeds} seeds."


def _range(values: Iterable[int]) -> str:
    numbers = sorted(set(values))
    low, high = f"{numbers[0]:,}", f"{numbers[-1]:,}"
    return low if low == high else f"{low} to {high}"
