"""How figures look: readable without red and green and in grey, on a desk's screen and at a phone's width."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Protocol

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont
from matplotlib.ft2font import FT2Font
from matplotlib.lines import Line2D

# Okabe and Ito's colours stay apart in every common kind of colour blindness, line styles and markers in grey too
SOURCE, TARGET, TRUTH = "#0072B2", "#D55E00", "#000000"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")
STYLES = ("-", "--", "-.", ":")
WIDE, NARROW = 7.0, 3.7
"""Widths of a figure in inches: for a desk's screen and for paper, and for a phone, where text keeps its size."""
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
    """A drawn figure as files.

    Attributes:
        svg, png: at the width WIDE; the PNG has 200 dots per inch.
        narrow: another SVG, drawn at the width NARROW.
    """

    svg: bytes
    png: bytes
    narrow: bytes


@dataclass(frozen=True)
class LineLabel:
    """A line's name, and the height of the line's end in the data of its axes."""

    text: str
    y: float
    line: Line2D


class Draw(Protocol):
    """Draws a figure."""

    def __call__(self, *, width: float) -> Figure:
        """Draw it with a width in inches, WIDE or NARROW."""


@contextmanager
def figure_style() -> Iterator[None]:
    """Figures that are made and saved inside this context look as the module says."""
    with matplotlib.rc_context(_SETTINGS):
        yield


def new_figure(width: float, height: float, layout: Literal["constrained", "compressed"] = "constrained") -> Figure:
    """An empty figure of that size in inches, outside pyplot's list of figures; "compressed" is for square axes."""
    figure = Figure(figsize=(width, height), layout=layout)
    FigureCanvasAgg(figure)
    return figure


def picture(draw: Draw) -> Picture:
    """A figure's files, without dates in them."""
    wide, narrow = draw(width=WIDE), draw(width=NARROW)
    for figure in (wide, narrow):
        figure.draw_without_rendering()
        figure.set_layout_engine(None)  # the layout stands, and each file would compute it again
    return Picture(_file(wide, "svg", {"Date": None}), _file(wide, "png", {"Software": None}),
                   _file(narrow, "svg", {"Date": None}))  # fmt: skip


def _file(figure: Figure, kind: str, metadata: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format=kind, dpi=_DOTS_PER_INCH, metadata=metadata)
    return file.getvalue()


def line_style(index: int) -> dict[str, Any]:
    """The colour and dashes of an axes' line number `index`, different for the first 28."""
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": STYLES[index % len(STYLES)]}


def label_lines(axes: Axes, labels: Sequence[LineLabel]) -> None:
    """Name lines where they end, to the right of an axes; in a narrow figure, in a legend under it.

    Labels at the right are moved apart where they would overlap. Labels at NaN are left out. The axes' limits must
    stand: call it last.
    """
    labels = [label for label in labels if not np.isnan(label.y)]
    if is_narrow(axes):
        _add_legend(axes, labels)
        return
    low, high = axes.get_ylim()
    transform = axes.transScale + axes.transLimits
    heights = [float(transform.transform((axes.get_xlim()[0], min(max(label.y, low), high)))[1]) for label in labels]
    inches = axes.figure.bbox.height / axes.figure.dpi
    step = _LINE_HEIGHT / (0.8 * inches)
    for label, height, place in zip(labels, heights, _apart(heights, step), strict=True):
        axes.annotate(
            drawable(shortened(label.text)),
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
                "color": label.line.get_color(),
                "linewidth": 1.2,
                "relpos": (0, 0.5),
                "shrinkA": 2,
                "shrinkB": 0,
            },
        )


def is_narrow(axes: Axes) -> bool:
    """Whether a figure is drawn for a phone's width."""
    return bool(axes.figure.bbox.width / axes.figure.dpi < (WIDE + NARROW) / 2)


def _add_legend(axes: Axes, labels: Sequence[LineLabel]) -> None:
    """A legend under an axes, and as much more height for its figure."""
    if not labels:
        return
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.set_figheight(figure.get_figheight() + _LINE_HEIGHT * len(labels))
    handles = [label.line for label in labels]
    names = [drawable(shortened(label.text)) for label in labels]
    figure.legend(handles, names, loc="outside lower left", fontsize="small", frameon=False, handlelength=3)


def _apart(heights: Sequence[float], step: float) -> list[float]:
    """Heights in [0, 1], in the same order, moved as little as needed to be `step` apart."""
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
    """Where a group of touching labels starts: centred on the mean of its heights, within the axes."""
    length = step * (len(group) - 1)
    return max(0.0, min(float(np.mean(group)) - length / 2, 1 - length))


def shortened(name: str, length: int = _SHORT) -> str:
    """A name of at most that many characters, cut in its middle."""
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
