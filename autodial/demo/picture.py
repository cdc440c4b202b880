"""The demo's picture: both domains, what the chosen run took the target's images for, and every run's accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import cv2
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure

from autodial.data.image_list import ImageList
from autodial.demo.images import CLASSES
from autodial.report.style import COLOURS, SOURCE, TARGET, figure_style, new_figure
from autodial.system.files import replacing

_SOURCE_ROWS, _TARGET_ROWS = 2, 4
_RIGHT, _WRONG = "\N{CHECK MARK}", "\N{BALLOT X}"
_WRONG_COLOUR = "#B00020"


class Accuracies(NamedTuple):
    """A method and the accuracies of its runs, in [0, 1]."""

    title: str
    values: Sequence[float]


def draw(
    path: Path,
    *,
    source: ImageList,
    target: ImageList,
    guesses: Mapping[str, int],
    accuracies: Sequence[Accuracies],
    chosen: tuple[str, float],
    ensemble: tuple[str, float],
) -> None:
    """Write the picture as a PNG.

    Args:
        path: the file.
        source, target: the domains with their true labels. Some images of each class are shown, evenly spaced.
        guesses: the class that the chosen run gave, by the file name of a target image.
        accuracies: of every method, from the poorest to the best.
        chosen: the method and the accuracy of the run that was chosen without labels.
        ensemble: the same for the average of this method's runs.

    Raises:
        WorkError: the file can't be written.
    """
    with figure_style(), replacing(path) as file:
        figure = new_figure(13, 5.6)
        left, right = figure.subfigures(1, 2, width_ratios=(1.35, 1), squeeze=False)[0]
        _draw_images(left, source, target, guesses)
        _draw_accuracies(right.subplots(), accuracies, chosen, ensemble)
        figure.savefig(file, format="png", dpi=120)


def _draw_images(figure: SubFigure, source: ImageList, target: ImageList, guesses: Mapping[str, int]) -> None:
    """A column per digit: source images above target images, as the net gets them, white ink on black."""
    heights = (_SOURCE_ROWS + 0.6, 1.35 * _TARGET_ROWS + 0.4)
    top, bottom = figure.subfigures(2, 1, height_ratios=heights, squeeze=False)[:, 0]
    top.suptitle("Source: rendered from fonts, labelled; a column for each true digit", fontsize="large", color=SOURCE)
    bottom.suptitle("Target: written by hand, unlabelled; below, what it was taken for", fontsize="large", color=TARGET)
    grids = (top.subplots(_SOURCE_ROWS, len(CLASSES)), bottom.subplots(_TARGET_ROWS, len(CLASSES)))
    for domain, grid in zip((source, target), grids, strict=True):
        for label, name in enumerate(CLASSES):
            column = grid[:, label]
            if domain is source:
                column[0].set_title(name)
            for axes, path in zip(column, _some_of(domain, label, len(column)), strict=True):
                axes.imshow(cv2.imread(str(path), cv2.IMREAD_GRAYSCALE), cmap="gray", vmin=0, vmax=255)
                axes.set_xticks([])
                axes.set_yticks([])
                if domain is target:
                    guess = guesses[path.name]
                    mark, colour = (_RIGHT, "black") if guess == label else (_WRONG, _WRONG_COLOUR)
                    axes.set_xlabel(f"{CLASSES[guess]} {mark}", fontsize=9, color=colour, labelpad=2)


def _some_of(images: ImageList, label: int, count: int) -> list[Path]:
    """Paths of images of a class, evenly spaced over the list."""
    paths = [images.path.parent / entry.path for entry in images if entry.label == label]
    return [paths[(2 * i + 1) * len(paths) // (2 * count)] for i in range(count)]


def _draw_accuracies(
    axes: Axes, accuracies: Sequence[Accuracies], chosen: tuple[str, float], ensemble: tuple[str, float]
) -> None:
    """A row per method: a dot per run, a bar at the mean; the chosen run and the ensemble stand out."""
    rows = {method.title: row for row, method in enumerate(accuracies)}
    for method, colour in zip(accuracies, ("#767676", *COLOURS), strict=False):
        row, mean = rows[method.title], sum(method.values) / len(method.values)
        axes.scatter(method.values, [row] * len(method.values), s=60, color=colour, alpha=0.75, zorder=2)
        axes.vlines(mean, row - 0.16, row + 0.16, color=colour, linewidth=2.5, zorder=1)
        axes.annotate(f"mean {mean:.1%}", (mean, row - 0.2), ha="center", va="bottom", fontsize=9)
    title, value = chosen
    axes.scatter([value], [rows[title]], s=190, facecolors="none", edgecolors=TARGET, linewidths=2, zorder=3)
    _annotate(axes, f"chosen without labels: {value:.1%}", (value, rows[title]), down=27)
    title, value = ensemble
    axes.scatter([value], [rows[title] + 0.5], s=60, marker="D", color=TARGET, zorder=3)
    _annotate(axes, f"average of the runs: {value:.1%}", (value, rows[title] + 0.5))
    axes.set_yticks(range(len(rows)), list(rows))
    axes.tick_params(axis="y", labelsize=11, length=0)
    axes.set_ylim(len(rows) - 0.2, -0.6)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.grid(axis="y", visible=False)
    axes.margins(x=0.12)
    axes.set_title("Accuracy on the target; a dot for each training", fontsize="large")


def _annotate(axes: Axes, words: str, place: tuple[float, float], down: int = 0) -> None:
    """Write words to the left of a place, so many points lower."""
    axes.annotate(
        words,
        place,
        xytext=(-12, -down),
        textcoords="offset points",
        ha="right",
        va="center",
        fontsize=10,
        color=TARGET,
    )
