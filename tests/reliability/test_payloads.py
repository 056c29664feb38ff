"""Promises 9, 11 and 13: a pickle put in place of any file that is read never runs."""

import io
import json
import pickle
import shutil
import tarfile
import zipfile
from functools import partial

import numpy as np
import pytest
import torch

import pdecnn
from pdecnn.data.image_file import read_image
from pdecnn.data.published import CIFAR10, CIFAR10_PYTHON, CIFAR100_PYTHON, STL10
from pdecnn.data.registry import read_dataset, recognize
from pdecnn.errors import CheckpointError, ConfigError, DataError
from pdecnn.learning.checkpoint import FILES
from pdecnn.networks.foreign import take_foreign_weights
from pdecnn.reports.bench import write_bench
from pdecnn.reports.paper_results import read_result
from pdecnn.runs.config import read_settings
from pdecnn.runs.queue import is_complete
from pdecnn.runs.runs import Run
from tests.image_folders import write_folder
from tests.manifests import write_manifest
from tests.published_data import write_archive, write_version
from tests.runs import Killed, Recorder, call, small_config, small_options

OURS = (ConfigError, DataError, CheckpointError)


class Payload:
    """Unpickling it writes a file: the mark that it ran."""

    def __init__(self, mark):
        self.mark = str(mark)

    def __reduce__(self):
        return open, (self.mark, "w")


def plain(payload):
    return pickle.dumps(payload, protocol=2)


def framed(payload):
    return pickle.dumps({"data": payload, "labels": [0], "x": payload}, protocol=4)


def torch_file(payload):
    stream = io.BytesIO()
    torch.save({"weight": payload}, stream)
    return stream.getvalue()


def old_torch_file(payload):
    stream = io.BytesIO()
    torch.save({"weight": payload}, stream, _use_new_zipfile_serialization=False)
    return stream.getvalue()


def npy(payload):
    stream = io.BytesIO()
    np.save(stream, np.array([payload, 1], dtype=object), allow_pickle=True)
    return stream.getvalue()


def npz(payload):
    stream = io.BytesIO()
    objects = np.array([payload, 1], dtype=object)
    np.savez(stream, x=objects, y=np.arange(2), class_names=objects)
    return stream.getvalue()


def zipped_pickle(payload):
    """An archive of arrays whose members are bare pickles."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name in ("x.npy", "y.npy"):
            archive.writestr(name, pickle.dumps(payload))
    return stream.getvalue()


FORMS = (plain, framed, torch_file, old_torch_file, npy, npz, zipped_pickle)


# ------------------------------------------------------------------ every place a file is read


def published(version, name, content, folder):
    place = write_version(folder, version)
    (place / name).write_bytes(content)
    read_dataset("stl10" if version is STL10 else f"cifar{version.num_classes}", folder)


def in_archive(version, name, content, folder):
    """The archive has no other file of that name."""
    path = folder / version.archive
    write_archive(path, version)
    unpacked = {}
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            if member.isreg():
                unpacked[member.name] = archive.extractfile(member).read()
    unpacked[f"{version.folder}/{name}"] = content
    with tarfile.open(path, "w:gz", format=tarfile.GNU_FORMAT) as archive:
        for member_name, member_content in unpacked.items():
            member = tarfile.TarInfo(member_name)
            member.size = len(member_content)
            archive.addfile(member, io.BytesIO(member_content))
    read_dataset(f"cifar{version.num_classes}", folder)


def as_archive(content, folder):
    (folder / CIFAR10.archive).write_bytes(content)
    read_dataset("cifar10", folder)


def array_file(suffix, content, folder):
    path = folder / f"data{suffix}"
    path.write_bytes(content)
    recognize(path)
    read_dataset("arrays", path)


def array_folder(name, content, folder):
    np.save(folder / "x.npy", np.zeros((4, 1, 8), np.float32))
    np.save(folder / "y.npy", np.arange(4) % 2)
    (folder / name).write_bytes(content)
    read_dataset("arrays", folder)


def image_folder(content, folder):
    paths = write_folder(folder, 8)
    paths[0].write_bytes(content)
    read_dataset("images", folder, channels=3, size=16)


def image(content, folder):
    (folder / "image.png").write_bytes(content)
    read_image(folder / "image.png", 3)


def toml(content, folder):
    (folder / "recipe.toml").write_bytes(content)
    read_settings(folder / "recipe.toml")


def bench(content, folder):
    (folder / "speed.json").write_bytes(content)
    write_bench({"format_version": 4, "parts": {}}, folder)


def weights(name, manifest, content, folder):
    """A folder of `save_pretrained`, with a manifest that fits the payload or with none."""
    pdecnn.create_model("hamiltonian_digits", channels=(2, 2)).save_pretrained(folder)
    (folder / name).write_bytes(content)
    if name != "manifest.json":
        (folder / "manifest.json").unlink()
    if manifest:
        write_manifest(folder, ("config.json", "model.safetensors"))
    pdecnn.Network.from_pretrained(folder)


def foreign(content, folder):
    (folder / "weights.pt").write_bytes(content)
    network = pdecnn.create_model("hamiltonian_digits", channels=(2, 2))
    take_foreign_weights(network, folder / "weights.pt")


READERS = {
    "CIFAR python batch": partial(published, CIFAR10_PYTHON, "data_batch_2"),
    "CIFAR python names": partial(published, CIFAR10_PYTHON, "batches.meta"),
    "CIFAR-100 python": partial(published, CIFAR100_PYTHON, "train"),
    "CIFAR binary batch": partial(published, CIFAR10, "data_batch_2.bin"),
    "CIFAR binary names": partial(published, CIFAR10, "batches.meta.txt"),
    "STL-10 images": partial(published, STL10, "train_X.bin"),
    "STL-10 labels": partial(published, STL10, "test_y.bin"),
    "in an archive": partial(in_archive, CIFAR10_PYTHON, "data_batch_2"),
    "as an archive": as_archive,
    "npz": partial(array_file, ".npz"),
    "safetensors": partial(array_file, ".safetensors"),
    "npy": partial(array_folder, "x.npy"),
    "npy labels": partial(array_folder, "y.npy"),
    "class names": partial(array_folder, "class_names.txt"),
    "image folder": image_folder,
    "image": image,
    "toml": toml,
    "bench": bench,
    "weights": partial(weights, "model.safetensors", False),
    "weights, verified": partial(weights, "model.safetensors", True),
    "config": partial(weights, "config.json", False),
    "config, verified": partial(weights, "config.json", True),
    "manifest": partial(weights, "manifest.json", False),
    "foreign weights": foreign,
}


@pytest.mark.parametrize("form", FORMS)
def test_the_payload_works_where_pickles_are_trusted(form, tmp_path):
    """The other tests would be worth nothing if it never ran."""
    content, mark = form(Payload(tmp_path / "ran")), tmp_path / "ran"
    if form in (torch_file, old_torch_file):
        torch.load(io.BytesIO(content), weights_only=False)["weight"].close()
    elif form in (npy, npz):
        loaded = np.load(io.BytesIO(content), allow_pickle=True)
        (loaded if form is npy else loaded["x"])[0].close()
    elif form is zipped_pickle:
        pickle.loads(zipfile.ZipFile(io.BytesIO(content)).read("x.npy")).close()
    else:
        loaded = pickle.loads(content)
        for stream in loaded.values() if isinstance(loaded, dict) else [loaded]:
            getattr(stream, "close", lambda: None)()
    assert mark.exists()


@pytest.mark.parametrize("reader", READERS)
def test_promise_09_a_payload_in_any_file_never_runs(reader, tmp_path):
    for number, form in enumerate(FORMS):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(OURS) as caught:
            READERS[reader](form(Payload(tmp_path / "ran")), folder)
        assert not (tmp_path / "ran").exists()
        if reader != "image folder":  # which has a line for each bad file
            assert "\n" not in str(caught.value)


# ------------------------------------------------------------------ every file of a run


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A run killed after its second epoch of three, with what a queue adds to one."""

    def kill(report):
        if report.epoch == 2:
            raise Killed

    folder = tmp_path_factory.mktemp("begun") / "run"
    with pytest.raises(Killed):
        pdecnn.train(
            small_config(training__epochs=3), output=folder, listener=Recorder(on_epoch=kill)
        )
    (folder / "summary.json").write_text('{"stopped": "time_limit"}')
    for name in ("training_evaluation.json", "conditions.json"):
        (folder / name).write_text("{}")
    return folder


RUN_FILES = [
    "config.json",
    "environment.json",
    "data.json",
    "metrics.jsonl",
    "timing.jsonl",
    "summary.json",
    "training_evaluation.json",
    "conditions.json",
    ".lock",
    ".holder",
    *(f"checkpoints/epoch-0002/{name}" for name in (*FILES, "manifest.json")),
]


def test_every_file_of_a_run_is_among_them(begun):
    files = {str(path.relative_to(begun)) for path in begun.rglob("*") if path.is_file()}
    known = {*RUN_FILES, "checkpoints/epoch-0002/README.md"}
    others = {name for name in files if "epoch-0001" in name or name.startswith("tensorboard/")}
    assert files - others - {name for name in files if name[:5] in ("best/", "last/")} <= known


@pytest.mark.parametrize("name", RUN_FILES)
def test_promise_09_a_payload_in_any_file_of_a_run_never_runs(name, begun, tmp_path):
    folder = shutil.copytree(begun, tmp_path / "run", symlinks=True)
    form = torch_file if name.endswith(".safetensors") else framed
    (folder / name).write_bytes(form(Payload(tmp_path / "ran")))
    if "/" in name and not name.endswith("manifest.json"):
        write_manifest((folder / name).parent, FILES)
    uses = (
        lambda: Run(folder).config,
        lambda: Run(folder).metrics,
        lambda: is_complete(folder),
        lambda: read_result(folder),
        lambda: pdecnn.load(folder),
        lambda: pdecnn.train(
            small_config(training__epochs=3), output=folder, resume=True, listener=Stop()
        ),
    )
    for use in uses:
        try:
            use()
        except (*OURS, Killed):
            pass
    assert not (tmp_path / "ran").exists()


class Stop(Recorder):
    """What is read to go on has been read by then."""

    def begin(self, folder, trainer):
        raise Killed


# ------------------------------------------------------------------ promise 9: our own formats


def test_promise_09_no_file_we_write_is_a_pickle(undisturbed):
    """Everything in a run is text, JSON or safetensors; TensorBoard's records are its own."""
    files = [path for path in undisturbed.folder.rglob("*") if path.is_file()]
    assert len(files) > 15
    for path in files:
        content = path.read_bytes()
        if "tensorboard" in path.parts:
            continue
        assert not zipfile.is_zipfile(path), path
        assert content[:1] != b"\x80", path
        if path.suffix == ".safetensors":
            length = int.from_bytes(content[:8], "little")
            assert json.loads(content[8 : 8 + length]), path
        else:
            content.decode()
            assert path.suffix in (".json", ".jsonl", ".md"), path


# ------------------------------------------------------------------ promise 11: foreign files


@pytest.fixture(scope="module")
def foreign_file(tmp_path_factory):
    torch.manual_seed(3)
    network = pdecnn.create_model("hamiltonian_digits", channels=(8, 8), num_steps=2)
    path = tmp_path_factory.mktemp("foreign") / "weights.pt"
    torch.save(network.state_dict(), path)
    return path, network


def test_promise_11_a_foreign_file_needs_the_flag(foreign_file, tmp_path, capsys, monkeypatch):
    path, network = foreign_file
    options = ("train", "--output", tmp_path / "run", "--from", path, *small_options())
    done = call(capsys, monkeypatch, *options)
    assert (done.code, done.stdout) == (5, "")
    assert "pass a run, a save_pretrained folder, or --foreign" in done.stderr
    assert not (tmp_path / "run").exists()
    seen = []

    class Look(Stop):
        def begin(self, folder, trainer):
            seen.append({k: v.clone() for k, v in trainer.network.state_dict().items()})
            raise Killed

    with pytest.raises(Killed):
        pdecnn.train(
            small_config(), output=tmp_path / "run", initial=path, foreign=True, listener=Look()
        )
    for name, tensor in network.state_dict().items():
        assert torch.equal(seen[0][name], tensor), name


@pytest.mark.parametrize("form", [torch_file, old_torch_file, plain])
def test_promise_11_a_payload_does_not_run_though_the_flag_is_given(
    form, tmp_path, capsys, monkeypatch
):
    (tmp_path / "weights.pt").write_bytes(form(Payload(tmp_path / "ran")))
    options = ("train", "--output", tmp_path / "run", "--from", tmp_path / "weights.pt")
    done = call(capsys, monkeypatch, *options, "--foreign", *small_options())
    assert done.code == 5
    assert done.stderr.startswith(f"pdecnn: {tmp_path / 'weights.pt'}: ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "run").exists()


def bomb(path):
    """A few kilobytes that unpack to a hundred megabytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}.")
        archive.writestr("archive/data/0", bytes(10**8))


def a_list(path):
    torch.save([torch.zeros(2)], path)


def numbers(path):
    torch.save({"weight": 3}, path)


def other_shapes(path):
    torch.save(pdecnn.create_model("hamiltonian_digits", channels=(4, 4)).state_dict(), path)


def with_stencil(stencil):
    """The right names and shapes, but for one tensor."""

    def make(path):
        state = pdecnn.create_model("hamiltonian_digits", channels=(8, 8)).state_dict()
        name = next(iter(state))
        torch.save({**state, name: stencil(state[name])}, path)

    return make


def endless(tensor):
    """A view of one number that claims to be 40 terabytes of them."""
    return torch.zeros(1, dtype=torch.float64).expand(10**13)


class LargeBytes:
    def __reduce__(self):
        return bytearray, (2**40,)


def large_bytes(path):
    torch.save({"weight": LargeBytes()}, path)


def short_storage(path):
    """A storage of 8 bytes of which the description says that it has 800,000."""
    stream = io.BytesIO()
    torch.save({"weight": torch.zeros(200_000)}, stream)
    with zipfile.ZipFile(stream) as whole, zipfile.ZipFile(path, "w") as archive:
        for name in whole.namelist():
            archive.writestr(name, whole.read(name)[: 8 if name.endswith("data/0") else None])


def two_descriptions(path):
    """The first is harmless; torch takes the one beside the first member."""
    stream = io.BytesIO()
    torch.save({"weight": LargeBytes()}, stream)
    with zipfile.ZipFile(stream) as whole, zipfile.ZipFile(path, "w") as archive:
        for name in sorted(whole.namelist(), key=lambda name: name.endswith("data.pkl")):
            if name.endswith("data.pkl"):
                archive.writestr("other/data.pkl", b"\x80\x02}.")
            archive.writestr(name, whole.read(name))


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (with_stencil(endless), "another architecture"),
        (with_stencil(lambda tensor: tensor.to("meta")), "more than plain tensors .*meta"),
        (with_stencil(lambda tensor: tensor.to_sparse()), "more than plain tensors .*sparse"),
        (with_stencil(lambda tensor: tensor.to(torch.complex64)), "wrong type torch.complex64"),
        (large_bytes, "more than plain tensors .*bytearray"),
        (short_storage, "cannot be read as tensors alone"),
        (two_descriptions, "is no file of torch.save"),
        (bomb, "unpacks to 100,000,"),
        (a_list, "holds no state dict"),
        (numbers, "holds no state dict"),
        (other_shapes, "another architecture"),
    ],
)
def test_promise_11_what_does_not_fit_is_one_line(make, complaint, tmp_path):
    make(tmp_path / "weights.pt")
    network = pdecnn.create_model("hamiltonian_digits", channels=(8, 8))
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with pytest.raises(CheckpointError, match=complaint) as caught:
        take_foreign_weights(network, tmp_path / "weights.pt")
    assert "\n" not in str(caught.value)
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_promise_11_a_state_dict_within_is_found_and_converted(foreign_file, tmp_path):
    _, network = foreign_file
    state = {name: tensor.double() for name, tensor in network.state_dict().items()}
    torch.save({"epoch": 3, "state_dict": state}, tmp_path / "weights.pt")
    other = pdecnn.create_model("hamiltonian_digits", channels=(8, 8), num_steps=2)
    take_foreign_weights(other, tmp_path / "weights.pt")
    for name, tensor in network.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor)
        assert other.state_dict()[name].dtype == tensor.dtype
