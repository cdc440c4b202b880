"""The demo's picture: what alpha each layer learned, and what the handwritten digits were taken for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import cv2
from matplotlib.figure import SubFigure

from autodial.report.figures import plot_alphas
from autodial.report.run import Curve
from autodial.report.style import figure_style, new_figure
from autodial.system.files import replacing

_ROWS, _COLUMNS = 4, 8
_RIGHT, _WRONG = "\N{CHECK MARK}", "\N{BALLOT X}"


def draw(
    path: Path,
    *,
    alphas: Sequence[Curve],
    images: Mapping[str, Path],
    truth: Mapping[str, str],
    guesses: Mapping[str, Mapping[str, str]],
) -> None:
    """Write the picture as a PNG.

    Args:
        path: the file.
        alphas: by iteration, of each layer from the bottom of the net to its top; in [0.5, 1].
        images: image files by name; some, evenly spaced, are shown.
        truth: their classes, by name.
        guesses: by variant, the classes that it gave, by name. Under an image stands a line per variant.

    Raises:
        WorkError: the file can't be written.
    """
    with figure_style(), replacing(path) as file:
        figure = new_figure(13, 5.5)
        left, right = figure.subfigures(1, 2, width_ratios=(1, 1.4), squeeze=False)[0]
        axes = left.subplots()
        plot_alphas(axes, alphas)
        axes.set_title("Alpha of each Dial layer: 1, own statistics, to 0.5, joint statistics")
        _draw_predictions(right, images, truth, guesses)
        figure.savefig(file, format="png", dpi=120)


def _draw_predictions(
    figure: SubFigure,
    images: Mapping[str, Path],
    truth: Mapping[str, str],
    guesses: Mapping[str, Mapping[str, str]],
) -> None:
    names = sorted(images)
    shown = names[:: max(1, len(names) // (_ROWS * _COLUMNS))][: _ROWS * _COLUMNS]
    for axes, name in zip(figure.subplots(_ROWS, _COLUMNS).flat, shown, strict=False):
        axes.imshow(cv2.imread(str(images[name]), cv2.IMREAD_GRAYSCALE), cmap="gray_r")
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_visible(True)
        lines = [
            f"{variant} {labels[name]} {_RIGHT if labels[name] == truth[name] else _WRONG}"
            for variant, labels in guesses.items()
        ]
        axes.set_xlabel("\n".join(lines), fontsize=8)
    figure.suptitle(f"What target images were taken for ({_RIGHT} rightly, {_WRONG} wrongly)", fontsize="large")
