"""How figures look: told apart without red and green, and in grey, with labels at the lines instead of legends."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont
from matplotlib.ft2font import FT2Font

# Okabe and Ito's colours stay apart in every common kind of colour blindness, line styles and markers in grey too
SOURCE, TARGET, TRUTH = "#0072B2", "#D55E00", "#000000"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")
STYLES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
COLOUR_MAP = "cividis"

_SETTINGS: Any = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": "medium",
    "font.size": 10,
    "grid.alpha": 0.3,
    "lines.linewidth": 1.6,
    "svg.fonttype": "path",  # the page brings no fonts
    "svg.hashsalt": "autodial",  # the same figure is the same file
    "text.parse_math": False,  # names are names, whatever dollars they hold
}
_TEXT = "#1a1a1a"
_DOTS_PER_INCH = 200
_LINE_HEIGHT = 0.17
"""Inches from one label at a line's end to the next."""
_SHORT = 28
"""Characters that a label keeps of a name."""


@dataclass(frozen=True)
class Picture:
    """A drawn figure, as an SVG file and as a PNG of 200 dots per inch."""

    svg: bytes
    png: bytes


@dataclass(frozen=True)
class EndLabel:
    """What to write at a line's end: at height `y` of its axes' data, led to by a line of its colour."""

    text: str
    y: float
    colour: Any


@contextmanager
def figure_style() -> Iterator[None]:
    """Figures that are made and saved inside look as this module says."""
    with matplotlib.rc_context(_SETTINGS):
        yield


def new_figure(width: float, height: float, layout: Literal["constrained", "compressed"] = "constrained") -> Figure:
    """An empty figure of that size in inches, in nobody's list of open figures; compressed is for square axes."""
    figure = Figure(figsize=(width, height), layout=layout)
    FigureCanvasAgg(figure)
    return figure


def picture(figure: Figure) -> Picture:
    """Save a figure in both forms, without dates in them."""
    files = {}
    for kind, metadata in (("svg", {"Date": None}), ("png", {"Software": None})):
        file = io.BytesIO()
        figure.savefig(file, format=kind, dpi=_DOTS_PER_INCH, metadata=metadata)
        files[kind] = file.getvalue()
    return Picture(files["svg"], files["png"])


def line_style(index: int) -> dict[str, Any]:
    """Colour and dashes of line number `index` of an axes; they differ for the first 28."""
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": STYLES[index % len(STYLES)]}


def label_ends(axes: Axes, labels: Sequence[EndLabel]) -> None:
    """Write labels to the right of an axes, at the height of what they name, moved apart where they would overlap.

    Labels at NaN are left out. The axes' limits must stand: call it last.
    """
    labels = [label for label in labels if not np.isnan(label.y)]
    low, high = axes.get_ylim()
    transform = axes.transScale + axes.transLimits
    heights = [float(transform.transform((axes.get_xlim()[0], min(max(label.y, low), high)))[1]) for label in labels]
    inches = axes.figure.bbox.height / axes.figure.dpi
    step = _LINE_HEIGHT / (0.8 * inches)
    for label, height, place in zip(labels, heights, _apart(heights, step), strict=True):
        axes.annotate(
            drawable(label.text),
            xy=(1, height),
            xytext=(1.06, place),
            xycoords="axes fraction",
            textcoords="axes fraction",
            color=_TEXT,  # small letters in most of the colours would be hard to read
            fontsize="small",
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": label.colour,
                "linewidth": 1.2,
                "relpos": (0, 0.5),
                "shrinkA": 2,
                "shrinkB": 0,
            },
        )


def _apart(heights: Sequence[float], step: float) -> list[float]:
    """Heights in [0, 1] moved as little as needed for `step` between each two, in the same order."""
    order = np.argsort(heights, kind="stable")
    groups: list[list[float]] = []  # of labels that touch, as the heights that they would have
    for wish in (heights[i] for i in order):
        groups.append([wish])
        while len(groups) > 1 and _lowest(groups[-2], step) + step * len(groups[-2]) > _lowest(groups[-1], step):
            groups[-2:] = [groups[-2] + groups[-1]]
    places = np.empty(len(heights))
    places[order] = [_lowest(group, step) + step * i for group in groups for i in range(len(group))]
    return [float(place) for place in places]


def _lowest(group: Sequence[float], step: float) -> float:
    """Where a group of touching labels starts: its middle is that of its heights, as far as the axes reach."""
    length = step * (len(group) - 1)
    return max(0.0, min(float(np.mean(group)) - length / 2, 1 - length))


def shortened(name: str, length: int = _SHORT) -> str:
    """A name cut in its middle to that many characters."""
    if len(name) <= length:
        return name
    head = (length - 1) // 2
    return f"{name[:head]}\N{HORIZONTAL ELLIPSIS}{name[head + 1 - length :]}"


def drawable(name: str) -> str:
    """A name with a replacement character for each that matplotlib's font lacks."""
    return "".join(letter if ord(letter) in _letters() else "\N{REPLACEMENT CHARACTER}" for letter in name)


def is_drawable(name: str) -> bool:
    """Whether matplotlib's font has every character of a name."""
    return all(ord(letter) in _letters() for letter in name)


@cache
def _letters() -> frozenset[int]:
    return frozenset(FT2Font(findfont("DejaVu Sans")).get_charmap())
