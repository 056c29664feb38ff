"""Samples as pictures within the page: images and slices as PNG, signals as curves."""

import base64
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pdecnn.reports.page_html import Markup, tag

_LARGEST_SIDE = 128
_MOST_SAMPLES = 400
_MOST_CHANNELS = 4
_AXES = "zyx"


def draw_sample(sample: NDArray[np.generic], label: str) -> Markup:
    """A sample (channels, *spatial): a signal as curves, a volume by a middle slice an axis."""
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
    pixels = np.moveaxis(values, 0, -1) if len(values) == 3 else values.mean(0)
    picture = Image.fromarray(np.round(pixels).astype(np.uint8))
    if max(picture.size) > _LARGEST_SIDE:
        picture.thumbnail((_LARGEST_SIDE, _LARGEST_SIDE))
    stream = BytesIO()
    picture.save(stream, "PNG", optimize=True)
    source = "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()
    width, height = picture.size
    return tag("img", src=source, alt=label, width=width, height=height, class_=class_)


def _draw_signal(signal: NDArray[np.generic], label: str) -> Markup:
    """A curve for each of the first channels over a common height."""
    shown = np.nan_to_num(signal[:_MOST_CHANNELS].astype(np.float64), posinf=0.0, neginf=0.0)
    low, reach = float(shown.min()), max(float(np.ptp(shown)), 1e-12)
    if len(shown) < len(signal):
        label += f", the first {len(shown)} of {len(signal)} channels"
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
