"""Folders of small images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

WriteImages = Callable[..., list[str]]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def images() -> WriteImages:
    """Writes images of noise, no two alike, and returns their absolute paths: images("source/cat", 3, color=False)."""
    rng = np.random.default_rng(0)

    def write(folder: str, count: int, *, color: bool = True, suffix: str = ".png", size: int = 0) -> list[str]:
        directory = Path(folder).absolute()
        directory.mkdir(parents=True, exist_ok=True)
        paths = []
        for i in range(count):
            height, width = (size, size) if size else rng.integers(20, 40, 2)
            image = rng.integers(0, 256, (height, width, 3 if color else 1), dtype=np.uint8)
            assert cv2.imwrite(str(directory / f"{i}{suffix}"), image)
            paths.append(str(directory / f"{i}{suffix}"))
        return paths

    return write
