"""The benchmarks' images as folders of classes, which is what `autodial init` reads.

Every function writes FOLDER/CLASS/NAME.png once; a folder that is there is taken as it is. PNGs are exact.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from autodial.data.datum_data import DatumData
from autodial.demo.images import handwritten_digits, rendered_digits
from autodial.proto import messages as pb

Image = npt.NDArray[np.uint8]
"""(H, W), grey, or (H, W, 3), BGR."""

CELL_SIZE = 160
"""Height and width to which photographs of solar cells are brought, in pixels, from 300."""
UPRIGHT = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSansMono", "DejaVuSerif"),
    "STIXGeneral",
    "cmr10",
    "cmss10",
    "cmtt10",
)
SLANTED = (
    "DejaVuSans-Oblique",
    "DejaVuSansMono-Oblique",
    "DejaVuSerif-Italic",
    "STIXGeneralItalic",
    "cmmi10",
    "cmti10",
)
"""Fonts that matplotlib ships."""


def write(folder: Path, images: Callable[[], Iterable[tuple[Image, str]]]) -> Path:
    """Write images and the names of their classes, as `images` gives them; returns `folder`."""
    if not folder.exists():
        partial = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        for i, (image, name) in enumerate(images()):
            (partial / name).mkdir(parents=True, exist_ok=True)
            if not cv2.imwrite(str(partial / name / f"{i:06}.png"), image):
                raise SystemExit(f"{partial / name} can't be written")
        partial.rename(folder)
    return folder


def lmdb(path: Path) -> Iterable[tuple[Image, str]]:
    """The datums of an LMDB of grey images."""
    param = pb.LayerParameter(name=path.name, type="Data", top=["data", "label"])
    param.data_param.source = str(path)
    param.data_param.batch_size = 1
    param.data_param.backend = pb.DataParameter.LMDB
    reader = DatumData(param, phase=pb.TEST, seed=0)
    for i in range(len(reader)):
        image, label = reader.batch(i)
        yield image[0, 0].astype(np.uint8), f"{label[0]:.0f}"


def torchvision_digits(name: str, train: bool, root: Path) -> Iterable[tuple[Image, str]]:
    """MNIST, USPS or SVHN as torchvision has it, fetched to `root` if it isn't there; USPS is brought to 28x28."""
    from torchvision import datasets

    kind = getattr(datasets, name)
    split: dict[str, Any] = {"split": "train" if train else "test"} if name == "SVHN" else {"train": train}
    for picture, label in kind(str(root), download=True, **split):
        image = np.asarray(picture)
        if name == "USPS":
            image = cv2.resize(image, (28, 28), interpolation=cv2.INTER_LINEAR)
        yield (image[..., ::-1] if image.ndim == 3 else image), str(label)


def rendered(seed: int) -> Iterable[tuple[Image, str]]:
    """The demo's source: digits rendered from fonts."""
    images, labels, _ = rendered_digits(seed)
    return zip(images, map(str, labels), strict=True)


def handwritten() -> Iterable[tuple[Image, str]]:
    """The demo's target: scikit-learn's handwritten digits."""
    images, labels = handwritten_digits()
    return zip(images, map(str, labels), strict=True)


def solar_cells(kind: str) -> Iterable[tuple[Image, str]]:
    """Photographs of solar cells, kind "mono" or "poly"; defective where the probability of that is at least 1/2."""
    from elpv_dataset.utils import load_dataset

    images, probabilities, kinds = load_dataset()
    for image, probability in zip(images[kinds == kind], probabilities[kinds == kind], strict=True):
        small = cv2.resize(image, (CELL_SIZE, CELL_SIZE), interpolation=cv2.INTER_AREA)
        yield np.asarray(small, np.uint8), "defective" if probability >= 0.5 else "sound"


def letters(fonts: Sequence[str], copies: int, seed: int) -> Iterable[tuple[Image, str]]:
    """Capitals, white on black, `copies` of each in each font, varied in size, place and rotation."""
    import matplotlib
    from PIL import Image as Picture
    from PIL import ImageDraw, ImageFont

    rng = np.random.default_rng(seed)
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    for name, letter, _ in product(fonts, ascii_uppercase, range(copies)):
        font = ImageFont.truetype(str(folder / f"{name}.ttf"), int(rng.integers(52, 76)))
        picture = Picture.new("L", (80, 80))
        centre = tuple(40 + rng.uniform(-4, 4, size=2))
        ImageDraw.Draw(picture).text(centre, letter, 255, font, anchor="mm")
        turned = np.asarray(picture.rotate(rng.uniform(-10, 10), Picture.Resampling.BILINEAR))
        yield np.asarray(cv2.resize(turned, (20, 20), interpolation=cv2.INTER_AREA), np.uint8), letter


def uneven(pictures: Iterable[tuple[Image, str]]) -> Iterable[tuple[Image, str]]:
    """All images of the first class, and of each next one a tenth less: a tenth of the digit 9."""
    found = list(pictures)
    for i, name in enumerate(sorted({name for _, name in found})):
        members = [image for image, label in found if label == name]
        yield from ((image, name) for image in members[: round(len(members) * (1 - i / 10))])
