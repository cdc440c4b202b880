"""The demo's two domains as real image files: digits rendered from fonts, and digits written by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from autodial.errors import WorkError
from autodial.system.files import replacing

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]

SIZE = 20
"""Pixels of every image's height and width."""
CLASSES = tuple("0123456789")

FONTS = (
    "DejaVuSans",
    "DejaVuSans-Bold",
    "DejaVuSans-BoldOblique",
    "DejaVuSans-Oblique",
    "DejaVuSansMono",
    "DejaVuSansMono-Bold",
    "DejaVuSansMono-BoldOblique",
    "DejaVuSansMono-Oblique",
    "DejaVuSerif",
    "DejaVuSerif-Bold",
    "DejaVuSerif-BoldItalic",
    "DejaVuSerif-Italic",
    "STIXGeneral",
    "STIXGeneralBol",
    "STIXGeneralBolIta",
    "STIXGeneralItalic",
    "cmb10",
    "cmmi10",
    "cmr10",
    "cmss10",
    "cmti10",
    "cmtt10",
)
"""Matplotlib's fonts that have digits; its other fonts hold symbols only."""
RENDERINGS = (14, 13, 12, 11, 9, 8, 6, 5, 4, 3)
"""Number of renderings of each digit in each font.

As between most real domains, classes are not equally frequent in the source as in the target, where every digit is
about equally frequent. There are about as many source images as target images.
"""

_OVERSAMPLING = 4
_SUBPIXEL_BITS = 4
_UNLABELLED = -1


@dataclass(frozen=True)
class DigitFiles:
    """Where `write_images` put the two domains; images are grey PNGs of 20x20 pixels, white ink on black.

    Attributes:
        source_list: lists the rendered digits with their labels.
        target_list: lists the handwritten digits for training, every label -1.
        target_test_list: lists the same files with their true labels, for scoring alone.
        labels: class names, one per line.
        target_folder: the folder that holds the handwritten digits alone.
    """

    source_list: Path
    target_list: Path
    target_test_list: Path
    labels: Path
    target_folder: Path


def rendered_digits(seed: int, renderings: Sequence[int] = RENDERINGS) -> tuple[Images, Labels, list[str]]:
    """Digits from every font of FONTS, mildly varied in size, place, rotation and weight.

    Args:
        seed: the images depend on `seed` and `renderings` alone.
        renderings: how often each of the ten digits is rendered in each font.

    Returns:
        Images, uint8 (22 * sum(renderings), 20, 20), white on black, ordered by font, digit and rendering; labels,
        int64; names, such as "7_cmr10_0".
    """
    rng = np.random.default_rng(seed)
    glyphs = [(font, d, i) for font in FONTS for d, count in enumerate(renderings) for i in range(count)]
    images = np.stack([_render(_outline(font, CLASSES[d]), rng) for font, d, _ in glyphs])
    return images, np.array([d for _, d, _ in glyphs]), [f"{d}_{font}_{i}" for font, d, i in glyphs]


def handwritten_digits() -> tuple[Images, Labels]:
    """scikit-learn's 1,797 handwritten digits: images, uint8 (1797, 20, 20), upscaled from 8x8; labels, int64."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    digits = load_digits()
    grey = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    images = [cv2.resize(image, (SIZE, SIZE), interpolation=cv2.INTER_CUBIC) for image in grey]
    return np.stack(images), digits.target.astype(np.int64)


def write_images(directory: Path, seed: int, renderings: Sequence[int] = RENDERINGS) -> DigitFiles:
    """Write both domains, their lists and the names of the classes to `directory`.

    Paths in the lists are relative to `directory`. A list is written after its images. For `seed` and `renderings`, see
    `rendered_digits`.

    Raises:
        WorkError: a file can't be written.
    """
    files = DigitFiles(
        source_list=directory / "source.txt",
        target_list=directory / "target.txt",
        target_test_list=directory / "target_test.txt",
        labels=directory / "labels.txt",
        target_folder=directory / "target",
    )
    images, labels, stems = rendered_digits(seed, renderings)
    names = [f"source/{stem}.png" for stem in stems]
    _write_pngs(directory, names, images)
    _write_lines(files.source_list, (f"{name} {label}" for name, label in zip(names, labels, strict=True)))

    images, labels = handwritten_digits()
    names = [f"{files.target_folder.name}/{i:04}.png" for i in range(len(images))]
    _write_pngs(directory, names, images)
    _write_lines(files.target_list, (f"{name} {_UNLABELLED}" for name in names))
    _write_lines(files.target_test_list, (f"{name} {label}" for name, label in zip(names, labels, strict=True)))
    _write_lines(files.labels, CLASSES)
    return files


def _write_pngs(directory: Path, names: Sequence[str], images: Images) -> None:
    for folder in {directory / Path(name).parent for name in names}:
        folder.mkdir(parents=True, exist_ok=True)
    for name, image in zip(names, images, strict=True):
        if not cv2.imwrite(str(directory / name), image):
            raise WorkError(f"{directory / name} can't be written")


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    with replacing(path) as file:
        file.write("".join(f"{line}\n" for line in lines).encode())


@cache
def _outline(font: str, digit: str) -> tuple[npt.NDArray[np.float64], ...]:
    """The glyph's closed polygons, (points, 2) each, y down, centred on 0 and scaled to a height of 1."""
    import matplotlib
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{font}.ttf"
    polygons = TextPath((0, 0), digit, size=100, prop=FontProperties(fname=path)).to_polygons()
    points = np.concatenate(polygons)
    low, high = points.min(axis=0), points.max(axis=0)
    return tuple((polygon - (low + high) / 2) * (1, -1) / (high[1] - low[1]) for polygon in polygons)


def _render(outline: Sequence[npt.NDArray[np.float64]], rng: np.random.Generator) -> Images:
    """One rendering of a glyph, uint8 (20, 20)."""
    height = rng.uniform(0.65, 0.9) * SIZE
    angle = np.deg2rad(rng.uniform(-12, 12))
    width = rng.uniform(0.85, 1.15) * height
    centre = SIZE * (0.5 + rng.uniform(-0.05, 0.05, size=2))
    weight = rng.uniform(-0.01, 0.04) * SIZE  # added to a stroke's width

    rotation = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    unit = _OVERSAMPLING * 2**_SUBPIXEL_BITS
    polygons = [np.rint(((p * (width, height)) @ rotation + centre) * unit).astype(np.int32) for p in outline]
    canvas = np.zeros((SIZE * _OVERSAMPLING, SIZE * _OVERSAMPLING), np.uint8)
    cv2.fillPoly(canvas, polygons, 255, lineType=cv2.LINE_AA, shift=_SUBPIXEL_BITS)
    thickness = round(abs(weight) * _OVERSAMPLING)
    if thickness:
        ink = 255 if weight > 0 else 0
        cv2.polylines(canvas, polygons, True, ink, thickness, lineType=cv2.LINE_AA, shift=_SUBPIXEL_BITS)
    return np.asarray(cv2.resize(canvas, (SIZE, SIZE), interpolation=cv2.INTER_AREA), np.uint8)
