"""HTML put together so that no text of a run can become a part of it: tags, pictures, equations."""

import base64
import re
from collections.abc import Iterable, Sequence
from html import escape
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pdecnn.reports.charts import MOST_CHANNELS, channels_words

_VOID = ("img", "input", "meta", "col", "br")


class Markup(str):
    """Finished HTML; any other string is text, and escaped."""

    __slots__ = ()


def tag(element: str, /, *content: object, **attributes: object) -> Markup:
    """An element. `class_`, `for_` and `aria_label` for class, for and aria-label.

    An attribute that is None or False is left out, one that is True has no value.
    """
    head = element + "".join(_attribute(key, value) for key, value in attributes.items())
    if element in _VOID:
        return Markup(f"<{head}>")
    return Markup(f"<{head}>{join(content)}</{element}>")


def join(content: Iterable[object]) -> Markup:
    """Elements and texts one after the other; lists in lists are taken apart, None left out."""
    return Markup(
        "".join(
            part
            if isinstance(part, Markup)
            else join(part)
            if isinstance(part, Iterable) and not isinstance(part, str)
            else escape(str(part))
            for part in content
            if part is not None
        )
    )


def _attribute(key: str, value: object) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'


def table(
    header: Sequence[object],
    rows: Iterable[Sequence[object]],
    *,
    num_names: int = 1,
    caption: str,
    class_: str | None = None,
) -> Markup:
    """A table in a box that scrolls by itself; the first columns are names, the rest numbers.

    The caption is for those who do not see what is above it.
    """
    head = tag(
        "tr",
        [
            tag("th", cell, scope="col", class_=None if k < num_names else "n")
            for k, cell in enumerate(header)
        ],
    )
    body = [
        tag(
            "tr",
            tag("th", row[0], scope="row"),
            [
                tag("td", cell, class_=None if k < num_names else "n")
                for k, cell in enumerate(row[1:], start=1)
            ],
        )
        for row in rows
    ]
    inner = tag(
        "table",
        tag("caption", caption, class_="unseen"),
        tag("thead", head),
        tag("tbody", body),
        class_=class_,
    )
    return scrolling(inner, caption)


def scrolling(inner: Markup, label: str) -> Markup:
    """A box that can be scrolled sideways, by the keyboard too."""
    return tag("div", inner, class_="scroll", role="group", aria_label=label, tabindex="0")


def details(title: object, *content: object) -> Markup:
    """A part that can be opened and closed."""
    return tag("details", tag("summary", title), content)


def folded(parts: Iterable[Markup]) -> Markup:
    """Several `details` beside each other while they are closed."""
    return tag("div", parts, class_="folded")


def definitions(entries: Iterable[tuple[object, object]]) -> Markup:
    """Names and values; those without a value are left out."""
    pairs = [tag("div", tag("dt", name), tag("dd", value)) for name, value in entries if value]
    return tag("dl", pairs)


_LARGEST_SIDE = 128
_MOST_SAMPLES = 400
_AXES = "zyx"


def draw_sample(sample: NDArray[np.generic], label: str) -> Markup:
    """A sample (channels, *spatial): a signal as curves, a volume by a middle slice an axis."""
    if words := channels_words(sample.shape):
        label += f", {words}"
    if sample.ndim == 2:
        return _draw_signal(sample, label)
    if sample.ndim == 3:
        return _picture(sample, label, "picture")
    slices = [
        _picture(
            np.take(sample, sample.shape[axis] // 2, axis), f"{label}, middle slice in {name}", None
        )
        for axis, name in enumerate(_AXES, start=1)
    ]
    return tag("span", slices, class_="slices")


def _picture(image: NDArray[np.generic], label: str, class_: str | None) -> Markup:
    """Grey or colour; numbers other than bytes from the image's least to its greatest."""
    values = image.astype(np.float64)
    if image.dtype != np.uint8:
        values = np.nan_to_num(values, posinf=0.0, neginf=0.0)
        values = 255 * (values - values.min()) / max(float(np.ptp(values)), 1e-12)
    if len(values) not in (1, 3):
        label += f", the mean of {len(values)} channels"
    pixels = np.moveaxis(values, 0, -1) if len(values) == 3 else values.mean(0)
    picture = Image.fromarray(np.round(pixels).astype(np.uint8))
    if max(picture.size) > _LARGEST_SIDE:
        picture.thumbnail((_LARGEST_SIDE, _LARGEST_SIDE))
    stream = BytesIO()
    picture.save(stream, "PNG", optimize=True)
    width, height = picture.size
    return tag(
        "img", src=data_uri(stream.getvalue()), alt=label, width=width, height=height, class_=class_
    )


def data_uri(png: bytes) -> str:
    """The content of a PNG file as an address."""
    return "data:image/png;base64," + base64.b64encode(png).decode()


def _draw_signal(signal: NDArray[np.generic], label: str) -> Markup:
    """A curve for each of the first channels over a common height."""
    shown = np.nan_to_num(signal[:MOST_CHANNELS].astype(np.float64), posinf=0.0, neginf=0.0)
    low, reach = float(shown.min()), max(float(np.ptp(shown)), 1e-12)
    curves = []
    for k, channel in enumerate(map(_thinned, shown)):
        across = 96 * np.arange(len(channel)) / max(len(channel) - 1, 1)
        up = 62 - 60 * (channel - low) / reach
        points = "L".join(f"{x:.1f} {y:.1f}" for x, y in zip(across, up, strict=True))
        curves.append(tag("path", d=f"M{points}", class_=f"c{k}"))
    return tag("svg", curves, viewBox="0 0 96 64", role="img", aria_label=label, class_="signal")


def _thinned(channel: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of a long signal the least and the greatest value in each short stretch."""
    if len(channel) <= _MOST_SAMPLES:
        return channel
    stretches = np.array_split(channel, _MOST_SAMPLES // 2)
    return np.array([value for part in stretches for value in (part.min(), part.max())])


_PIECES = re.compile(
    r"[_^](?:\{(?P<script>(?:[^{}]|\{[^{}]*\})*)\}|(?P<one>\\[a-zA-Z]+|.))"
    r"|\\(?:mathrm|text)\{(?P<word>[^}]*)\}|(?P<calligraphic>\\mathcal\{N\})"
    r"|(?P<dropped>\\left|\\right|[&\s])|(?P<letter>[A-Za-z])|(?P<number>[0-9.()]+)"
    r"|(?P<sign>\\[a-zA-Z]+|\\,|.)"
)
_SYMBOLS = {
    r"\partial": "∂",
    r"\top": "\N{DOWN TACK}",
    r"\sigma": "\N{GREEK SMALL LETTER SIGMA}",
    r"\max": "max",
    r"\tanh": "tanh",
    r"\cdot": "·",
    r"\quad": "\u2003",
    r"\,": "\u2009",
    "=": " = ",
    "+": " + ",
    "-": " \N{MINUS SIGN} ",
    ",": ", ",
}


def equations_of(latex: str) -> list[str]:
    """The lines of an `aligned` environment that say the differential equation itself."""
    lines = latex.removeprefix("\\begin{aligned}\n").removesuffix("\n\\end{aligned}")
    return [line for line in lines.split(" \\\\\n") if line.startswith(r"\partial_t")]


def equation_to_html(latex: str) -> Markup:
    """The part of LaTeX that `diagnostics.pde_latex` writes; anything else is an error.

    Letters with what stands below and above them need no more than HTML, which looks the same
    everywhere; MathML needs a font that not every machine has.
    """
    return tag("p", _to_html(latex))


def _to_html(latex: str) -> Markup:
    parts: list[str] = []
    before = ""
    for found in _PIECES.finditer(latex):
        kind, text = str(found.lastgroup), found[0]
        if kind in ("script", "one"):
            parts.append(tag("sub" if text[0] == "_" else "sup", _to_html(found[kind])))
        elif kind == "calligraphic":
            parts.append("\N{MATHEMATICAL SCRIPT CAPITAL N}")
        elif kind == "letter":
            parts.append(tag("i", text))
        elif kind == "sign" and text not in _SYMBOLS:
            raise ValueError(f"no HTML for {text!r}")
        elif kind == "sign":
            is_first = text == "-" and before in ("", "=", "(")
            parts.append(_SYMBOLS[text].strip(" ") if is_first else _SYMBOLS[text])
        elif kind != "dropped":
            parts.append(found[kind])
        before = before if text.isspace() else text[-1]
    return join(parts)
