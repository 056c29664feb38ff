"""Charts as inline SVG, whose colours are those of the page: light, dark or printed."""

from collections.abc import Sequence
from math import ceil, floor, log10

from pdecnn.reports.charts import Chart, Series
from pdecnn.reports.html import Markup, tag


class Axis:
    """From numbers to places along one side of a chart."""

    def __init__(self, low: float, high: float, begin: float, end: float, *, log: bool) -> None:
        self.low, self.high, self.begin, self.end, self.log = low, high, begin, end, log

    def __call__(self, value: float) -> float:
        """Where a number lies."""
        low, high = self.low, self.high
        if self.log:
            value, low, high = log10(value), log10(low), log10(high)
        share = (value - low) / (high - low)
        return round(self.begin + share * (self.end - self.begin), 1)

    def ticks(self, whole: bool = False) -> list[float]:
        """Where numbers are written."""
        if self.log:
            return _decades(self.low, self.high)
        return _nice_ticks(self.low, self.high, whole=whole)


def _nice_ticks(low: float, high: float, *, whole: bool) -> list[float]:
    """Round numbers within a range."""
    rough = (high - low) / 5
    power = 10.0 ** floor(log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    if whole:
        step = max(step, 1.0)
    first = ceil(low / step - 1e-9)
    count = floor(high / step + 1e-9) - first + 1
    return [float(f"{(first + k) * step:.12g}") for k in range(count)]


def _decades(low: float, high: float) -> list[float]:
    ends = ceil(log10(low) - 1e-9), floor(log10(high) + 1e-9)
    every = max(1, ceil((ends[1] - ends[0]) / 5))
    decades = [float(f"1e{k}") for k in range(ends[0], ends[1] + 1, every)]
    if len(decades) > 2:
        return decades
    finer = [factor * 10.0**k for k in range(ends[0] - 1, ends[1] + 1) for factor in (1, 2, 5)]
    return [float(f"{value:.6g}") for value in finer if low <= value <= high]


def _plane_range(values: Sequence[float], others: Sequence[float]) -> tuple[float, float]:
    """With zero in it, and wide enough that rounding does not look like a cloud."""
    low, high = min(0.0, *values), max(0.0, *values)
    margin = 0.06 * (high - low)
    if high - low < 0.3 * (max(others) - min(others)):
        margin = 0.2 * (max(others) - min(others))
    return low - (margin or 0.5), high + (margin or 0.5)


WIDTH, HEIGHT = 400, 236
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 12, 12, 40
_MOST_MARKERS = 60
_MARKERS = ("circle", "square", "triangle", "diamond", "cross", "plus")


def draw_chart(chart: Chart) -> Markup:
    """The chart without its legend; a sentence where it has no finite number."""
    if not chart.drawn:
        said = "none" if chart.plane else "no finite numbers"
        return tag("p", f"{chart.title}: {said}.", class_="note")
    xs = [x for curve in chart.series for _, x, _ in curve.points]
    if chart.plane:
        ys = [y for curve in chart.series for _, _, y in curve.points]
        horizontal, (low, high) = _plane_range(xs, ys), _plane_range(ys, xs)
    else:
        margin = 0.03 * (max(xs) - min(xs)) or max(0.5, 0.03 * abs(max(xs)))
        horizontal = min(xs) - margin, max(xs) + margin
        low, high = chart.y_range
    up = Axis(low, high, HEIGHT - _BOTTOM, _TOP, log=chart.is_log)
    longest = max((len(_written(value, chart)) for value in up.ticks()), default=0)
    across = Axis(*horizontal, max(_LEFT, 26 + 7 * longest), WIDTH - _RIGHT, log=False)
    parts: list[object] = [_frame(across, up, chart)]
    parts += [_rule(across(x), _TOP, across(x), HEIGHT - _BOTTOM, "rule") for x in chart.lines]
    if chart.plane:
        parts.append(_rule(across(0), _TOP, across(0), HEIGHT - _BOTTOM, "level"))
        for curve in chart.series:
            dots = "".join(f"M{across(x):g} {up(y):g}h0" for _, x, y in curve.points)
            parts.append(tag("path", d=dots, class_=f"dots c{curve.colour}"))
    elif chart.level is not None:
        parts.append(_rule(across.begin, up(chart.level), across.end, up(chart.level), "level"))
    if not chart.plane:
        parts += [_curve(curve, across, up, chart) for curve in chart.drawn]
    return tag(
        "svg",
        parts,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=chart.title,
        class_="chart",
    )


def figure(chart: Chart) -> Markup:
    """The chart below its title and above what its curves are."""
    return tag("figure", tag("figcaption", chart.title), draw_chart(chart), legend(chart))


def legend(chart: Chart) -> Markup:
    """What the curves are, each with a piece of itself."""
    items = []
    for entry in chart.series:
        line = _rule(1, 7, 27, 7, "curve" + (" dashed" if entry.dashed else ""))
        shape = "circle" if chart.plane else _MARKERS[entry.colour]
        sample = [line if entry.line else None, _marker(shape, 14, 7)]
        picture = tag("svg", sample, viewBox="0 0 28 14", aria_hidden="true", class_="key")
        items.append(tag("li", picture, tag("span", entry.label), class_=f"c{entry.colour}"))
    return tag("ul", items, class_="legend")


def _frame(across: Axis, up: Axis, chart: Chart) -> list[Markup]:
    left, right = across.begin, across.end
    bottom, middle = HEIGHT - _BOTTOM, (_TOP + HEIGHT - _BOTTOM) / 2
    parts = []
    for value in up.ticks():
        y = up(value)
        parts.append(_rule(left, y, right, y, "grid"))
        parts.append(_text(left - 6, y + 4, _written(value, chart), "end"))
    for value in across.ticks(chart.whole):
        parts.append(_rule(across(value), bottom, across(value), bottom + 4, "axis"))
        parts.append(_text(across(value), bottom + 16, f"{value:g}", "middle"))
    parts.append(_rule(left, bottom, right, bottom, "axis"))
    parts.append(_text((left + right) / 2, HEIGHT - 5, chart.x_label, "middle"))
    turned = f"rotate(-90 12 {middle:g})"
    parts.append(
        tag("text", chart.y_label, x="12", y=f"{middle:g}", class_="middle", transform=turned)
    )
    return parts


def _written(value: float, chart: Chart) -> str:
    return f"{100 * value:g}%" if chart.percent else f"{value:g}"


def _curve(curve: Series, across: Axis, up: Axis, chart: Chart) -> Markup:
    points = curve.points
    path, before = "", None
    for k, x, y in points:
        path += f"{'L' if before == k - 1 else 'M'}{across(x):g} {up(y):g}"
        before = k
    every = ceil(len(points) / _MOST_MARKERS) if points else 1
    shown = [p for k, p in enumerate(points) if k % every == 0 or p[0] == curve.starred]
    markers = []
    for k, x, y in shown:
        value = f"{y:.2%}" if chart.percent else f"{y:.4g}"
        said = tag("title", f"{curve.label}, {chart.x_label} {x:g}: {value}")
        starred = k == curve.starred
        shape = _marker("star" if starred else _MARKERS[curve.colour], across(x), up(y))
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
