"""The figures of a comparison of runs, each from plain numbers; call them inside `style.figure_style()`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from autodial.report.figures import (
    ShownConfusion,
    confusion_labels,
    name_depths,
    plot_confusion,
    set_alpha_axis,
    set_iterations,
    thinned,
)
from autodial.report.run import Curve
from autodial.report.style import (
    COLOURS,
    MARKERS,
    STYLES,
    WIDE,
    LineLabel,
    drawable,
    label_lines,
    new_figure,
    shortened,
)

DRAWN_RUNS = 60
"""Runs in a figure; more would look alike."""


class Series(NamedTuple):
    """A run's curve, and the number and the name of what its colour and dashes stand for."""

    look: int
    name: str
    curve: Curve


def draw_overlaid(
    series: Sequence[Series], *, ylabel: str, percent: bool = False, log: bool = False, width: float = WIDE
) -> Figure:
    """Curves by iteration, one per run; those of one look share their label."""
    figure = new_figure(width, _height([name for _, name, _ in series], width))
    axes = figure.subplots()
    lines: dict[str, Line2D] = {}
    for look, name, curve in series:
        marker = MARKERS[look % len(MARKERS)] if curve.kind == "test" or len(curve.values) < 3 else None
        (line,) = axes.plot(*thinned(curve), **_look(look), marker=marker, markersize=3.5, linewidth=1.2)
        lines.setdefault(name, line)
    if log:
        axes.set_yscale("log")
    if percent:
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.6g}%")
    axes.set_ylabel(ylabel)
    axes.margins(y=0.08)
    set_iterations(axes, [one.curve for one in series], ())
    axes.autoscale_view()
    axes.set_ylim(axes.get_ylim())
    label_lines(
        axes,
        [
            LineLabel(name, _mean_end([one.curve for one in series if one.name == name]), line)
            for name, line in lines.items()
        ],
    )
    return figure


def draw_overlaid_alphas(
    series: Sequence[Sequence[Curve]],
    looks: Sequence[tuple[int, str]],
    *,
    joint: float | None = 0.5,
    width: float = WIDE,
) -> Figure:
    """The last alpha of each Dial layer by depth, a line per run.

    Args:
        series: of each run, the curves of its Dial layers, from the net's input to its output; one layer or more.
        looks: number and name of what each run's colour and dashes stand for.
        joint: the alpha with which all domains have joint statistics; None if it is not the same in all runs.
    """
    figure = new_figure(width, _height([name for _, name in looks], width))
    axes = figure.subplots()
    lines: dict[str, Line2D] = {}
    ends: dict[str, list[float]] = {}
    for curves, (look, name) in zip(series, looks, strict=True):
        values = [np.nan if curve.last is None else curve.last for curve in curves]
        depth = np.arange(1, len(values) + 1)
        marker = MARKERS[look % len(MARKERS)]
        (line,) = axes.plot(depth, values, **_look(look), marker=marker, markersize=4, linewidth=1)
        lines.setdefault(name, line)
        ends.setdefault(name, []).append(values[-1])
    longest = max(series, key=len)
    set_alpha_axis(axes, joint)
    axes.set_xlim(0.5, len(longest) + 0.5)
    same = all([curve.name for curve in curves] == [curve.name for curve in longest] for curves in series)
    name_depths(axes, [curve.name if same else str(i) for i, curve in enumerate(longest, 1)])
    label_lines(axes, [LineLabel(name, float(np.mean(ends[name])), line) for name, line in lines.items()])
    return figure


def draw_confusions(names: Sequence[str], shown: Mapping[str, ShownConfusion], width: float = WIDE) -> Figure:
    """Confusion matrices side by side, one below the other in a narrow figure, each under its title."""
    columns = 1 if width < WIDE else min(2, len(shown))
    rows = -(-len(shown) // columns)
    labels = {title: confusion_labels(names, one) for title, one in shown.items()}
    margin = 0.075 * max(len(label) for of_one in labels.values() for label in of_one)
    side = width / columns - margin - 0.5
    figure = new_figure(width, rows * (side + margin + 0.6), layout="compressed")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, (title, one) in zip(grid.flat, shown.items(), strict=False):
        plot_confusion(axes, one, labels[title], side)
        axes.set_ylabel("true class")
        axes.set_title(drawable(shortened(title, 40)))
    for axes in grid.flat[len(shown) :]:
        axes.remove()
    return figure


def draw_scores(scores: Mapping[str, Sequence[float]], *, xlabel: str, width: float = WIDE) -> Figure:
    """A row per group: a dot per run, and a bar at the mean. Scores are in [0, 1]."""
    figure = new_figure(width, 0.9 + 0.36 * len(scores))
    axes: Axes = figure.subplots()
    for row, values in enumerate(scores.values()):
        colour = COLOURS[row % len(COLOURS)]
        axes.scatter(values, [row] * len(values), s=34, color=colour, alpha=0.75, zorder=2)
        axes.vlines(float(np.mean(values)), row - 0.28, row + 0.28, color=colour, linewidth=2.2, zorder=1)
    axes.set_yticks(range(len(scores)), [drawable(shortened(name)) for name in scores])
    axes.set_ylim(len(scores) - 0.4, -0.6)
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.6g}%")
    axes.set_xlabel(xlabel)
    axes.grid(axis="y", visible=False)
    axes.margins(x=0.08)
    return figure


def _height(names: Sequence[str], width: float) -> float:
    """Inches that leave room for the labels of a wide figure; a narrow one grows with its legend."""
    return 3.4 if width < WIDE else max(3.4, 1 + 0.2 * len(set(names)))


def _look(number: int) -> dict[str, Any]:
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": STYLES[number // len(COLOURS) % len(STYLES)]}


def _mean_end(curves: Sequence[Curve]) -> float:
    ends = [curve.values[-1] for curve in curves if curve.values and curve.values[-1] is not None]
    return float(np.mean(ends)) if ends else float("nan")
