"""Charts as inline SVG, whose colours are those of the page: light, dark or printed."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from pdecnn.reports.page_axes import Axis, padded, percent_range, plane_range, value_range
from pdecnn.reports.page_html import Markup, tag

WIDTH, HEIGHT = 400, 236
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 12, 12, 40
_MOST_MARKERS = 60
_LARGEST = 1e300  # beyond it an axis overflows
_LOG_FROM_RATIO = 10.0
_MARKERS = ("circle", "square", "triangle", "diamond", "cross", "plus")


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """A curve; None among its values, or what is no finite number, is a gap."""

    label: str
    xs: Sequence[float]
    ys: Sequence[float | None]
    colour: int
    """One of the page's colours."""
    dashed: bool = False
    line: bool = True
    """False: points only."""
    marker: int | None = None
    """One of six shapes; None: the colour's own."""
    starred: int | None = None
    """The place of a point to be marked."""

    @property
    def points(self) -> list[tuple[int, float, float]]:
        """Place, x and y of what can be drawn."""
        return [
            (k, x, y)
            for k, (x, y) in enumerate(zip(self.xs, self.ys, strict=True))
            if y is not None and abs(y) < _LARGEST
        ]

    @property
    def shape(self) -> str:
        """The name of its marker."""
        return _MARKERS[(self.colour if self.marker is None else self.marker) % len(_MARKERS)]


def draw_chart(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    y_label: str,
    percent: bool = False,
    may_be_log: bool = False,
    whole: bool = True,
    lines: Iterable[float] = (),
    level: float | None = None,
) -> Markup:
    """Curves over a common x; `lines` are vertical ones, `level` a horizontal one.

    With `may_be_log` values that differ more than tenfold get decades. `whole`: x counts.
    """
    xs = [x for curve in series for _, x, _ in curve.points]
    ys = [y for curve in series for _, _, y in curve.points]
    if not ys:
        return tag("p", f"{title}: no finite numbers.", class_="note")
    ys += [] if level is None else [level]
    log = may_be_log and min(ys) > 0 and max(ys) > _LOG_FROM_RATIO * min(ys)
    across = Axis(*padded(min(xs), max(xs)), _LEFT, WIDTH - _RIGHT, log=False)
    low, high = percent_range(ys) if percent else value_range(ys, log=log)
    up = Axis(low, high, HEIGHT - _BOTTOM, _TOP, log=log)
    write: Callable[[float], str] = (lambda v: f"{100 * v:g}%") if percent else (lambda v: f"{v:g}")
    parts: list[object] = [_frame(across, up, write, whole=whole, labels=(x_label, y_label))]
    parts += [_rule(across(x), _TOP, across(x), HEIGHT - _BOTTOM, "rule") for x in lines]
    if level is not None:
        parts.append(_rule(_LEFT, up(level), WIDTH - _RIGHT, up(level), "level"))
    parts += [_curve(curve, across, up, x_label, write_value(percent)) for curve in series]
    return _svg(title, parts)


def draw_plane(clouds: Sequence[tuple[str, Sequence[complex], int]], *, title: str) -> Markup:
    """Complex numbers in the plane, a colour for each cloud, with both axes."""
    values = [value for _, cloud, _ in clouds for value in cloud]
    if not values:
        return tag("p", f"{title}: none.", class_="note")
    horizontal = plane_range([v.real for v in values], [v.imag for v in values])
    vertical = plane_range([v.imag for v in values], [v.real for v in values])
    across = Axis(*horizontal, _LEFT, WIDTH - _RIGHT, log=False)
    up = Axis(*vertical, HEIGHT - _BOTTOM, _TOP, log=False)
    labels = ("real part (> 0: grows)", "imaginary part")
    parts: list[object] = [_frame(across, up, "{:g}".format, whole=False, labels=labels)]
    parts.append(_rule(across(0), _TOP, across(0), HEIGHT - _BOTTOM, "level"))
    for _, cloud, colour in clouds:
        dots = "".join(f"M{across(v.real):g} {up(v.imag):g}h0" for v in cloud)
        parts.append(tag("path", d=dots, class_=f"dots c{colour}"))
    return _svg(title, parts)


def legend(entries: Iterable[Series]) -> Markup:
    """What the curves are, each with a piece of itself."""
    items = []
    for entry in entries:
        line = _rule(1, 7, 27, 7, "curve" + (" dashed" if entry.dashed else ""))
        sample = [line if entry.line else None, _marker(entry.shape, 14, 7)]
        picture = tag("svg", sample, viewBox="0 0 28 14", aria_hidden="true", class_="key")
        items.append(tag("li", picture, tag("span", entry.label), class_=f"c{entry.colour}"))
    return tag("ul", items, class_="legend")


def write_value(percent: bool) -> Callable[[float], str]:
    """How a point says its value."""
    return (lambda value: f"{value:.2%}") if percent else (lambda value: f"{value:.4g}")


def _frame(
    across: Axis, up: Axis, write: Callable[[float], str], *, whole: bool, labels: tuple[str, str]
) -> list[Markup]:
    bottom, middle = HEIGHT - _BOTTOM, (_TOP + HEIGHT - _BOTTOM) / 2
    parts = []
    for value in up.ticks():
        y = up(value)
        parts.append(_rule(_LEFT, y, WIDTH - _RIGHT, y, "grid"))
        parts.append(_text(_LEFT - 6, y + 4, write(value), "end"))
    for value in across.ticks(whole):
        parts.append(_rule(across(value), bottom, across(value), bottom + 4, "axis"))
        parts.append(_text(across(value), bottom + 16, f"{value:g}", "middle"))
    parts.append(_rule(_LEFT, bottom, WIDTH - _RIGHT, bottom, "axis"))
    parts.append(_text((_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 5, labels[0], "middle"))
    turned = f"rotate(-90 12 {middle:g})"
    parts.append(tag("text", labels[1], x="12", y=f"{middle:g}", class_="middle", transform=turned))
    return parts


def _curve(
    curve: Series, across: Axis, up: Axis, x_label: str, write: Callable[[float], str]
) -> Markup:
    points = curve.points
    path, before = "", None
    for k, x, y in points:
        path += f"{'L' if before == k - 1 else 'M'}{across(x):g} {up(y):g}"
        before = k
    every = ceil(len(points) / _MOST_MARKERS) if points else 1
    shown = [p for k, p in enumerate(points) if k % every == 0 or p[0] == curve.starred]
    markers = []
    for k, x, y in shown:
        said = tag("title", f"{curve.label}, {x_label} {x:g}: {write(y)}")
        starred = k == curve.starred
        shape = _marker("star" if starred else curve.shape, across(x), up(y))
        markers.append(tag("g", said, shape, class_="starred" if starred else None))
    line = tag("path", d=path, class_="curve" + (" dashed" if curve.dashed else ""))
    return tag("g", line if curve.line else None, markers, class_=f"c{curve.colour}")


def _marker(shape: str, x: float, y: float) -> Markup:
    """A shape about a point, by the page's style filled with the curve's colour."""
    outlines = {
        "circle": "m-3 0a3 3 0 1 0 6 0a3 3 0 1 0 -6 0",
        "square": "m-2.7 -2.7h5.4v5.4h-5.4z",
        "triangle": "m0 -3.6l3.4 6h-6.8z",
        "diamond": "m0 -3.8l3.8 3.8l-3.8 3.8l-3.8 -3.8z",
        "cross": "m-3 -3l6 6m-6 0l6 -6",
        "plus": "m-3.4 0h6.8m-3.4 -3.4v6.8",
        "star": "m0 -7l1.9 4.4 4.8 .4 -3.6 3.1 1.1 4.7 -4.2 -2.5 -4.2 2.5 1.1 -4.7 "
        "-3.6 -3.1 4.8 -.4z",
    }
    return tag("path", d=f"M{x:g} {y:g}{outlines[shape]}", class_="marker")


def _rule(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    return tag("path", d=f"M{x1:g} {y1:g}L{x2:g} {y2:g}", class_=class_)


def _text(x: float, y: float, content: str, anchor: str) -> Markup:
    return tag("text", content, x=f"{x:g}", y=f"{y:g}", class_=anchor)


def _svg(title: str, parts: Iterable[object]) -> Markup:
    return tag(
        "svg", parts, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=title, class_="chart"
    )
