"""The page of `pdecnn report`: its numbers are the run's, its text is never markup."""

import json
import re
import shutil
from dataclasses import replace
from functools import partial
from itertools import accumulate

import numpy as np
import pytest
import torch

import pdecnn
from pdecnn.diagnostics import MissingNumber, diagnose_network
from pdecnn.errors import CheckpointError, ConfigError, DataError, DivergedError
from pdecnn.learning.metrics import summarize
from pdecnn.reports import page as page_module
from pdecnn.reports import page_runs as page_runs_module
from pdecnn.reports.diagnosis import diagnosis_tables
from pdecnn.reports.html import equation_to_html, equations_of
from pdecnn.reports.page import check_output, make_page, write_page
from pdecnn.reports.page_runs import read_page_runs
from pdecnn.reports.recorded import read_metrics
from pdecnn.reports.run_figures import draw_run_figures
from pdecnn.runs.diagnosis import diagnose
from pdecnn.runs.runs import Run
from tests.pages import Page
from tests.runs import small_config
from tests.unit.learning.trainings import make_network

HOSTILE = ("<script>alert(1)</script>", "\"'><img src=x onerror=alert(2)>", "&amp; and a long name")
read = partial(read_page_runs, device="cpu", num_images=5)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


def trained(root, name, recipe="hamiltonian_digits", **settings):
    config = small_config(
        recipe, **{"network__channels": [4, 4], "training__epochs": 2, **settings}
    )
    return pdecnn.train(config, output=root / name, device="cpu")


@pytest.fixture(scope="module")
def waves(root):
    return trained(root, "waves")


@pytest.fixture(scope="module")
def found(waves):
    return read([waves.folder])


@pytest.fixture(scope="module")
def page(found):
    return Page(make_page(found))


@pytest.fixture(scope="module")
def hostile(root):
    """Arrays whose classes are called what no class should be called."""
    random = np.random.default_rng(0)
    labels = np.arange(60) % 3
    x = (random.normal(size=(3, 1, 8, 8))[labels] + random.normal(size=(60, 1, 8, 8))).astype("f4")
    np.savez(root / "hostile.npz", x=x, y=labels, class_names=np.array(HOSTILE))
    return trained(
        root,
        "<b>hostile & run",
        "parabolic_signals",
        network__dimension=2,
        data__folder=str(root / "hostile.npz"),
        data__fraction=1.0,
    )


def test_the_numbers_are_those_of_evaluate(page, waves):
    measured = pdecnn.evaluate(waves.folder, device="cpu")
    right = round(measured["accuracy"] * measured["num_images"])
    assert f"{measured['accuracy']:.2%}" in page.texts
    assert f"test accuracy: {right} of {measured['num_images']} images, best weights" in page.text
    assert f"test loss {measured['loss']:.4f}" in page.text
    assert f"balanced accuracy {measured['balanced_accuracy']:.2%}" in page.text
    assert f"weights {measured['num_weights']:,}" in page.text
    ((_, *rows),) = page.tables["Confusion matrix: rows are true, columns predicted classes"]
    counts = [[int(cell) for cell in row[1:-1]] for row in rows]
    assert counts == waves.summary["test"]["confusion"]
    assert [row[-1] for row in rows] == [f"{v:.1%}" for v in measured["per_class"].values()]


def test_every_epoch_of_the_metrics_is_there(page, waves):
    ((header, *rows),) = page.tables["All epochs of waves"]
    entries = [
        json.loads(line) for line in (waves.folder / "metrics.jsonl").read_text().splitlines()
    ]
    assert len(rows) == len(entries) == 2
    keys = dict(zip(header, zip(*rows, strict=True), strict=True))
    assert keys["epoch"] == ("1", "2")
    for name, form in (("loss", "{:.4f}"), ("validation accuracy", "{:.2%}")):
        key = name.replace(" ", "_")
        assert keys[name] == tuple(form.format(entry[key]) for entry in entries)
    best = max(entries, key=lambda entry: entry["validation_accuracy"])
    assert f"Best validation accuracy {best['validation_accuracy']:.2%}" in page.text


def test_every_setting_is_there(page, waves):
    config = json.loads((waves.folder / "config.json").read_bytes())
    rows = {
        row[0]: row[1]
        for title in ("Run", "Network", "Data", "Training")
        for table in page.tables[title]
        for row in table[1:]
    }
    for group in ("network", "data", "training"):
        for name, value in config[group].items():
            text = value if isinstance(value, str) else json.dumps(value)
            assert rows[f"{group}.{name}"] == ("none" if value is None else text)
    assert rows["seed"] == "0"


def test_the_diagnosis_is_that_of_the_command(page, waves):
    result = diagnose(waves.folder, device="cpu")
    for index, block in enumerate(result.blocks):
        verdict = block.stability.verdict
        assert f"Block {index} " in page.text
        assert f" {verdict.name} " in page.text
        assert verdict.reason in page.text
    for table in diagnosis_tables(result.blocks):
        ((header, *rows),) = page.tables[table.title]
        assert header == list(table.header)
        assert rows == list(map(list, table.rows))


def test_curves_say_what_they_are_of(page):
    assert {"noise, forwards", "noise, forwards, relative", "|(Y, Z)|"} <= set(page.texts)
    assert "|Y|" not in page.texts


def test_the_shares_of_random_weights_are_ticks_on_the_learned_ones(found):
    text = make_page(found)
    (block,) = found[0].diagnosis.blocks
    shares = block.coefficients.random_shares
    borders = list(accumulate(shares.values()))[:-1]
    ticks = [f'<span class="tick" style="left:{100 * place:.1f}%"></span>' for place in borders]
    assert len(ticks) == 4
    # Of the block, and of each step.
    assert text.count("".join(ticks)) == 1 + len(block.coefficients.steps)
    for share in shares.values():
        assert f"of random weights {share:.1%}" in text


def test_eigenvalues_that_were_not_found_are_missing_with_their_reason(found):
    (run,) = found
    (block,) = run.diagnosis.blocks
    names = ("local bound", "amplification", "spectrum of the system")
    reason = "the method of Arnoldi found no eigenvalue"
    missing = tuple(MissingNumber(number=name, reason=reason) for name in names)
    steps = tuple(
        replace(step, local_bound=None, amplification=None, system_spectrum=None, missing=missing)
        for step in block.stability.steps
    )
    changed = replace(block, stability=replace(block.stability, steps=steps))
    diagnosis = replace(run.diagnosis, blocks=(changed,))
    text = Page(make_page([replace(run, diagnosis=diagnosis)])).text
    said = f"Missing in block 0, steps 0 to 1: {', '.join(names)} ({reason})."
    assert text.count(said) == 2  # beside the curves, and below the table
    assert "step 1: missing" in text
    assert "local bound: missing" in text


def rows_of(html):
    """Of every image its number and, a run each, the class it is taken for and the two shares."""
    return [
        (int(row[0]), re.findall(r'(✓|✗)</span>.*?<b title="([^"]*)">.*?</b> ([0-9.]+)%', row[1]))
        for row in re.findall(r'class="place">no[.] (\d+)(.*?)</li>', html, flags=re.DOTALL)
    ]


def test_images_come_with_the_answers_of_the_network(found, page, waves):
    (run,) = found
    network, examined = pdecnn.load(waves.folder), run.examination
    rows = rows_of(make_page(found))
    places = [place for place, _ in rows]
    with torch.no_grad():
        images = examined.images[torch.tensor(places)]
        expected = network(network.preprocess(images)).softmax(1)
    for (place, answers), probabilities in zip(rows, expected, strict=True):
        ((sign, name, share),) = answers
        best = int(probabilities.argmax())
        assert name == examined.class_names[best]
        assert float(share) / 100 == pytest.approx(float(probabilities[best]), abs=1e-3)
        assert (sign == "✓") == (best == int(examined.labels[place]))
    # What is wrong comes first, the surest above.
    signs = [answers[0][0] for _, answers in rows]
    assert signs == sorted(signs, key="✗✓".index)
    assert signs.count("✗") == min(5, int((examined.predicted != examined.labels).sum()))
    wrong = [float(answers[0][2]) for _, answers in rows if answers[0][0] == "✗"]
    assert wrong == sorted(wrong, reverse=True)
    pictures = page.attributes("img")
    assert len(pictures) == len(rows) == 5
    assert all(entry["src"].startswith("data:image/png;base64,") for entry in pictures)
    assert all(entry["alt"] for entry in pictures)


def answering(run, place, predicted, certainty):
    """The run as another, by place and name, with these answers in the place of its own."""
    examined = replace(
        run.examination, predicted=predicted, certainty=certainty, truth=torch.ones_like(certainty)
    )
    return replace(run, name=f"run {place}", place=place, examination=examined)


def test_images_on_which_runs_disagree_come_first(found):
    (run,) = found
    labels = run.examination.labels
    first, second = labels.clone(), labels.clone()
    first[7] = second[7] = (labels[7] + 1) % 10  # wrong in the same way
    second[3] = (labels[3] + 1) % 10
    first[11], second[11] = (labels[11] + 1) % 10, (labels[11] + 2) % 10
    sure = torch.full(labels.shape, 0.5, dtype=torch.float64)
    sure[11] = 0.9
    runs = [answering(run, 0, first, sure), answering(run, 1, second, sure)]
    html = make_page(runs)
    rows = rows_of(html)
    assert [place for place, _ in rows][:3] == [11, 3, 7]
    assert [[sign for sign, _, _ in answers] for _, answers in rows] == [
        ["✗", "✗"],
        ["✓", "✗"],
        ["✗", "✗"],
        ["✓", "✓"],
        ["✓", "✓"],
    ]
    assert "the runs disagree on 2 and get 1 wrong in the same way." in Page(html).text
    assert len(Page(html).attributes("img")) == 5  # one an image, not one a run


@pytest.mark.parametrize(("number", "words"), [(0, "none is"), (1, "1 is"), (2, "2 are")])
def test_images_that_are_not_there_are_not_said_to_come_first(found, number, words):
    (run,) = found
    labels = run.examination.labels
    predicted = labels.clone()
    predicted[:number] = (labels[:number] + 1) % 10
    sure = torch.full(labels.shape, 0.5, dtype=torch.float64)
    text = Page(make_page([answering(run, 0, predicted, sure)])).text
    assert f" test images {words} misclassified." in text
    assert ("come first" in text) == (number > 0)


def test_the_dotted_lines_of_a_curve_are_explained(found):
    (run,) = found
    metrics = [
        {**run.metrics[-1], "epoch": epoch, "learning_rate": rate}
        for epoch, rate in ((1, 0.1), (2, 0.02))
    ]
    told = "dotted lines are changes of learning rate"
    assert told in Page(make_page([replace(run, metrics=metrics)])).text
    metrics[1]["learning_rate"] = 0.1
    assert told not in Page(make_page([replace(run, metrics=metrics)])).text


def test_the_same_run_gives_the_same_bytes_and_one_small_file(found, waves, tmp_path):
    write_page(found, tmp_path / "one.html")
    write_page(read([waves.folder]), tmp_path / "two.html")
    content = (tmp_path / "one.html").read_bytes()
    assert content == (tmp_path / "two.html").read_bytes()
    assert len(content) < 3_000_000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.html", "two.html"]


def test_names_of_a_run_are_text_and_nothing_else(hostile):
    html = make_page(read([hostile.folder]))
    page = Page(html)
    assert len(page.scripts) == 1
    assert page.scripts[0] == page_module._read("page.js")
    assert "onerror" not in {key for _, attributes in page.elements for key in attributes}
    assert not [entry for entry in page.attributes("img") if entry["src"] == "x"]
    for name in HOSTILE:
        assert name in page.texts
    assert "<b>hostile & run" in page.texts
    assert all("title" in attributes for attributes in page.attributes("b"))


def test_nothing_in_it_points_elsewhere(page):
    for _, attributes in page.elements:
        for key in ("src", "href"):
            value = attributes.get(key, "#")
            assert value.startswith(("#", "data:")), value
    policy = page.attributes("meta")[1]["content"]
    assert policy.startswith("default-src 'none'")
    assert "script-src 'sha256-" in policy


def test_every_link_leads_somewhere_and_no_id_is_taken_twice(page):
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {entry["href"][1:] for entry in page.attributes("a")} <= set(ids)


def copied(run, folder):
    shutil.copytree(run.folder, folder, symlinks=True)
    return folder


def test_a_run_that_is_not_finished_says_so(waves, tmp_path):
    folder = copied(waves, tmp_path / "begun")
    (folder / "summary.json").unlink()
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text(lines[0] + "\n")
    text = Page(make_page(read([folder], diagnosis=False))).text
    assert "not finished: 1 of 2 epochs" in text
    assert "test accuracy:" in text
    assert "Left out on request (--no-diagnosis)." in text
    (folder / "best").unlink()
    (folder / "metrics.jsonl").unlink()
    text = Page(make_page(read([folder]))).text
    assert "not finished: 0 of 2 epochs." in text
    assert "It has no best weights yet." in text
    assert "No epoch is finished yet." in text
    assert f"pdecnn train --output {folder} --resume" in text
    assert "test accuracy" not in text


def test_a_finished_run_without_weights_shows_what_it_was_left_with(waves, tmp_path):
    folder = copied(waves, tmp_path / "archived")
    (folder / "best").unlink()
    page = Page(make_page(read([folder])))
    assert "No best weights are in the run" in page.text
    assert f"{waves.summary['test']['accuracy']:.2%}" in page.texts
    assert "nothing to diagnose" in page.text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("metrics.jsonl", '{"epoch": 1}\n'),
        ("metrics.jsonl", '{"epoch": 1, "validation_accuracy": null}\n'),
        ("metrics.jsonl", "[1]\n"),
        ("summary.json", '{"stopped": "completed", "test": {}}'),
        ("summary.json", '{"stopped": "completed"}'),
    ],
)
def test_a_damaged_run_is_an_error_with_its_file(waves, tmp_path, name, text):
    folder = copied(waves, tmp_path / "damaged")
    (folder / name).write_text(text)
    with pytest.raises(CheckpointError, match=f"{name}: damaged .* restore it from a copy"):
        read([folder], diagnosis=False)


BAD_NUMBERS = ("NaN", "Infinity", "1e300", "1" + 400 * "0", '"0.5"', "[0.5]", "-1", "true", "{}")


def test_a_number_no_run_can_have_is_named(waves, tmp_path):
    folder = copied(waves, tmp_path / "damaged")
    path = folder / "metrics.jsonl"
    first, *others = path.read_text().splitlines()
    for key in ("epoch", "learning_rate", "data_loss", "validation_accuracy", "level"):
        for number in BAD_NUMBERS:
            text = json.dumps({**json.loads(first), key: "HERE"}).replace('"HERE"', number)
            path.write_text("\n".join([text, *others]) + "\n")
            with pytest.raises(CheckpointError, match=r"metrics.jsonl: damaged .* from a copy"):
                read_metrics(Run(folder))
    with pytest.raises(CheckpointError, match=r"metrics.jsonl: damaged"):
        read([folder], diagnosis=False)
    with pytest.raises(CheckpointError, match=r"metrics.jsonl: damaged"):
        draw_run_figures(Run(folder))


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("class_names",), 5),
        (("num_weights",), "many"),
        (("stopped",), [1]),
        (("test", "accuracy"), float("nan")),
        (("test", "num_images"), "<script>"),
        (("test", "per_class"), 3),
        (("test", "confusion"), [[1]]),
        (("test", "confusion"), [[10**30] * 10] * 10),
        (("test", "loss"), 10**400),
    ],
)
def test_a_summary_no_run_can_have_is_named(waves, tmp_path, keys, value):
    folder = copied(waves, tmp_path / "damaged")
    (folder / "best").unlink()  # what is not measured anew is shown as it was left
    summary = json.loads((folder / "summary.json").read_bytes())
    where = summary
    for key in keys[:-1]:
        where = where[key]
    where[keys[-1]] = value
    (folder / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(CheckpointError, match=r"summary.json: damaged .* restore it from a copy"):
        read([folder], diagnosis=False)
    with pytest.raises(CheckpointError, match=r"summary.json: damaged"):
        draw_run_figures(Run(folder))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("environment.json", "[" * 100_000),
        ("timing.jsonl", '{"epoch": 1, "seconds": NaN}\n{"epoch": 2, "seconds": 1}\n'),
        ("timing.jsonl", '{"epoch": 1, "seconds": 1e999}\n{"epoch": 2, "seconds": 1}\n'),
    ],
)
def test_what_nothing_depends_on_is_unknown_where_it_is_damaged(waves, tmp_path, name, text):
    folder = copied(waves, tmp_path / "damaged")
    (folder / name).write_text(text)
    assert "unknown" in Page(make_page(read([folder], diagnosis=False))).text


def test_figures_that_differ_from_the_runs_own_are_remarked(waves, tmp_path):
    folder = copied(waves, tmp_path / "other")
    summary = json.loads((folder / "summary.json").read_bytes())
    summary["test"]["accuracy"] = 0.5
    (folder / "summary.json").write_text(json.dumps(summary))
    assert "the run itself measured 50.00%" in Page(make_page(read([folder]))).text


def test_runs_side_by_side(waves, hostile, root):
    heat = trained(root, "heat", "parabolic_digits", seed=3)
    page = Page(make_page(read([waves.folder, heat.folder], diagnosis=False)))
    ((_, *rows),) = page.tables["The runs side by side"]
    assert [row[0] for row in rows] == ["waves", "heat"]
    header = page.tables["The runs side by side"][0][0]
    for row, run in zip(rows, (waves, heat), strict=True):
        cells = dict(zip(header, row, strict=True))
        assert cells["test accuracy"] == f"{run.summary['test']['accuracy']:.2%}"
        assert cells["seed"] == str(run.config.seed)
    # What they share stands below, once.
    assert not {"data", "epochs", "channels"} & set(header)
    assert page.text.count("channels 4, 4") == 1
    assert page.text.count("All runs data digits, 10 classes") == 1
    assert "cannot be compared" not in page.text
    assert "hold out different validation images" in page.text
    ((header, *differing),) = page.tables["Settings that differ"]
    assert header == ["setting", "waves", "heat"]
    settings = {row[0]: row[1:] for row in differing}
    assert settings["seed"] == ["0", "3"]
    assert settings["network.integrator"] == ["verlet", "forward_euler"]
    assert "data.name" not in settings
    page = Page(make_page(read([waves.folder, hostile.folder], diagnosis=False)))
    assert "accuracies and losses cannot be compared (waves: digits, 10 classes" in page.text


def test_several_runs_share_charts_and_tables(found):
    (run,) = found
    other = replace(run, name="again", place=1)
    html = make_page([run, other])
    page = Page(html)
    charts = [entry for entry in page.attributes("svg") if entry.get("class") == "chart"]
    num_blocks = len(run.diagnosis.blocks)
    assert len(charts) == 2 + 4 * num_blocks  # as many as one run has
    assert html.count('<path d="M') > 0
    assert {"waves, validation", "again, |(Y, Z)|", "again, noise, forwards"} <= set(page.texts)
    ((header, *rows),) = page.tables["Stability of every block"]
    assert header[:3] == ["run", "block", "verdict"]
    assert [row[0] for row in rows] == ["waves"] * num_blocks + ["again"] * num_blocks


def test_parabolic_blocks_say_that_they_cannot_be_reversed(hostile):
    page = Page(make_page(read([hostile.folder])))
    assert "it cannot be run backwards" in page.text


def test_residual_blocks_are_not_taken_for_heat(root):
    run = trained(root, "residual", "resnet_digits", training__epochs=1)
    text = Page(make_page(read([run.folder], num_images=0))).text
    assert "it cannot be run backwards; its steps have no exact step back" in text
    assert "heat flows" not in text


def test_a_diagnosis_that_fails_does_not_cost_the_page(waves, monkeypatch):
    """As where Lanczos finds no eigenvalue, or weights are not finite."""

    def fails(*arguments, **options):
        raise DivergedError("no eigenvalue was found")

    monkeypatch.setattr(page_runs_module, "diagnose", fails)
    said = []
    text = Page(make_page(read([waves.folder], say=said.append))).text
    assert f"{waves.summary['test']['accuracy']:.2%}" in text
    assert text.count("It could not be made: no eigenvalue was found.") == 2
    assert said[-1] == "waves: no diagnosis: no eigenvalue was found"


def test_runs_on_other_images_with_the_same_labels_are_not_compared_silently(hostile, root):
    """Their test sets cannot be told apart by labels and classes."""
    with np.load(root / "hostile.npz") as arrays:
        other = {**arrays, "x": np.flip(arrays["x"], -1)}
    np.savez(root / "mirrored.npz", **other)
    run = trained(
        root,
        "mirrored",
        "parabolic_signals",
        network__dimension=2,
        data__folder=str(root / "mirrored.npz"),
        data__fraction=1.0,
    )
    text = Page(make_page(read([hostile.folder, run.folder], diagnosis=False))).text
    assert "their test labels are the same, but their images may not be" in text


def with_classes(run, number):
    names = tuple(f"class number {k}" for k in range(number))
    labels = torch.arange(4 * number) % number
    predictions = torch.where(torch.arange(4 * number) < number, 0, labels)
    evaluation = summarize(predictions, labels, names, 0.5)
    examination = replace(run.examination, evaluation=evaluation, class_names=names)
    return replace(run, examination=examination)


@pytest.mark.parametrize(("number", "has_map"), [(100, True), (400, False)])
def test_many_classes_are_summarised(found, number, has_map):
    run = with_classes(replace(found[0], diagnosis=None), number)
    html = make_page([run])
    page = Page(html)
    assert not page.tables.get("Confusion matrix: rows are true, columns predicted classes")
    assert bool([e for e in page.attributes("svg") if e.get("class") == "map"]) == has_map
    ((_, *errors),) = page.tables["Commonest errors"]
    assert errors[0] == ["1 · class number 1", "0 · class number 0", "1", "25.0%"]
    ((_, *classes),) = page.tables["Accuracy of every class, the worst first"]
    assert len(classes) == number
    assert classes[0][2] == "75.0%"
    assert classes[-1] == ["0 · class number 0", "4", "100.0%"]
    assert len(html) < 3_000_000


def test_data_that_has_moved_is_asked_for_and_found(hostile, waves, root, tmp_path):
    folder = copied(hostile, tmp_path / "moved")
    config = json.loads((folder / "config.json").read_bytes())
    config["data"]["folder"] = str(tmp_path / "gone.npz")
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match=r"gone\.npz"):
        read([folder], diagnosis=False)
    data = root / "hostile.npz"
    for runs, places in (([folder], [data]), ([waves.folder, folder], [data])):
        assert len(read(runs, data=places, diagnosis=False)) == len(runs)
    assert len(read([waves.folder, folder], data=[root, data], diagnosis=False)) == 2
    with pytest.raises(ConfigError, match=r"different data .* once for each run"):
        read([hostile.folder, folder], data=[data])
    with pytest.raises(ConfigError, match="given 3 times for 2 runs"):
        read([hostile.folder, folder], data=[data] * 3)


def test_images_that_stay_on_the_disk_are_read_as_needed(hostile, root, tmp_path):
    folder = copied(hostile, tmp_path / "stored")
    (tmp_path / "arrays").mkdir()
    with np.load(root / "hostile.npz") as arrays:
        for name in ("x", "y"):
            np.save(tmp_path / "arrays" / f"{name}.npy", arrays[name])
    (tmp_path / "arrays" / "class_names.txt").write_text("\n".join(HOSTILE))
    config = json.loads((folder / "config.json").read_bytes())
    config["data"] |= {"stream": True, "folder": str(tmp_path / "arrays")}
    (folder / "config.json").write_text(json.dumps(config))
    for number in (0, 5):
        (held,) = read([hostile.folder], num_images=number, diagnosis=False)
        (stored,) = read([folder], num_images=number, diagnosis=False)
        assert stored.examination.evaluation == held.examination.evaluation
        pictures = [Page(make_page([run])).attributes("img") for run in (stored, held)]
        assert pictures[0] == pictures[1]
        assert len(pictures[0]) == number


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": "worst"}, "weights must be one of best, last"),
        ({"num_images": -1}, "--images must be at least 0"),
    ],
)
def test_what_cannot_be_is_refused(waves, options, message):
    with pytest.raises(ConfigError, match=message):
        read([waves.folder], **options)


def test_a_run_is_not_compared_with_itself(waves):
    with pytest.raises(ConfigError, match="given twice"):
        read([waves.folder, waves.folder / ".." / waves.folder.name])


def test_runs_of_one_name_are_told_apart_by_their_paths(waves, tmp_path):
    folder = copied(waves, tmp_path / "waves")
    names = [run.name for run in read([waves.folder, folder], num_images=0, diagnosis=False)]
    assert names == [str(waves.folder), str(folder)]


def test_without_images_none_are_shown(waves):
    page = Page(make_page(read([waves.folder], num_images=0, diagnosis=False)))
    assert not page.attributes("img")
    assert "None are shown." in page.text


def test_where_it_cannot_be_written(tmp_path):
    with pytest.raises(ConfigError, match=r"ends in \.html"):
        check_output(tmp_path / "config.json")
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(ConfigError, match="is a folder"):
        check_output(tmp_path / "folder.html")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        check_output(tmp_path / "file" / "report.html")
    check_output(tmp_path / "new" / "report.html")
    assert (tmp_path / "new").is_dir()


@pytest.mark.parametrize(
    ("dynamics", "normalization", "activation"),
    [
        ("parabolic", "tv", "relu"),
        ("hamiltonian", "tv", "tanh"),
        ("second_order", "none", "identity"),
        ("resnet", "batch", "relu"),
    ],
)
def test_every_equation_has_its_html(dynamics, normalization, activation):
    network = make_network(
        dynamics, channels=(2, 2), num_steps=1, normalization=normalization, activation=activation
    )
    (block,) = diagnose_network(network, torch.randn(1, 1, 4, 4), num_iterations=1)
    lines = equations_of(block.latex[0])
    assert len(lines) == (2 if dynamics == "hamiltonian" else 1)
    for line in lines:
        html = equation_to_html(line)
        assert Page(html).text.startswith("∂ t")
        assert "\\" not in html


def test_a_report_of_no_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="one run at least"):
        pdecnn.report([], tmp_path / "report.html")


def test_the_report_of_one_run_needs_no_list(tmp_path):
    run = pdecnn.train(small_config(training__epochs=1), output=tmp_path / "run", device="cpu")
    pages = []
    for name, given in {"run": run, "place": str(run.folder), "list": [run.folder]}.items():
        page = pdecnn.report(given, tmp_path / f"{name}.html", data=(), diagnosis=False)
        pages.append(page.read_bytes())
    assert len(set(pages)) == 1
