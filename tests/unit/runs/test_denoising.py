"""From a folder of images to a denoiser, its figures and its images; resumed to the bit."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import pdecnn
from pdecnn.data.image_file import image_form, read_image
from pdecnn.data.images import pack_pictures
from pdecnn.errors import ConfigError, DataError
from pdecnn.reports.robustness_files import draw_attacked_fields
from pdecnn.runs import predict_images
from pdecnn.runs.export import export
from pdecnn.runs.leveling import coarsen, refine
from pdecnn.runs.preparation import make_run_task, read_splits
from tests.runs import assert_resumed_to_the_bit, call, fingerprint
from tests.unit.data.test_pictures import write_picture

DENOISERS = ("parabolic", "hamiltonian", "second_order", "parabolic_stable")
SMALL = {
    "data.patch": 8,
    "data.repeats": 4,
    "data.validation_fraction": 0.2,
    "network.num_steps": 1,
    "training.batch_size": 8,
    "training.epochs": 2,
    "training.average_decay": 0.9,
}
WIDTHS = {"network.channels": [8, 8]}
LEVELS = {"network.channels": [4, 16, 4, 4], "network.hidden_channels": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Smooth images of several sizes, odd ones among them."""
    place = tmp_path_factory.mktemp("pictures")
    for part, number in (("train", 10), ("test", 2)):
        for k in range(number):
            write_smooth(place / part / f"{k}.png", 12 + k % 3, 15 + k % 4, k)
    return place


def write_smooth(path, height, width, seed):
    rows, columns = np.mgrid[:height, :width] / 8
    wave = np.sin(rows * (1 + seed % 3) + columns + seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((127 + 90 * wave).astype(np.uint8)).save(path)


def config_for(dynamics, folder, **changes):
    sizes = LEVELS if dynamics in ("hamiltonian", "second_order") else WIDTHS
    settings = SMALL | sizes | {"data.folder": str(folder)}
    if dynamics == "parabolic_stable":
        settings["network.certified_size"] = 8
    settings |= {key.replace("__", "."): value for key, value in changes.items()}
    return pdecnn.recipe(f"{dynamics}_denoising").with_settings(settings)


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory):
    output = tmp_path_factory.mktemp("runs") / "run"
    return pdecnn.train(config_for("hamiltonian", folder, network__backprop="exact"), output=output)


@pytest.mark.parametrize("dynamics", DENOISERS)
def test_every_denoiser_trains(dynamics, folder, tmp_path):
    run = pdecnn.train(config_for(dynamics, folder), output=tmp_path / "run")
    assert set(run.summary) >= {"best_validation_psnr", "test"}
    assert run.summary["selected_by"] == "validation psnr"
    assert [set(entry) >= {"psnr", "validation_psnr"} for entry in run.metrics] == [True, True]
    assert "accuracy" not in run.metrics[0]
    network = pdecnn.load(run.folder)
    assert network.preprocessing.standardize == "none"
    with torch.no_grad():
        assert network(torch.rand(1, 1, 9, 7)).shape == (1, 1, 9, 7)


def test_a_denoiser_learns(folder, tmp_path):
    changes = {"data__repeats": 40, "training__epochs": 6, "training__learning_rates": [1e-2]}
    config = config_for("parabolic", folder, network__num_steps=2, **changes)
    run = pdecnn.train(config, output=tmp_path / "run")
    assert run.summary["test"]["psnr"] > 24  # noise of 25 is 20.2 dB


@pytest.mark.parametrize("dynamics", ["hamiltonian", "parabolic_stable"])
def test_killed_and_resumed_gives_the_same_bits(dynamics, folder, tmp_path):
    config = config_for(dynamics, folder, data__noise=[5, 50])
    assert_resumed_to_the_bit(config, tmp_path)


def test_a_packed_folder_trains_to_the_same_bits(folder, trained, tmp_path):
    pack_pictures(folder, tmp_path / "packed.npz", channels=1)
    config = config_for("hamiltonian", tmp_path / "packed.npz", network__backprop="exact")
    run = pdecnn.train(config, output=tmp_path / "run")
    assert fingerprint(run.folder) == fingerprint(trained.folder)


def test_evaluation_says_psnr_and_ssim_of_each_image(trained):
    found = pdecnn.evaluate(trained.folder)
    assert set(found) == {"psnr", "ssim", "loss", "num_images", "per_image", "num_weights"}
    assert [row["image"] for row in found["per_image"]] == ["test/0.png", "test/1.png"]
    assert found["psnr"] == trained.summary["test"]["psnr"]
    louder = pdecnn.evaluate(trained.folder, noise=75)
    with pytest.raises(ConfigError, match="noise must be a number of at least 0, found nan"):
        pdecnn.evaluate(trained.folder, noise=float("nan"))
    assert louder["psnr"] < found["psnr"]


def test_an_image_of_16_bits_is_written_with_16(trained, tmp_path):
    deep = np.linspace(0, 2**16 - 1, 12 * 14).reshape(12, 14).astype(np.uint16)
    Image.fromarray(deep).save(tmp_path / "deep.png")
    predict_images(trained.folder, [tmp_path / "deep.png"], tmp_path / "out")
    assert image_form(tmp_path / "out" / "deep.png").is_deep
    with torch.no_grad():
        network = pdecnn.load(trained.folder)
        pixels = read_image(tmp_path / "deep.png", 1)[None]
        answer = network(network.preprocess(pixels))[0].clamp(0, 1)
    assert (read_image(tmp_path / "out" / "deep.png", 1) - answer).abs().max() <= 2**-16


def test_images_are_written_by_their_stem_and_nothing_is_overwritten(trained, folder, tmp_path):
    files, output = [folder / "test" / "0.png", folder / "test" / "1.png"], tmp_path / "out"
    rows = predict_images(trained.folder, files, output)
    assert [row["output"] for row in rows] == [str(output / "0.png"), str(output / "1.png")]
    assert rows[1]["size"] == [13, 16]
    assert rows[1]["padded"] == [14, 16]
    with Image.open(output / "1.png") as image:
        assert image.size == (16, 13)
    before = (output / "1.png").read_bytes()
    with pytest.raises(DataError, match=r"0\.png: is there already; pass --force"):
        predict_images(trained.folder, files, output)
    predict_images(trained.folder, files, output, force=True)
    assert (output / "1.png").read_bytes() == before
    with pytest.raises(DataError, match="with its answer; choose another --output"):
        predict_images(trained.folder, files, folder / "test", force=True)
    write_picture(tmp_path / "other" / "0.png", 4, 4)
    with pytest.raises(DataError, match="for two images"):
        predict_images(trained.folder, [files[0], tmp_path / "other"], tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_name_misspelled_at_the_end_leaves_no_answers_to_the_others(trained, folder, tmp_path):
    """They were written, and with the name mended refused as being there already."""
    files = [folder / "test" / "0.png", folder / "test" / "O.png"]
    with pytest.raises(DataError, match=r"O\.png: no such file; check the path"):
        predict_images(trained.folder, files, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command_line_from_folder_to_images(trained, folder, tmp_path, capsys, monkeypatch):
    def pdecnn_says(*arguments):
        found = call(capsys, monkeypatch, *arguments)
        assert found.code == 0, found.stderr
        return found.stdout

    assert "10 train, 2 test" in pdecnn_says("data", "pack", folder, "--output", tmp_path / "p.npz")
    found = pdecnn_says("evaluate", trained.folder, "--noise", "15", "--json")
    assert "per_image" in json.loads(found)
    image, output = folder / "test" / "0.png", tmp_path / "out"
    found = pdecnn_says("predict", trained.folder, image, "--output", output, "--json")
    (row,) = json.loads(found)["images"]
    assert row["output"] == str(tmp_path / "out" / "0.png")


def test_what_needs_classes_refuses_a_denoiser_in_one_line(trained, folder):
    with pytest.raises(ConfigError) as found:
        pdecnn.diagnose(trained.folder)
    assert str(found.value) == (
        f"{trained.folder} has an answer for each pixel, and this needs a class for each "
        f"image; use `pdecnn evaluate {trained.folder}`, or `pdecnn predict {trained.folder} "
        f"FILE --output DIR`"
    )
    with pytest.raises(ConfigError, match="say where to with --output"):
        pdecnn.predict(trained.folder, [folder / "test" / "0.png"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data.noise": "none"}, "set data.patch and data.noise"),
        ({"data.noise": [5, 25, 55]}, "a range of two"),
        ({"data.standardize": "image"}, "data.standardize=none"),
        ({"data.pooling": 2}, "leave out data.size, data.pooling"),
        ({"data.padding": 0.1}, "leave out data.padding"),
        ({"task.name": "classification"}, "needs network.classifier=linear"),
        ({"data.name": "digits"}, "is for data.name=pictures"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes, message):
    if changes.get("data.name") == "digits":
        changes = changes | {"data.channels": 3}
    with pytest.raises(ConfigError, match=message):
        pdecnn.recipe("parabolic_denoising").with_settings(changes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("evaluate", "RUN", "--noise", "-3"), "noise must be a number of at least 0, found -3"),
        (("evaluate", "RUN", "--noise", "nan"), "noise must be a number of at least 0, found nan"),
        (("predict", "RUN", "IMAGE", "--output", "OUT", "--top", "2"), "--top is for classes"),
        (("predict", "RUN", "IMAGE", "--force"), "--force is for files of --output"),
        (("data", "pack", "DIR", "--output", "OUT.npz", "--set", "data.patch=8"), "data.patch cha"),
        (("data", "pack", "DIR", "--output", "OUT/p.npz"), "no such folder; create it"),
        (("attack", "RUN", "--method", "dlr"), "unknown attack 'dlr'"),
    ],
)
def test_what_would_be_ignored_or_fail_is_refused_in_one_line(
    arguments, message, trained, folder, tmp_path, capsys, monkeypatch
):
    image, output = folder / "test" / "0.png", tmp_path / "out"
    places = {"RUN": trained.folder, "IMAGE": image, "DIR": folder, "OUT": output}
    places |= {f"OUT{end}": f"{output}{end}" for end in (".npz", "/p.npz")}
    found = call(capsys, monkeypatch, *(places.get(word, word) for word in arguments))
    assert found.code in (2, 3)
    assert message in found.stderr
    assert found.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_an_image_of_one_pixel_and_one_without_error_have_figures(tmp_path):
    """Black and without noise it comes out as it is; with one pixel it has no SSIM."""
    for k in range(8):
        write_smooth(tmp_path / "data" / "train" / f"{k}.png", 12, 13, k)
    for name, size in (("black", (12, 12)), ("pixel", (1, 1))):
        write_picture(tmp_path / "data" / "test" / f"{name}.png", *size)
    black = Image.fromarray(np.zeros((12, 12), np.uint8))
    black.save(tmp_path / "data" / "test" / "black.png")
    run = pdecnn.train(config_for("parabolic", tmp_path / "data"), output=tmp_path / "run")
    assert [row["ssim"] is None for row in run.summary["test"]["per_image"]] == [False, True]
    network = pdecnn.load(run.folder)
    with torch.no_grad():
        for weight in network.classifier.parameters():
            weight.zero_()
    (task, test) = make_run_task(run.config, noise=0), read_splits(run.config.data, 0).test
    how = {"batch_size": 1, "precision": "float32", "poll": lambda: None, "quick": lambda: None}
    found = task.evaluate(network, test, **how)
    assert found.psnr == 100
    with torch.no_grad():
        for weight in network.classifier.parameters():
            weight.fill_(torch.nan)
    found = task.evaluate(network, test, **how).to_dict()
    json.dumps(found, allow_nan=False)
    assert found["loss"] is None


def test_a_patch_larger_than_an_image_is_refused_before_anything_is_written(folder, tmp_path):
    with pytest.raises(DataError, match=r"data\.patch=13"):
        pdecnn.train(config_for("parabolic", folder, data__patch=13), output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_attack_costs_decibels_and_the_report_shows_it(trained, tmp_path, capsys, monkeypatch):
    def attack():
        arguments = ("--epsilon", "0.05", "--steps", "3", "--restarts", "1", "--json")
        found = call(capsys, monkeypatch, "attack", trained.folder, *arguments)
        assert found.code == 0, found.stderr
        return json.loads(found.stdout)

    found = attack()
    assert found == attack()
    # The same noise as in an evaluation; clipped and unclipped errors differ a little.
    clean, measured = found["clean"], pdecnn.evaluate(trained.folder)
    for rows in (clean, measured):
        rows["per_image"] = {row.pop("image"): row for row in rows["per_image"]}
    assert clean["per_image"].keys() == measured["per_image"].keys()
    for name, row in clean.pop("per_image").items():
        assert row == pytest.approx(measured["per_image"][name])
    del measured["per_image"], measured["num_weights"]
    assert clean == pytest.approx(measured)
    assert [row["attack"] for row in found["results"]] == ["fgsm", "pgd", "apgd"]
    for row in found["results"]:
        assert row["loss"] > found["clean"]["loss"]
        assert row["psnr"] < found["clean"]["psnr"]
    assert found["results"][1]["loss"] >= found["results"][0]["loss"]
    pdecnn.report([trained.folder], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "PSNR in dB under attack, linf" in page
    assert f"{found['results'][0]['psnr']:.2f}" in page
    assert "make of them, each with their answers" in page
    pdecnn.report([trained.folder], tmp_path / "report.html", num_images=0)
    assert "each with their answers" not in (tmp_path / "report.html").read_text()


def test_images_under_the_worst_attack_are_drawn_with_their_answers(trained):
    found = pdecnn.attack(trained.folder, epsilons=[0.02, 0.1], num_steps=1, restarts=1)
    assert [shown.epsilon for shown in found.examples] == [0, 0.02, 0.1]
    network, (clean, *attacked) = pdecnn.load(trained.folder), found.examples
    for shown in attacked:
        rivals = [one for one in found.results if one.epsilon == shown.epsilon]
        worst = max(rivals, key=lambda one: one.evaluation.loss)
        assert (shown.attack, shown.figures) == (worst.attack, worst.evaluation.per_image)
        for before, after, answer in zip(clean.images, shown.images, shown.answers, strict=True):
            assert 0 < float((after - before).abs().max()) <= shown.epsilon * (1 + 1e-5)
            with torch.no_grad():
                assert torch.allclose(network(after[None])[0], answer, atol=1e-6)
    figure = draw_attacked_fields(found)
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert len(panels) == 2 * (2 * 3 + 1)  # two images with answers, three times, and clean
    words = [axes.get_xlabel() for axes in panels]
    for shown in found.examples:
        for row in shown.figures:
            assert f"{row['psnr']:.2f} dB" in words


def test_two_images_never_move_apart_in_a_stable_denoiser(folder, tmp_path):
    run = pdecnn.train(config_for("parabolic_stable", folder), output=tmp_path / "run")
    network = pdecnn.load(run.folder).double()
    generator = torch.Generator().manual_seed(0)
    for size in ((8, 8), (33, 50)):  # larger than the size at which norms are computed, too
        one, two = torch.rand(2, 20, 1, *size, generator=generator, dtype=torch.float64)
        two = one + torch.linspace(1e-4, 1, 20).view(-1, 1, 1, 1) * (two - one)
        with torch.no_grad():
            after = (network(one) - network(two)).flatten(1).norm(dim=1)
        assert (after <= (one - two).flatten(1).norm(dim=1) * (1 + 1e-12)).all()
    for norm, epsilon in (("linf", 0.1), ("l2", 2.0)):  # nor does an attack move them apart
        found = pdecnn.attack(run.folder, epsilons=[epsilon], norm=norm, num_steps=5, restarts=1)
        for result in found.results:
            assert 0 < result.amplification <= 1 + 1e-5


@pytest.mark.parametrize("channels", [3, None])
def test_colours_are_denoised(channels, tmp_path):
    for k in range(10):
        write_picture(tmp_path / "colours" / f"{k}.png", 12, 14, k, colour=True)
    config = config_for("parabolic", tmp_path / "colours", data__channels=channels)
    run = pdecnn.train(config, output=tmp_path / "run")
    assert run.config.data.channels == run.config.network.num_classes == 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("label_smoothing", 0.1),
        ("mixup", 0.2),
        ("loss", "least_squares"),
        ("temperature", 0.5),
        ("evaluation_batch_size", 5),
    ],
)
def test_settings_of_classes_are_refused(name, value, folder):
    with pytest.raises(ConfigError, match=rf"training\.{name} has no use with task"):
        config_for("parabolic", folder, **{f"training__{name}": value})


def test_a_batch_of_more_patches_than_an_epoch_has_names_the_setting_that_makes_more(
    folder, tmp_path
):
    config = config_for("parabolic", folder, training__batch_size=100)
    wanted = r"larger than the 32 training patches; lower it, or raise data\.repeats"
    with pytest.raises(ConfigError, match=wanted):
        pdecnn.train(config, output=tmp_path / "run")


@pytest.mark.parametrize("change", [coarsen, refine])
def test_another_mesh_of_pictures_is_refused_for_what_it_is(change, trained, tmp_path):
    """Coarser it was refused for data.standardize and others, which nobody had set; finer it was
    made, to be trained and measured on the same pictures."""
    with pytest.raises(ConfigError, match=r"on pictures reads them neither .* pass --time alone"):
        change(trained, space=2, output=tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("command", ["coarsen", "refine"])
def test_accuracies_of_a_denoiser_are_not_compared_once_it_is_made(
    command, trained, tmp_path, capsys, monkeypatch
):
    found = call(
        capsys, monkeypatch, command, trained.folder, "--time", 1 if command == "coarsen" else 2,
        "--evaluate", "--output", tmp_path / "other",
    )  # fmt: skip
    assert found.code == 2
    assert "--evaluate compares accuracies, and" in found.stderr
    assert not (tmp_path / "other").exists()


def test_a_denoiser_with_more_steps_is_sent_to_a_command_that_measures_it(
    trained, tmp_path, capsys, monkeypatch
):
    """It was sent to --evaluate, which refuses it."""
    finer = tmp_path / "finer"
    found = call(capsys, monkeypatch, "refine", trained.folder, "--time", 2, "--output", finer)
    assert found.stdout.endswith(f"was not measured: `pdecnn evaluate {finer}` does.\n")


def test_a_stable_denoiser_is_exported_for_images_of_any_size(tmp_path, capsys):
    """The file took images of network.certified_size alone, at which its norms are computed."""
    config = replace(config_for("parabolic_stable", tmp_path).network, in_channels=1)
    pdecnn.Network(config, pdecnn.Preprocessing(standardize="none")).save_pretrained(tmp_path / "n")
    exported = export(tmp_path / "n", tmp_path / "n.pt2")
    assert exported["input_axes"] == ["batch", 1, "height", "width"]
    sizes = {shape[2:] for shape in map(tuple, exported["compared_shapes"])}
    assert any(max(size) > 8 for size in sizes)
