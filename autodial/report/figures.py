"""The report's figures, each from plain numbers; call them inside `style.figure_style()`.

Every function takes the figure's width in inches: WIDE, or NARROW for a phone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from autodial.report.features import LayerFeatures
from autodial.report.predictions import Floats
from autodial.report.run import Curve
from autodial.report.style import (
    COLOUR_MAP,
    MARKERS,
    SOURCE,
    TARGET,
    TRUTH,
    WIDE,
    LineLabel,
    drawable,
    is_drawable,
    is_narrow,
    label_lines,
    line_style,
    new_figure,
    shortened,
)
from autodial.report.words import curve_label

_POINTS = 300
"""Points of a drawn curve; longer curves are averaged."""
_RESUMED = 20
"""Resumed starts that a figure marks."""
DRAWN_CURVES = 24
"""Curves in a figure; more would look alike."""
_LINES = 8
"""Dial layers that get a line each; more become the rows of a map."""
_NAMED = 12
"""Layers whose names fit along an axis."""
_TOO_NEAR = 0.04
"""Alphas whose names on an axis would overlap."""
_BINS = 40
_LEGIBLE = 4.0
"""Points of the smallest letters."""
_FILLED = f"{SOURCE}59"
"""The source's colour, transparent."""
SHOWN_CLASSES = 30
"""Classes in a figure of class shares; of more classes, those whose shares differ most."""
CONFUSION_CLASSES = 20
"""Rows of a confusion matrix; of more classes, those with the most errors have a row, and the others share the last."""


def draw_alphas_by_depth(alphas: Sequence[Curve], *, joint: float = 0.5, width: float = WIDE) -> Figure:
    """Alpha of each Dial layer, first and last logged, from the net's input to its output (the paper's figure).

    Args:
        joint: the alpha with which all domains have joint statistics: 1 by the number of domains.
    """
    figure = new_figure(width, 3.6)
    axes = figure.subplots()
    depth = np.arange(1, len(alphas) + 1)
    size = 7 if len(alphas) <= _NAMED else 3.5
    looks: dict[int, dict[str, Any]] = {
        0: {"color": "#777777", "marker": "s", "markerfacecolor": "none", "linestyle": "none"},
        -1: {"color": SOURCE, "marker": "o", "linewidth": 1},
    }
    labels = {}
    for place, look in looks.items():
        values = [_number(curve.values[place]) for curve in alphas]
        (line,) = axes.plot(depth, values, markersize=size, **look)
        iteration = alphas[0].iterations[place]
        labels[iteration] = LineLabel(f"at iteration {iteration:,}", values[-1], line)
    set_alpha_axis(axes, joint)
    axes.set_xlim(0.5, len(alphas) + 0.5)
    name_depths(axes, [curve.name for curve in alphas])
    label_lines(axes, list(labels.values()))
    return figure


def name_depths(axes: Axes, names: Sequence[str]) -> None:
    """Name the Dial layers, from the net's input to its output, along an axes; many have numbers."""
    if len(names) <= _NAMED:
        shown = [drawable(shortened(name, 20)) for name in names]
        crowded = sum(map(len, shown)) > (30 if is_narrow(axes) else 70)
        rotation = 0 if not crowded else 90 if is_narrow(axes) else 40
        axes.set_xticks(range(1, len(names) + 1), shown, rotation=rotation, ha="right" if rotation == 40 else "center")
        axes.set_xlabel("Dial layer, from the input to the output")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.set_xlabel("number of the Dial layer, from the input")


def draw_alphas_by_iteration(
    alphas: Sequence[Curve], resumed_at: Sequence[int], *, joint: float = 0.5, width: float = WIDE
) -> Figure:
    """Alpha by iteration: a line for each of few layers, a map of depth and iteration for many.

    Args:
        joint: as in `draw_alphas_by_depth`.
    """
    if len(alphas) > _LINES:
        return _draw_alpha_map(alphas, joint, width)
    figure = new_figure(width, 3.6)
    axes = figure.subplots()
    labels = []
    for i, curve in enumerate(alphas):
        (line,) = axes.plot(*thinned(curve), **line_style(i), **_markers(curve, i))
        labels.append(LineLabel(curve.name, _last_finite(curve), line))
    set_alpha_axis(axes, joint)
    set_iterations(axes, alphas, resumed_at)
    label_lines(axes, labels)
    return figure


def _draw_alpha_map(alphas: Sequence[Curve], joint: float, width: float) -> Figure:
    figure = new_figure(width, min(7.0, 1.5 + 0.14 * len(alphas)))
    axes = figure.subplots()
    columns = [thinned(curve) for curve in alphas]
    iterations = columns[0][0]
    image = axes.pcolormesh(
        iterations,
        np.arange(1, len(alphas) + 1),
        np.array([values for _, values in columns]),
        cmap=COLOUR_MAP,
        vmin=min([joint, *(value for _, values in columns for value in values[np.isfinite(values)])]),
        vmax=1,
        shading="nearest",
        rasterized=True,
    )
    axes.grid(False)
    axes.invert_yaxis()
    axes.set_xlabel("iteration")
    if len(alphas) <= _NAMED:
        axes.set_yticks(range(1, len(alphas) + 1), [_name(curve.name) for curve in alphas])
    else:
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.set_ylabel("depth: number of the Dial layer, from the input")
    bar = figure.colorbar(image, ax=axes, label="alpha")
    ticks = _alpha_ticks(joint, joint)
    bar.ax.set_yticks(ticks, [f"{ticks[0]:.2g} joint", *(f"{tick:.1f}" for tick in ticks[1:-1]), "1 own"])
    return figure


def draw_curves(
    curves: Sequence[Curve],
    resumed_at: Sequence[int],
    *,
    ylabel: str,
    percent: bool = False,
    log: bool = False,
    floor: float | None = None,
    width: float = WIDE,
) -> Figure:
    """Curves by iteration, those of tests with markers, a cross at the top where a value was not finite.

    Args:
        curves: with one value or more each.
        resumed_at: iterations to mark.
        ylabel: what the values are.
        percent: write 0.5 as 50%.
        log: have a logarithmic axis.
        floor: a value to draw a dotted line at, on an axis that starts at 0.
    """
    figure = new_figure(width, 3.2 if width < WIDE else max(3.2, 1 + 0.2 * len(curves)))
    axes = figure.subplots()
    labels, lost = [], []
    for i, curve in enumerate(curves):
        tested = {"marker": MARKERS[i % len(MARKERS)], "markersize": 4} if curve.kind == "test" else _markers(curve, i)
        (line,) = axes.plot(*thinned(curve), **line_style(i), **tested)
        lost += [iteration for iteration, value in curve.points() if value is None]
        labels.append(LineLabel(curve_label(curve), _last_finite(curve), line))
    if log:
        axes.set_yscale("log")
    axes.set_ylabel(ylabel)
    axes.margins(y=0.08)
    if percent:
        axes.yaxis.set_major_formatter(_percent)
    if lost:
        lost = _spread(lost)
        axes.plot(lost, [0.97] * len(lost), "x", color="black", transform=axes.get_xaxis_transform(), clip_on=False)
        place = {"xy": (1, 1.06), "ha": "right"} if is_narrow(axes) else {"xy": (1.04, 0.97), "ha": "left"}
        words = "\N{MULTIPLICATION SIGN} not finite"
        axes.annotate(words, **place, xycoords="axes fraction", va="center", fontsize="small")
    set_iterations(axes, curves, resumed_at)
    axes.autoscale_view()
    if floor is not None:
        axes.axhline(floor, color="black", linewidth=1, linestyle=":")
        axes.set_ylim(0, max(1.05, axes.get_ylim()[1]))
    axes.set_ylim(axes.get_ylim())
    label_lines(axes, labels)
    return figure


def draw_features(layer: LayerFeatures, width: float = WIDE) -> Figure:
    """Histograms of a layer's channels, of source and target, in front of the Dial layer and behind it."""
    count = len(layer.channels)
    if width < WIDE:
        figure = new_figure(width, 1.2 + 1.3 * count)
        grid = figure.subplots(count, 2, squeeze=False).T
        titled, labelled = grid[:, 0], grid[0]
    else:
        figure = new_figure(width, 3.7)
        grid = figure.subplots(2, count, squeeze=False)
        titled, labelled = grid[0], grid[:, 0]
    for column, channel in enumerate(layer.channels):
        for axes, (source, target) in zip(grid[:, column], (channel.before, channel.after), strict=True):
            _draw_histograms(axes, source, target)
    channels, places = [f"channel {channel.number}" for channel in layer.channels], ["before", "after"]
    titles, labels = (places, channels) if width < WIDE else (channels, places)
    for axes, title in zip(titled, titles, strict=True):
        axes.set_title(title)
    for axes, label in zip(labelled, labels, strict=True):
        axes.set_ylabel(f"{label}\ndensity")
    handles = [
        matplotlib.patches.Patch(facecolor=_FILLED, edgecolor=SOURCE, linewidth=1.6, label="source"),
        matplotlib.lines.Line2D([], [], color=TARGET, linestyle="--", label="target"),
    ]
    if width < WIDE:
        figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    else:
        figure.legend(handles=handles, loc="outside upper right", ncols=2, frameon=False)
    figure.suptitle(f"{_name(layer.layer)}, alpha {layer.alpha:.3f}", x=0.02, ha="left")
    return figure


def _draw_histograms(axes: Axes, source: Floats, target: Floats) -> None:
    both = np.concatenate([source, target])
    low, high = np.percentile(both, [0.5, 99.5])
    if high - low < 1e-9 * max(1.0, abs(low)):
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, _BINS + 1)
    # what lies outside of the picture counts in the densities
    heights = [np.histogram(values, edges)[0] / len(values) / (edges[1] - edges[0]) for values in (source, target)]
    axes.stairs(heights[0], edges, fill=True, facecolor=_FILLED, edgecolor=SOURCE, linewidth=1.2)
    axes.stairs(heights[1], edges, edgecolor=TARGET, linewidth=1.6, linestyle="--")
    axes.set_yticks([])
    axes.xaxis.set_major_locator(MaxNLocator(3))
    axes.tick_params(labelsize="small")
    axes.grid(False)
    axes.set_xlim(low, high)
    axes.set_ylim(bottom=0)


def draw_class_shares(names: Sequence[str], shares: Mapping[str, Floats], width: float = WIDE) -> Figure:
    """Each class's shares as points on a line of its own.

    Args:
        names: of the classes.
        shares: (classes,) numbers by what the legend says that they are shares of; the first two are compared where
            there are too many classes to show all.
    """
    chosen = classes_apart(shares)
    columns = 1 if width < WIDE else 3
    figure = new_figure(width, 1.1 + 0.2 * 3 / columns + 0.22 * len(chosen))
    axes = figure.subplots()
    place = np.arange(len(chosen))
    stacked = np.stack([values[chosen] for values in shares.values()])
    axes.hlines(place, stacked.min(0), stacked.max(0), color="#bbbbbb", linewidth=1.5, zorder=1)
    looks: list[dict[str, Any]] = [
        {"marker": "o", "color": SOURCE, "s": 42},
        {"marker": "D", "color": TARGET, "s": 34},
        {"marker": "|", "color": TRUTH, "s": 90, "linewidths": 2},
    ]
    for (what, values), look in zip(shares.items(), looks, strict=False):
        axes.scatter(values[chosen], place, label=what, zorder=2, **look)
    axes.set_yticks(place, [class_label(names, i) for i in chosen])
    axes.set_ylim(len(chosen) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(_percent)
    axes.set_xlabel("share of the images")
    axes.grid(axis="y", visible=False)
    figure.legend(loc="outside upper left", ncols=columns, frameon=False, fontsize="small")
    return figure


def classes_apart(shares: Mapping[str, Floats]) -> list[int]:
    """The classes to show, ascending: all, or those in which the first two shares differ most."""
    values = list(shares.values())
    apart = np.abs(values[0] - values[1]) if len(values) > 1 else values[0]
    return sorted(np.argsort(-apart, kind="stable")[:SHOWN_CLASSES].tolist())


@dataclass(frozen=True)
class ShownConfusion:
    """A confusion matrix of at most CONFUSION_CLASSES rows.

    Attributes:
        counts: (rows, rows) images by true and predicted class.
        classes: of each row; None for the last one, of all other classes.
    """

    counts: NDArray[np.int64]
    classes: Sequence[int | None]


def shown_confusion(counts: NDArray[np.int64]) -> ShownConfusion:
    """A confusion matrix with the classes of the fewest errors, or images, added up where there are too many."""
    return shown_confusion_of([counts])[0]


def shown_confusion_of(matrices: Sequence[NDArray[np.int64]]) -> list[ShownConfusion]:
    """Confusion matrices of the same classes, each with the same classes added up; their errors count together."""
    counts = np.sum(matrices, axis=0)
    if len(counts) <= CONFUSION_CLASSES:
        return [ShownConfusion(one, range(len(one))) for one in matrices]
    wrong = counts - np.diag(np.diag(counts))
    errors = wrong.sum(0) + wrong.sum(1)
    order = np.lexsort((-counts.sum(1), -errors))
    kept = np.sort(order[: CONFUSION_CLASSES - 1])
    group = np.full(len(counts), len(kept))
    group[kept] = np.arange(len(kept))
    shown = []
    for one in matrices:
        merged = np.zeros((len(kept) + 1,) * 2, np.int64)
        np.add.at(merged, (group[:, None], group[None, :]), one)
        shown.append(ShownConfusion(merged, [*kept.tolist(), None]))
    return shown


def draw_confusion(names: Sequence[str], shown: ShownConfusion, width: float = WIDE) -> Figure:
    """Colours are shares of a row, the true class; numbers are images, where they fit."""
    size = len(shown.counts)
    labels = confusion_labels(names, shown)
    margin = 0.075 * max(map(len, labels))
    if width < WIDE:
        side = width - margin - 0.5
        figure = new_figure(width, side + margin + 0.9)
    else:
        side = min(width - 1, 1.2 + 0.27 * size)
        figure = new_figure(side + margin + 2.2, side + (margin if margin > 0.2 else 0) + 0.7, layout="compressed")
    axes = figure.subplots()
    image = plot_confusion(axes, shown, labels, side)
    if width < WIDE:
        figure.colorbar(image, ax=axes, location="bottom", shrink=0.7, format=_percent, label="share of the true class")
    else:
        totals = shown.counts.sum(1)
        axes.set_yticklabels([f"{label} ({total:,})" for label, total in zip(labels, totals, strict=True)])
        figure.colorbar(image, ax=axes, shrink=0.7, format=_percent, label="share of the true class")
    return figure


def confusion_labels(names: Sequence[str], shown: ShownConfusion) -> list[str]:
    """What the rows of a confusion matrix are called."""
    others = len(names) - len(shown.counts) + 1
    return [f"other {others}" if i is None else class_label(names, i) for i in shown.classes]


def plot_confusion(axes: Axes, shown: ShownConfusion, labels: Sequence[str], side: float) -> AxesImage:
    """A confusion matrix in an axes whose sides have that many inches."""
    counts, size = shown.counts, len(shown.counts)
    shares = counts / np.maximum(counts.sum(1), 1)[:, None]
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="equal", interpolation="nearest")
    letters = max(5.0, min(8.3, 0.85 * 72 * side / size))
    axes.set_xticks(range(size), labels, rotation=90 if max(map(len, labels)) > 2 else 0, fontsize=letters)
    axes.set_yticks(range(size), labels, fontsize=letters)
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class (images)" if not is_narrow(axes) else "true class")
    axes.grid(False)
    axes.spines[:].set_visible(False)
    for (row, column), count in np.ndenumerate(counts):
        fitting = 0.85 * 72 * side / size / (0.62 * len(str(count)))
        if count and fitting >= _LEGIBLE:
            axes.text(
                *(column, row, f"{count}"),
                ha="center",
                va="center",
                fontsize=min(9.0, fitting),
                color="white" if shares[row, column] > 0.5 else "black",
            )
    return image


def class_label(names: Sequence[str], index: int) -> str:
    """A class's name as a figure writes it: its number where the font lacks its letters."""
    name = names[index]
    return shortened(name, 18) if is_drawable(name) else f"class {index}"


def _percent(value: float, position: float = 0) -> str:
    return f"{100 * value:.6g}%"


def _name(name: str) -> str:
    return drawable(shortened(name))


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _last_finite(curve: Curve) -> float:
    return next((value for value in reversed(curve.values) if value is not None), float("nan"))


def _markers(curve: Curve, index: int) -> dict[str, Any]:
    """Markers where there are too few points for a line to be seen."""
    return {"marker": MARKERS[index % len(MARKERS)], "markersize": 5} if len(curve.values) < 3 else {}


def thinned(curve: Curve) -> tuple[Floats, Floats]:
    """Iterations and values; a long curve becomes the means of neighbours."""
    iterations, values = np.array(curve.iterations, float), np.array([_number(value) for value in curve.values])
    if len(values) <= _POINTS:
        return iterations, values
    groups = np.array_split(np.arange(len(values)), _POINTS)
    return tuple(np.array([column[group].mean() for group in groups]) for column in (iterations, values))  # type: ignore[return-value]


def set_alpha_axis(axes: Axes, joint: float | None) -> None:
    """Give an axes alpha's scale, from joint statistics to each domain's own.

    Args:
        joint: as in `draw_alphas_by_depth`; None if it is not the same for all that is drawn.
    """
    lowest = 0.5 if joint is None else joint
    if axes.dataLim.ymin < lowest:
        lowest = float(axes.dataLim.ymin)
    ticks = _alpha_ticks(lowest, joint)
    names = [f"joint {tick:.2g}" if tick == joint else f"{tick:.1f}" for tick in ticks]
    axes.set_ylim(lowest - 0.02, 1.02)
    axes.set_yticks(ticks, [*names[:-1], "own 1"])
    axes.set_ylabel("alpha")


def _alpha_ticks(lowest: float, joint: float | None) -> list[float]:
    """The tenths from `lowest` to 1, and `joint` in the place of a tenth too near to it."""
    tenths = [tenth / 10 for tenth in range(11) if tenth / 10 >= lowest]
    if joint is None:
        return tenths
    return sorted([joint, *(tenth for tenth in tenths if abs(tenth - joint) > _TOO_NEAR)])


def set_iterations(axes: Axes, curves: Sequence[Curve], resumed_at: Sequence[int]) -> None:
    """Let an axes reach over the curves' iterations, and mark those from which a run was resumed."""
    axes.set_xlabel("iteration")
    axes.xaxis.set_major_locator(MaxNLocator(7, integer=True, min_n_ticks=1))
    ends = [iteration for curve in curves for iteration in (curve.iterations[0], curve.iterations[-1])]
    axes.set_xlim(min(ends) - (0.5 if min(ends) == max(ends) else 0), max(ends) + (max(ends) == min(ends)) * 0.5)
    seen = [iteration for iteration in resumed_at if min(ends) <= iteration <= max(ends)]
    for iteration in _spread(seen, _RESUMED):
        axes.axvline(iteration, color="#777777", linewidth=0.8, linestyle=(0, (1, 2)))
        axes.annotate(
            "resumed", (iteration, 1), xycoords=("data", "axes fraction"), rotation=90, fontsize="x-small",
            ha="right", va="top", color="#555555",
        )  # fmt: skip


def _spread(iterations: Sequence[int], most: int = _POINTS) -> list[int]:
    """Different iterations, ascending; of too many to tell apart in a figure, some that are evenly spaced."""
    unique = sorted(set(iterations))
    return unique[:: -(-len(unique) // most)] if unique else []
