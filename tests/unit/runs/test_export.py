"""Exported networks compute what torch does, whatever the batch and the image size."""

import json
import resource

import pytest
import torch

import pdecnn
from pdecnn.errors import ConfigError, ExportError
from pdecnn.networks.pixel_network import PixelNetwork
from pdecnn.pde.activations import _ACTIVATIONS
from pdecnn.reports.terminal import print_export
from pdecnn.runs import export as export_module
from pdecnn.runs.export import TOLERANCE, export
from tests.lipschitz import STABLE, make_network
from tests.runs import call
from tests.umask import mode, user_mask

SHAPES = [(1, 4, 4), (2, 5, 8), (5, 17, 9)]
NAMES = ("cat", "dog", "eel")
POOLED = (4, 4, 4)  # two blocks, and half the pixels in each direction between them


def first_alone(first, *others):
    """Exports take seconds: one in the ordinary suite, the others in the slow one."""
    return [first, *(pytest.param(other, marks=pytest.mark.slow) for other in others)]


def saved(folder, model, preprocessing=None, **settings):
    """A tiny network in a folder; its batch norms have seen images."""
    tiny = {"channels": (4, 4), "num_steps": 1, "num_classes": 3, "in_channels": 2}
    config = pdecnn.create_model(model, **tiny | settings).config
    network = pdecnn.Network(config, preprocessing)
    with torch.no_grad():
        network(torch.randn(4, 2, *(8,) * config.dimension))
    network.save_pretrained(folder)
    return network.eval()


def images(batch, *size):
    return torch.randint(0, 256, (batch, 2, *size), dtype=torch.uint8)


def onnx_scores(file, pixels):
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {"pixels": pixels.numpy()})[0])


def assert_near(found, network, pixels):
    with torch.no_grad():
        wanted = network(network.preprocess(pixels))
    assert found.shape == wanted.shape
    assert (found - wanted).abs().max() <= TOLERANCE * wanted.abs().max()


def files_of(folder):
    return sorted(path.name for path in folder.iterdir() if path.is_file())


@pytest.mark.parametrize("kind", first_alone("torch-export", "onnx"))
def test_a_file_refuses_images_larger_than_the_certified_size(tmp_path, kind):
    network = make_network(**STABLE)
    network.save_pretrained(tmp_path / "net")
    file = tmp_path / f"net{export_module.SUFFIXES[kind]}"
    exported = export(tmp_path / "net", file, kind=kind)
    assert exported["input_axes"] == ["batch", 2, 8, 6]
    score = export_module._READERS[kind](file)
    pixels = images(3, 8, 6)
    assert_near(score(pixels), network, pixels)
    for size in ((9, 6), (8, 7), (16, 12)):
        with pytest.raises(Exception, match=r"Guard failed|invalid dimensions"):
            score(images(1, *size))


def test_images_resized_beyond_the_certified_size_are_not_exported(tmp_path):
    resized = pdecnn.Preprocessing(standardize="none", size=(8, 8))
    make_network(preprocessing=resized, **STABLE | {"classifier": "unit_rows"}).save_pretrained(
        tmp_path / "net"
    )
    with pytest.raises(ConfigError, match=r"resized to \(8, 8\), more than .*\(8, 6\)"):
        export(tmp_path / "net", tmp_path / "net.pt2")


@pytest.mark.parametrize(
    "dynamics", first_alone("hamiltonian", "parabolic", "second_order", "resnet")
)
def test_onnx_of_every_dynamics_matches_torch_for_any_batch_and_image_size(tmp_path, dynamics):
    settings = {"preprocessing": pdecnn.Preprocessing(class_names=NAMES), "channels": POOLED}
    network = saved(tmp_path / "net", f"{dynamics}_digits", **settings)
    file = tmp_path / "net.onnx"
    exported = export(tmp_path / "net", file, kind="onnx")
    assert 0 < exported["largest_relative_difference"] <= TOLERANCE
    assert len({tuple(shape) for shape in exported["compared_shapes"]}) >= 4
    for shape in SHAPES:
        pixels = images(*shape)
        assert_near(onnx_scores(file, pixels), network, pixels)
    assert files_of(tmp_path) == ["net.onnx"]


@pytest.mark.parametrize("kind", first_alone("torch-export", "onnx"))
def test_a_field_has_an_answer_for_each_pixel_of_whole_cells(tmp_path, kind, capsys):
    """A graph pads nothing: the sides are multiples of what is one pixel on the coarsest level."""
    settings = {"channels": (4, 16, 4), "hidden_channels": 4, "num_classes": 2}
    network = saved(tmp_path / "net", "parabolic_denoising", **settings)
    file = tmp_path / f"net{export_module.SUFFIXES[kind]}"
    exported = export(tmp_path / "net", file)
    assert exported["output_axes"] == ["batch", 2, "height", "width"]
    assert (exported["multiple_of"], exported["class_names"]) == (2, [])
    pixels = images(3, 6, 8)
    assert_near(export_module._READERS[kind](file)(pixels), network, pixels)
    print_export(exported)
    assert "gives   images (batch, 2, height, width)" in capsys.readouterr().out


@pytest.mark.slow
def test_an_onnx_file_says_its_axes_and_classes(tmp_path):
    import onnx

    saved(tmp_path / "net", "resnet_digits", pdecnn.Preprocessing(class_names=NAMES))
    export(tmp_path / "net", tmp_path / "a.onnx", kind="onnx", pixels="float32")
    model = onnx.load(tmp_path / "a.onnx")
    onnx.checker.check_model(model, full_check=True)
    (taken,), (given,) = model.graph.input, model.graph.output
    axes = [axis.dim_param or axis.dim_value for axis in taken.type.tensor_type.shape.dim]
    assert (taken.name, axes) == ("pixels", ["batch", 2, "height", "width"])
    assert taken.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    assert given.name == "scores"
    (entry,) = [entry for entry in model.metadata_props if entry.key == "class_names"]
    assert json.loads(entry.value) == list(NAMES)


@pytest.mark.parametrize("backprop", first_alone("exact", "reversible"))
def test_torch_export_computes_the_same_bits(tmp_path, backprop):
    network = saved(tmp_path / "net", "hamiltonian_digits", backprop=backprop, channels=POOLED)
    exported = export(tmp_path / "net", tmp_path / "net.pt2", kind="torch-export")
    assert exported["largest_relative_difference"] == 0
    files = {"class_names.json": ""}
    with export_module._quiet_torch():
        score = torch.export.load(tmp_path / "net.pt2", extra_files=files).module()
    assert json.loads(files["class_names.json"]) == ["0", "1", "2"]
    with torch.no_grad():
        for shape in SHAPES:
            pixels = images(*shape)
            assert torch.equal(score(pixels), network(network.preprocess(pixels)))


@pytest.mark.parametrize(
    ("preprocessing", "shapes"),
    [
        pytest.param(
            pdecnn.Preprocessing(size=(12, 10)),
            [(1, 2, 3), (2, 12, 10), (3, 31, 7), (2, 24, 20)],
            id="resized",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            pdecnn.Preprocessing(standardize="dataset", mean=(0.4, 0.5), std=(0.2, 0.3), pooling=2),
            [(1, 8, 8), (3, 10, 22)],
            id="pooled",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            pdecnn.Preprocessing(standardize="none"), SHAPES, id="plain", marks=pytest.mark.slow
        ),
    ],
)
def test_the_preprocessing_is_exported_too(tmp_path, preprocessing, shapes):
    network = saved(tmp_path / "net", "parabolic_digits", preprocessing)
    export(tmp_path / "net", tmp_path / "net.onnx", kind="onnx")
    for shape in shapes:
        pixels = images(*shape)
        assert_near(onnx_scores(tmp_path / "net.onnx", pixels), network, pixels)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["onnx", "torch-export"])
@pytest.mark.parametrize(("model", "dimension"), [("signals", 1), ("volumes", 3)])
def test_signals_and_volumes(tmp_path, kind, model, dimension):
    saved(tmp_path / "net", f"hamiltonian_{model}")
    file = tmp_path / f"net{export_module.SUFFIXES[kind]}"
    exported = export(tmp_path / "net", file, kind=kind)
    assert exported["pixels"] == "float32"
    assert len(exported["input_axes"]) == dimension + 2
    assert file.is_file()


def test_promise_29_a_mismatch_deletes_the_file(tmp_path, capsys, monkeypatch):
    saved(tmp_path / "net", "parabolic_digits")
    file = tmp_path / "net.pt2"
    file.write_bytes(b"an older export")
    forward = PixelNetwork.forward
    monkeypatch.setattr(
        PixelNetwork, "forward", lambda self, pixels: 1.0001 * forward(self, pixels)
    )
    done = call(capsys, monkeypatch, "export", tmp_path / "net", "--torch-export", file)
    assert done.code == 7
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "net.pt2: not written" in done.stderr
    assert "differ from torch's by 1.0e-04" in done.stderr
    assert files_of(tmp_path) == ["net.pt2"]
    assert file.read_bytes() == b"an older export"


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_scores_that_are_no_numbers_are_a_mismatch(tmp_path, wrong):
    network = saved(tmp_path / "net", "parabolic_digits")
    with pytest.raises(ExportError, match="differ"):
        export_module._compare(
            network, lambda pixels: torch.full((len(pixels), 3), wrong), torch.uint8, tmp_path
        )


@pytest.mark.slow
def test_scores_that_are_all_zero_can_be_compared(tmp_path):
    network = saved(tmp_path / "net", "parabolic_digits")
    with torch.no_grad():
        network.classifier.weight.zero_()
        network.classifier.bias.zero_()
    network.save_pretrained(tmp_path / "net")
    found = export(tmp_path / "net", tmp_path / "a.pt2", kind="torch-export")
    assert found["largest_relative_difference"] == 0


def test_what_torch_cannot_export_is_one_clear_error(tmp_path, monkeypatch):
    def data_dependent(values):
        return values * int(values.sum().item() > 0)

    # Other tests ask which activations there are.
    monkeypatch.setattr("pdecnn.pde.activations._ACTIVATIONS", dict(_ACTIVATIONS))
    pdecnn.register_activation(pdecnn.Activation(name="data_dependent", function=data_dependent))
    saved(tmp_path / "net", "parabolic_digits", activation="data_dependent")
    with pytest.raises(ExportError, match="torch cannot export this network as torch-export"):
        export(tmp_path / "net", tmp_path / "net.pt2", kind="torch-export")
    assert files_of(tmp_path) == []


@pytest.mark.parametrize("missing", export_module.ONNX_PACKAGES)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    tmp_path, capsys, monkeypatch, missing
):
    monkeypatch.setattr(export_module, "find_spec", lambda name: None if name == missing else name)
    saved(tmp_path / "net", "parabolic_digits")
    file = tmp_path / "net.onnx"
    done = call(capsys, monkeypatch, "export", tmp_path / "net", "--onnx", file)
    assert done.code == 2
    assert done.stderr == f"pdecnn: --onnx needs {missing}; install with: pip install {missing}\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "pass one of --onnx FILE and --torch-export FILE"),
        (["--onnx", "a.onnx", "--torch-export", "a.pt2"], "pass one of"),
        (["--onnx", "a.pt2"], "must end in .onnx"),
        (["--torch-export", "a.onnx"], "must end in .pt2"),
        (["--onnx", "nowhere/a.onnx"], "nowhere: no such folder"),
        (["--onnx", "folder.onnx"], "is a folder"),
        (["--onnx", "a.onnx", "--pixels", "uint16"], "did you mean 'uint8'"),
    ],
)
def test_bad_options_are_refused_before_anything_is_read(
    tmp_path, capsys, monkeypatch, options, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.onnx").mkdir()
    done = call(capsys, monkeypatch, "export", "no such run", *options)
    assert done.code == 2
    assert message in done.stderr
    assert files_of(tmp_path) == []


def test_a_folder_that_takes_no_file_is_named(tmp_path, monkeypatch):
    def refuse(*arguments):
        raise PermissionError(13, "Permission denied")

    saved(tmp_path / "net", "parabolic_digits")
    monkeypatch.setattr("os.open", refuse)
    with pytest.raises(ConfigError, match=r"cannot be written to \(Permission denied\)"):
        export(tmp_path / "net", tmp_path / "a.pt2", kind="torch-export")


@pytest.mark.parametrize("kind", first_alone("torch-export", "onnx"))
def test_a_full_disk_is_one_line_and_leaves_the_file_of_before(tmp_path, kind):
    name = f"a{export_module.SUFFIXES[kind]}"
    saved(tmp_path / "net", "parabolic_digits")
    (tmp_path / name).write_bytes(b"before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # As on a full disk: writing more raises OSError, here "File too large".
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, limits[1]))
    try:
        with pytest.raises(ConfigError, match=r"cannot be written to \(File too large\)"):
            export(tmp_path / "net", tmp_path / name, kind=kind)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / name).read_bytes() == b"before"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["net", name])


def test_what_has_no_twin_is_refused(tmp_path):
    saved(tmp_path / "exact", "hamiltonian_digits", backprop="exact")
    with pytest.raises(ConfigError, match="has no ONNX twin; use --torch-export"):
        export(tmp_path / "exact", tmp_path / "a.onnx", kind="onnx")
    saved(tmp_path / "double", "parabolic_digits").double().save_pretrained(tmp_path / "double")
    with pytest.raises(ConfigError, match=r"only float32 .* found torch.float64"):
        export(tmp_path / "double", tmp_path / "a.onnx", kind="onnx")
    with pytest.raises(ConfigError, match="kind of export"):
        export(tmp_path / "double", tmp_path / "a.onnx", kind="tflite")
    assert files_of(tmp_path) == []


def test_the_command_says_what_the_file_takes_and_gives(tmp_path, capsys, monkeypatch):
    saved(tmp_path / "net", "parabolic_digits", pdecnn.Preprocessing(pooling=2))
    file = tmp_path / "net.pt2"
    done = call(capsys, monkeypatch, "export", tmp_path / "net", "--torch-export", file)
    assert done.code == 0, done.stderr
    assert done.stderr == ""
    for text in (
        f"{file}: written and compared with torch",
        "uint8 pixels (batch, 2, height, width); height and width at least 4 and a multiple of 2",
        "scores (batch, 3)",
        "differs by at most 0.0e+00 of the largest score on 4 batches",
    ):
        assert text in done.stdout


@pytest.mark.parametrize("kind", first_alone("torch-export", "onnx"))
def test_who_may_read_an_export_is_for_the_umask_to_say(tmp_path, kind):
    name = f"a{export_module.SUFFIXES[kind]}"
    saved(tmp_path / "net", "parabolic_digits")
    with user_mask(0o027):  # neither the usual one nor that of a private file
        export(tmp_path / "net", tmp_path / name, kind=kind)
    assert mode(tmp_path / name) == 0o640
