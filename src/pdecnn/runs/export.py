"""A trained network as one file for other programs: ONNX, or torch.export.

The file takes pixels and gives class scores, or an answer for each pixel, for any batch size and
any image size from a smallest one on; of a network that is bounded up to `certified_size`, and
resizes no images, for that size alone. It is compared with torch before it gets its name.
"""

import io
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from pdecnn.data.augmentation import cpu_generator
from pdecnn.errors import ConfigError, ExportError, system_errors_as, unknown_name
from pdecnn.files import new_file, sync_folder, temporary_beside
from pdecnn.networks.config import CLOSINGS
from pdecnn.networks.network import Network
from pdecnn.networks.pixel_network import PixelNetwork
from pdecnn.networks.preprocessing import Pixels
from pdecnn.networks.pretrained import refuse_nonfinite
from pdecnn.pde.block import Block
from pdecnn.pde.convolution import SPATIAL_AXES
from pdecnn.pde.grid import deferred_checks
from pdecnn.runs.preparation import load
from pdecnn.runs.runs import Run, Weights

TOLERANCE = 1e-5
"""The largest difference of a score from torch's, relative to the largest score of the batch."""
Kind = Literal["onnx", "torch-export"]
SUFFIXES: dict[Kind, str] = {"onnx": ".onnx", "torch-export": ".pt2"}
PIXELS: dict[Pixels, torch.dtype] = {"uint8": torch.uint8, "float32": torch.float32}
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")

Scorer = Callable[[Tensor], Tensor]


def export(
    source: str | Path | Run,
    file: str | Path,
    *,
    kind: Kind | None = None,
    weights: Weights = "best",
    pixels: Pixels | None = None,
) -> dict[str, Any]:
    """Write the network of a run or folder to a file of kind 'onnx' or 'torch-export'.

    Where the kind is not said the name of the file tells it, .onnx or .pt2.
    `pixels` is the type the file takes: 'uint8' or 'float32' in [0, 1]; if None, that of the
    training data, or where that is not known uint8 for images. Returns what there is to know of
    the file as JSON values. If its scores differ from torch's it is deleted, and an ExportError
    says so; a file that had the name before is then left alone.
    """
    file = Path(file)
    if kind is None:
        kinds = {suffix: kind for kind, suffix in SUFFIXES.items()}
        if file.suffix not in kinds:
            raise ConfigError(f"{file}: must end in {' or '.join(kinds)}, or say the kind")
        kind = kinds[file.suffix]
    _check_arguments(file, kind, pixels)
    network = load(source, weights)
    refuse_nonfinite(network, Path(source))
    _check_network(network, kind)
    if pixels is None:
        usual: Pixels = "uint8" if network.config.dimension == 2 else "float32"
        pixels = network.preprocessing.pixels or usual
    temporary = _temporary_beside(file)
    try:
        program = _trace(network, PIXELS[pixels])
        write, read = _WRITERS[kind], _READERS[kind]
        with _quiet_torch(), _named_failure(kind), _writing_to(file.parent):
            write(program, temporary, network)
        difference, shapes = _compare(network, read(temporary), PIXELS[pixels], file)
        with _writing_to(file.parent):
            with temporary.open("rb") as stream:
                os.fsync(stream.fileno())
            os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(file.parent)
    return {
        "file": str(file),
        "kind": kind,
        "pixels": pixels,
        "input_axes": ["batch", network.config.in_channels, *_sides(network)],
        "output_axes": _output_axes(network),
        "smallest_size": _smallest_size(network),
        "multiple_of": _cell(network),
        "resized_to": None if _only_size(network) else network.preprocessing.to_dict()["size"],
        "class_names": _class_names(network),
        "largest_relative_difference": difference,
        "compared_shapes": [list(shape) for shape in shapes],
    }


def _check_arguments(file: Path, kind: Kind, pixels: Pixels | None) -> None:
    if kind not in SUFFIXES:
        raise unknown_name("kind of export", kind, SUFFIXES)
    if pixels is not None and pixels not in PIXELS:
        raise unknown_name("type of pixels", pixels, PIXELS)
    if file.suffix != SUFFIXES[kind]:
        raise ConfigError(f"{file}: the file of --{kind} must end in {SUFFIXES[kind]}")
    if not file.parent.is_dir():
        raise ConfigError(f"{file.parent}: no such folder; create it first")
    if file.is_dir():
        raise ConfigError(f"{file}: is a folder; pass the name of a file")
    missing = [name for name in ONNX_PACKAGES if find_spec(name) is None]
    if kind == "onnx" and missing:
        raise ConfigError(
            f"--onnx needs {', '.join(missing)}; install with: pip install {' '.join(missing)}"
        )


def _check_network(network: Network, kind: str) -> None:
    size, largest = network.preprocessing.size, network.config.certified_size
    if size is not None and largest is not None:
        size = tuple(n // network.preprocessing.pooling for n in size)
        if any(n > most for n, most in zip(size, largest, strict=True)):
            raise ConfigError(
                f"images are resized to {size}, more than network.certified_size={largest}, for "
                f"which the steps are stable; set certified_size to that before training"
            )
    dtypes = {weight.dtype for weight in network.parameters()}
    if dtypes != {torch.float32}:
        raise ConfigError(
            f"only float32 networks can be exported, found {', '.join(sorted(map(str, dtypes)))}; "
            f"save it anew with network.float().save_pretrained(FOLDER)"
        )
    if kind == "onnx" and network.config.backprop == "exact":
        raise ConfigError(
            "a network of backprop='exact' rounds its state to a grid, where the last bit of "
            "another program's convolution decides between neighbours: it has no ONNX twin; use "
            "--torch-export, or save it with backprop='reversible' in its config"
        )


def _axes(network: Network) -> list[str]:
    return SPATIAL_AXES[network.config.dimension].split(", ")


def _only_size(network: Network) -> list[int]:
    """The length of sounds; the largest images for which the network is bounded, where it neither
    resizes them nor is bounded for all."""
    config, preprocessing = network.config, network.preprocessing
    if preprocessing.rate is not None and preprocessing.size is not None:
        return list(preprocessing.size)
    if config.is_field and config.opening != "bounded":  # stable steps of fields are for any size
        return []
    if config.certified_size is None or preprocessing.size is not None:
        return []
    return [n * preprocessing.pooling for n in config.certified_size]


def _cell(network: Network) -> int:
    """What image sides must be a multiple of: a graph pads nothing for levels."""
    config, preprocessing = network.config, network.preprocessing
    if preprocessing.size:
        return 1
    return preprocessing.pooling * (config.cell if config.connector == "invertible" else 1)


def _smallest_size(network: Network) -> int:
    """The smallest image side: torch.export needs two pixels an axis wherever a size is free."""
    if only := _only_size(network):
        return min(only)
    if network.preprocessing.size:
        return 2
    return 2 * max(network.config.smallest_size * network.preprocessing.pooling, _cell(network))


def _sides(network: Network) -> list[int] | list[str]:
    return _only_size(network) or _axes(network)


def _output_axes(network: Network) -> list[int | str]:
    """Numbers for each sample, or of a field for each pixel."""
    numbers = network.num_classes or network.num_features
    return ["batch", numbers, *(_sides(network) if network.config.is_field else ())]


def _class_names(network: Network) -> list[str]:
    """None where the field is an image."""
    if network.config.classifier in CLOSINGS[1:]:
        return []
    return list(network.preprocessing.class_names or map(str, range(network.num_classes)))


def _trace(network: Network, dtype: torch.dtype) -> ExportedProgram:
    """The graph of the network with its preprocessing, for any batch and image size."""
    module, cell, smallest = PixelNetwork(network), _cell(network), _smallest_size(network)
    sizes: dict[int, Any] = {0: Dim("batch", min=1)}
    only = _only_size(network)
    for axis, name in enumerate([] if only else _axes(network), start=2):
        cells = Dim(name if cell == 1 else f"{name}_cells", min=smallest // cell)
        sizes[axis] = cells if cell == 1 else cell * cells
    # Sides that are neither equal nor a size of the network, lest one be taken for the other.
    sides = only or [smallest + (5 + 2 * axis) * cell for axis in range(network.config.dimension)]
    example = torch.zeros(3, network.config.in_channels, *sides).to(dtype)
    # The check of the grid's range waits for a number, which a graph cannot.
    with torch.no_grad(), deferred_checks(), _quiet_torch(), _named_failure("torch-export"):
        module(example)  # makes the constants it keeps, which must not be those of a trace
        return torch.export.export(module, (example,), dynamic_shapes=(sizes,))


def _write_onnx(program: ExportedProgram, path: Path, network: Network) -> None:
    from onnxscript import ir

    result = torch.onnx.export(
        program, input_names=["pixels"], output_names=["scores"], dynamo=True, verbose=False
    )
    assert result is not None
    result.model.metadata_props["class_names"] = json.dumps(_class_names(network))
    graph = result.model.graph
    graph.inputs[0].shape = ir.Shape(["batch", network.config.in_channels, *_sides(network)])
    graph.outputs[0].shape = ir.Shape(_output_axes(network))
    result.save(path, external_data=False)


def _read_onnx(path: Path) -> Scorer:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def score(pixels: Tensor) -> Tensor:
        return torch.from_numpy(session.run(["scores"], {"pixels": pixels.numpy()})[0])

    return score


def _write_program(program: ExportedProgram, path: Path, network: Network) -> None:
    files = {"class_names.json": json.dumps(_class_names(network))}
    # By way of memory: on a full disk torch's own writer ends the process, not just the export.
    content = io.BytesIO()
    torch.export.save(program, content, extra_files=files)
    path.write_bytes(content.getbuffer())


def _read_program(path: Path) -> Scorer:
    with _quiet_torch():
        return torch.export.load(path).module()


_WRITERS = {"onnx": _write_onnx, "torch-export": _write_program}
_READERS = {"onnx": _read_onnx, "torch-export": _read_program}


@torch.no_grad()
def _compare(
    network: Network, score: Scorer, dtype: torch.dtype, file: Path
) -> tuple[float, list[tuple[int, ...]]]:
    """The largest relative difference on random batches, and their shapes; or an ExportError."""
    generator = cpu_generator("exported network")
    shapes, tolerance = _random_shapes(network, generator), _tolerance(network)
    largest = 0.0
    for shape in shapes:
        pixels = torch.rand(shape, generator=generator)
        pixels[1:2] *= 0.2  # faint: below the smallest deviation one divides by, if small
        pixels = (pixels * 255).to(dtype) if dtype == torch.uint8 else pixels
        wanted = network(network.preprocess(pixels))
        found = score(pixels)
        largest_score = float(wanted.abs().max()) or 1.0  # all scores may be zero
        difference = float((found - wanted).abs().max()) / largest_score
        if found.shape != wanted.shape or not difference <= tolerance:
            raise ExportError(
                f"{file}: not written: on pixels of shape {shape} its scores differ from torch's "
                f"by {difference:.1e} of the largest, more than {tolerance:.0e}"
            )
        largest = max(largest, difference)
    return largest, shapes


def _tolerance(network: Network) -> float:
    """On a grid other kernels may round to its next point: 2^-bits, which later steps enlarge."""
    grids = [block.grid for block in network.modules() if isinstance(block, Block)]
    return max(TOLERANCE, *(32 * 2.0**-grid.bits for grid in grids if grid is not None), 0.0)


def _random_shapes(network: Network, generator: torch.Generator) -> list[tuple[int, ...]]:
    """The smallest size, the size of the preprocessing if it has one, and random ones."""
    cell, smallest = _cell(network), _smallest_size(network)
    channels, dimension = network.config.in_channels, network.config.dimension
    if only := _only_size(network):
        return [(batch, channels, *only) for batch in (1, 2, 7)]
    shapes: list[tuple[int, ...]] = [(2, channels, *(smallest,) * dimension)]
    if network.preprocessing.size is not None:
        shapes.append((2, channels, *network.preprocessing.size))
    most = {1: 64, 2: 32, 3: 8}[dimension]
    for batch in (1, 3, 7):
        cells = torch.randint(0, most, (dimension,), generator=generator).tolist()
        shapes.append((batch, channels, *(smallest + cell * n for n in cells)))
    return shapes


def _temporary_beside(file: Path) -> Path:
    # What writes and reads it goes by its suffix.
    temporary = Path(f"{temporary_beside(file)}{file.suffix}")
    with _writing_to(file.parent):
        os.close(new_file(temporary))
    return temporary


def _writing_to(folder: Path) -> AbstractContextManager[None]:
    problem = f"{folder}: cannot be written to"
    return system_errors_as(ConfigError, problem, "pass a file elsewhere")


@contextmanager
def _named_failure(kind: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise ExportError(f"torch cannot export this network as {kind}: {error}") from error


@contextmanager
def _quiet_torch() -> Iterator[None]:
    """Without what torch says of itself: its own deprecations, packages it does not need."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"`isinstance\(treespec", FutureWarning)
            yield
    finally:
        logger.setLevel(level)
