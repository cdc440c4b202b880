"""The demo's picture: what alpha each layer learned, and what the handwritten digits were taken for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import cv2
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, SubFigure

from autodial.proto.files import replacing

_ROWS, _COLUMNS = 4, 8
# Okabe and Ito's colours stay apart in every common kind of colour blindness, line styles in grey too
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9")
_STYLES = ("-", "--", "-.", ":")
_RIGHT, _WRONG = "\N{CHECK MARK}", "\N{BALLOT X}"


def draw(
    path: Path,
    *,
    alphas: Mapping[int, Mapping[str, float]],
    images: Mapping[str, Path],
    truth: Mapping[str, str],
    guesses: Mapping[str, Mapping[str, str]],
) -> None:
    """Write the picture as a PNG.

    Args:
        path: the file.
        alphas: by iteration, then by layer, layers from the bottom of the net to its top; in [0.5, 1].
        images: image files by name; some, evenly spaced, are shown.
        truth: their classes, by name.
        guesses: by variant, the classes that it gave, by name. Under an image stands a line per variant.

    Raises:
        WorkError: the file can't be written.
    """
    figure = Figure(figsize=(13, 5.5), layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    left, right = figure.subfigures(1, 2, width_ratios=(1, 1.4), squeeze=False)[0]
    _draw_alphas(left, alphas)
    _draw_predictions(right, images, truth, guesses)
    with replacing(path) as file:
        figure.savefig(file, format="png")


def _draw_alphas(figure: SubFigure, alphas: Mapping[int, Mapping[str, float]]) -> None:
    axes = figure.subplots()
    layers = list(next(iter(alphas.values())))
    for i, layer in enumerate(layers):
        axes.plot(
            list(alphas),
            [row[layer] for row in alphas.values()],
            color=_COLOURS[i % len(_COLOURS)],
            linestyle=_STYLES[i % len(_STYLES)],
            linewidth=2,
            label=layer,
        )
    axes.set_ylim(0.48, 1.02)
    axes.set_xlabel("iteration")
    axes.set_ylabel("alpha (1: own statistics, 0.5: joint statistics)")
    axes.set_title("Alpha of each Dial layer")
    axes.legend(loc="lower left")
    axes.grid(alpha=0.3)


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
        lines = [
            f"{variant} {labels[name]} {_RIGHT if labels[name] == truth[name] else _WRONG}"
            for variant, labels in guesses.items()
        ]
        axes.set_xlabel("\n".join(lines), fontsize=8)
    figure.suptitle(f"What target images were taken for ({_RIGHT} rightly, {_WRONG} wrongly)", fontsize="large")
