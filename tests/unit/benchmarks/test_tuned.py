"""The final runs: what is trained, what is kept of it, and what the page says."""

import json
from dataclasses import replace

import pytest
import torch

from benchmarks import tuned, tuned_page
from benchmarks.search import Row, Trial, append_row
from benchmarks.tuned import DYNAMICS, HAMILTONIAN, Variant
from pdecnn.data.published import CIFAR10
from pdecnn.files import write_json
from pdecnn.networks import registry
from pdecnn.networks.network import Network
from pdecnn.runs.recipes import recipe
from tests.bench_results import make_recipes
from tests.unit.benchmarks.test_sounds import ENVIRONMENT
from tests.unit.data.test_cifar import write_files

SMALL = ["training.epochs=1", "training.batch_size=10"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_files(folder, CIFAR10, records_per_file=4)
    return folder


def write_run(folder, name, seed, accuracy, resnet=None):
    run = folder / tuned.folder_name(name, seed)
    run.mkdir(parents=True)
    config = recipe("hamiltonian_cifar10").to_dict()
    write_json(run / "config.json", {"resnet": resnet, **config} if resnet else config)
    summary = {"num_weights": 264_106, "epochs": 200, "test": {"accuracy": accuracy}}
    write_json(run / "summary.json", summary)
    write_json(run / "environment.json", ENVIRONMENT)
    write_json(run / "conditions.json", {"runs_at_a_time": 6})
    (run / "timing.jsonl").write_text(
        '{"epoch": 1, "seconds": 20.4}\n{"epoch": 2, "seconds": 30}\n'
    )


def test_the_papers_networks_are_trained_where_the_tuned_ones_are_others(monkeypatch):
    assert list(tuned.paper()) == [f"{dynamics}_paper" for dynamics in tuned.DYNAMICS]
    config = tuned.paper()["hamiltonian_paper"].config()
    assert config.network == registry.model_config("hamiltonian_cifar10")
    assert config.training == tuned.final()[HAMILTONIAN].config().training
    monkeypatch.setitem(
        registry._MODELS, HAMILTONIAN, lambda: registry.model_config("hamiltonian_cifar10")
    )
    assert list(tuned.paper()) == ["parabolic_paper", "second_order_paper"]


def test_each_part_of_the_ablation_differs_and_the_architecture_is_one():
    variants = tuned.ablation()
    configs = [variant.config() for variant in variants.values()]
    assert all(configs.count(config) == 1 for config in configs)
    assert variants["without_architecture"].config().network.channels == (32, 64, 112, 112)


@pytest.mark.parametrize(
    "settings",
    [{"training.mixup": 0.2}, {"training.cutmix": 1.0}, {"data.trivial_augment": True}],
    ids=str,
)
def test_what_a_search_may_put_into_the_recipe_is_removed_too(settings, monkeypatch):
    whole = recipe(HAMILTONIAN)
    changed = whole.with_settings(settings)
    monkeypatch.setattr(tuned, "recipe", lambda name: changed)
    shorter = {"training.epochs": whole.training.epochs // tuned.SHORTER}
    configs = [variant.config() for variant in tuned.ablation().values()]
    assert whole.with_settings(shorter) in configs


def test_searched_settings_are_those_of_the_best_of_the_longest_trials(tmp_path, monkeypatch):
    monkeypatch.setattr(tuned, "SEARCH", tmp_path / "search.csv")
    assert tuned.resnets().keys() == {"resnet20", "resnet32"}
    for number, (epochs, accuracy, kind) in enumerate(
        [(8, 0.95, "muon"), (24, 0.91, "muon"), (24, 0.92, "nesterov"), (24, 0.90, "nesterov")]
    ):
        settings = {"training.optimizer": kind, "training.learning_rates": 0.1 + number}
        settings |= {"training.weight_decay": 0.0, "training.decay_weight": 5e-4}
        for network in ("resnet20", HAMILTONIAN):
            trial = Trial(network, epochs // 8 - 1, number, epochs, 0, settings)
            append_row(tmp_path / "search.csv", Row(trial, accuracy, 9.0))
    config = tuned.resnets()["resnet20_searched"].config()
    assert config.training.learning_rates == (2.1,)
    without_muon = tuned.ablation()["without_muon"].config()
    assert (without_muon.training.optimizer, without_muon.training.weight_decay) == ("nesterov", 0)


@pytest.mark.parametrize("dynamics", DYNAMICS)
def test_sizes_are_spread_over_what_is_asked_for(dynamics):
    network = registry.model_config(f"{dynamics}_cifar10_tuned")
    with torch.device("meta"):
        least, most = (
            Network(replace(network, channels=tuned.widened(network, size))).num_weights
            for size in (tuned.SIZES[0], tuned.SIZES[-1])
        )
    assert 50_000 <= least < 90_000
    assert 800_000 < most <= 1_000_000


def test_jobs_are_lines_of_a_campaign_with_first_seeds_first(capsys):
    tuned.main(["jobs", "final", "--data", "D", "--output", "O", "--set", "training.epochs=2"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0][-1] for line in lines] == list("000111222")
    assert lines[1].startswith(f"{HAMILTONIAN}-seed0: ")
    assert lines[1].endswith("--seed 0 --data D --output O --set training.epochs=2")


@pytest.mark.parametrize("name", [HAMILTONIAN, "resnet8_short"])
def test_a_run_is_trained_once_and_kept_without_paths(name, data, tmp_path, monkeypatch, capsys):
    small = Variant(name.removesuffix("_short"), {})
    monkeypatch.setattr(tuned, "variant_named", lambda _: small)
    settings = [
        *SMALL,
        *(["network.channels=4,6,6", "network.num_steps=2"] if small.depth is None else []),
    ]
    words = [word for text in settings for word in ("--set", text)]
    for _ in range(2):
        places = ["--data", str(data), "--output", str(tmp_path / "out")]
        tuned.main(["train", name, *places, *words])
    first, second = capsys.readouterr().out.splitlines()[-2:]
    assert first == second
    tuned.main(["keep", "--output", str(tmp_path / "out"), "--results", str(tmp_path / "kept")])
    (run,) = tuned_page.read(tmp_path / "kept", name)
    assert (run.epochs, run.at_a_time) == (1, 1)
    assert run.flops > 1e5
    for path in (tmp_path / "kept").rglob("*"):
        assert path.is_dir() or str(tmp_path) not in path.read_text()


def test_the_page_has_means_differences_and_what_is_missing(tmp_path, monkeypatch):
    some = [f"{HAMILTONIAN}_60k", f"{HAMILTONIAN}_100k", "resnet8_short"]
    monkeypatch.setattr(tuned_page, "sizes", lambda: dict.fromkeys(some))
    removed = dict.fromkeys(("without_nothing", "without_cutout", "without_box"))
    monkeypatch.setattr(tuned_page, "ablation", lambda: removed)
    folder = tmp_path / "tuned" / "runs"
    for seed in range(3):
        write_run(folder, HAMILTONIAN, seed, 0.925 + 0.001 * seed)
        write_run(folder, "resnet20", seed, 0.92, resnet=20)
    write_run(folder, "without_nothing", 0, 0.92)
    write_run(folder, "without_cutout", 0, 0.915)
    for name in some[:2]:
        write_run(folder, name, 0, 0.9)
    contents = tuned_page.written(tmp_path)
    text = contents["tuned.md"].decode()
    assert (
        "| hamiltonian | 264,106 | 168 | 200 | 3 | 92.60 ± 0.10 | 50, 50, 50 (6 at a time) |"
        in text
    )
    assert "Not measured: parabolic; second order; parabolic, the paper's; " in text
    assert "| parabolic |" not in text
    assert text.startswith("# The best accuracy for the weights: 92.60 %\n")
    assert "- hamiltonian: 92.6 wanted, reached" in text
    assert "- hamiltonian against ResNet-20, our recipe: +0.60 points" in text
    assert "| cutout | 1 | 91.50 | -0.50 |" in text
    assert "| box | 0 | not measured |  |" in text
    assert "Not measured: resnet8_short" in text
    assert contents.keys() == {"tuned.md", "tuned-sizes.png", "tuned-sizes.svg"}


def test_runs_of_other_epochs_are_not_counted_as_those_of_the_first(tmp_path):
    folder = tmp_path / "tuned" / "runs"
    for seed, epochs in enumerate((100, 50)):
        write_run(folder, HAMILTONIAN, seed, 0.92)
        summary = folder / tuned.folder_name(HAMILTONIAN, seed) / "summary.json"
        write_json(summary, json.loads(summary.read_bytes()) | {"epochs": epochs})
    text = tuned_page.written(tmp_path)["tuned.md"].decode()
    assert "| hamiltonian | 264,106 | 168 | 50 or 100 | 2 |" in text


def test_the_page_shows_what_the_bench_measured_of_recipes(tmp_path):
    write_json(tmp_path / "speed.json", {"parts": {"recipes": make_recipes()}})
    text = tuned_page.written(tmp_path)["tuned.md"].decode()
    assert "| tuned | 125 | 1.2 | 1.18 to 1.25 | 1.20 | +0.200 | 2 |" in text
    assert "At most 1.25 times" in text


def test_a_page_without_any_run_says_so(tmp_path):
    write_json(tmp_path / "speed.json", {"parts": {}})
    contents = tuned_page.written(tmp_path)
    assert contents.keys() == {"tuned.md"}
    assert "without one of them: not measured." in contents["tuned.md"].decode()
    assert "steps of tuned training: not measured." in contents["tuned.md"].decode()
    assert "Trials: not measured." in contents["tuned.md"].decode()
