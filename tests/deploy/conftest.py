"""Small exported models, written with onnx.helper, and images to feed them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from exported_model import CLASSES, SIZE, metadata, save_model

from autodial.deploy import Predictor


@dataclass
class Reference:
    """A model file and the same computation in numpy and OpenCV."""

    path: Path
    weights: np.ndarray = field(repr=False)
    grey: bool = False
    classes: tuple[str, ...] = CLASSES

    def logits(self, *images: Path | np.ndarray) -> np.ndarray:
        flag = cv2.IMREAD_GRAYSCALE if self.grey else cv2.IMREAD_COLOR
        pixels = [cv2.imread(str(image), flag) if isinstance(image, Path) else image for image in images]
        height, width = SIZE
        resized = [cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR) for image in pixels]
        return np.stack(resized).reshape(len(images), -1) / 255 @ self.weights

    def probabilities(self, *images: Path | np.ndarray) -> np.ndarray:
        exponentials = np.exp(self.logits(*images))
        return exponentials / exponentials.sum(axis=1, keepdims=True)

    def labels(self, *images: Path | np.ndarray) -> list[str]:
        return [self.classes[i] for i in self.logits(*images).argmax(axis=1)]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    weights = np.random.default_rng(1).normal(size=(SIZE[0] * SIZE[1] * 3, len(CLASSES)))
    path = tmp_path_factory.mktemp("model") / "target_predictor.onnx"
    return Reference(save_model(path, weights, metadata()), weights)


@pytest.fixture(scope="session")
def grey_model(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    weights = np.random.default_rng(2).normal(size=(SIZE[0] * SIZE[1], len(CLASSES)))
    path = tmp_path_factory.mktemp("model") / "grey.onnx"
    return Reference(save_model(path, weights, metadata(channel_order="GRAY"), channels=1), weights, grey=True)


@pytest.fixture
def write_model(tmp_path: Path) -> Callable[..., Path]:
    """A function of changed metadata fields (or record=None for none at all) that writes a model file."""

    def write(channels: int = 3, classes_given: int = len(CLASSES), record: Any = (), **changes: Any) -> Path:
        weights = np.zeros((SIZE[0] * SIZE[1] * channels, classes_given))
        record = metadata(**changes) if record == () else record
        return save_model(tmp_path / "written.onnx", weights, record, channels)

    return write


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of twelve readable images in three folders, with names of many kinds, in sizes that need resizing."""
    names = ["a.png", "b.JPG", "c, d.bmp", "sub/猫 1.png", "sub/x.png", "sub/deep/Ø.webp"]
    names += [f"sub/deep/{i}.png" for i in range(6)]
    for seed, name in enumerate(names):
        height, width = (6, 9) if seed % 2 else (11, 7)
        pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # Through memory: on Windows cv2.imwrite opens names in the system's alphabet only.
        path.write_bytes(cv2.imencode(path.suffix, pixels)[1].tobytes())
    return tmp_path / "photos"


@pytest.fixture
def batch_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images each run of a Predictor got, as they come."""
    sizes = []
    run = Predictor.run

    def watched(self: Predictor, batch: Any) -> Any:
        sizes.append(len(batch))
        return run(self, batch)

    monkeypatch.setattr(Predictor, "run", watched)
    return sizes
