"""A model file that keeps what `autodial export` keeps of a training list, and images for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
from onnx import helper

from autodial.data.image_statistics import Reference, all_statistics, image_statistics, statistic_names
from autodial.deploy import Predictor


def write_images(folder: Path, count: int, seed: int, level: int = 128, noise: int = 40) -> list[Path]:
    """Noise of some brightness and contrast."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    paths = [folder / f"{i:04}.png" for i in range(count)]
    for path in paths:
        pixels = rng.normal(level + rng.normal(0, 20), noise, (6, 9, 3)).clip(0, 255).astype(np.uint8)
        cv2.imwrite(str(path), pixels)
    return paths


def with_reference(model: Path, path: Path, record: Any) -> Path:
    """A copy of a model file at `path` with a record of its training list."""
    loaded = onnx.load(model)
    metadata = json.loads(loaded.metadata_props[0].value)
    helper.set_model_props(loaded, {"autodial": json.dumps({**metadata, "reference": record})})
    onnx.save(loaded, path)
    return path


def adapted(model: Path, folder: Path) -> Path:
    """A copy of a model file that keeps 400 images of the usual brightness as its training list."""
    images = write_images(folder / "train", 400, seed=0)
    _, probabilities = Predictor(model, "cpu").predict(images)
    of_images = np.array([image_statistics(cv2.imread(str(image))) for image in images])
    values = all_statistics(probabilities, of_images)
    kept = Reference.measured("target", "train.txt", 400, probabilities.argmax(axis=1), statistic_names(3), values)
    return with_reference(model, folder / "model.onnx", kept.record())
