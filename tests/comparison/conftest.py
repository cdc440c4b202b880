"""Two small domains as folders of classes, and a small AutoDIAL net for them."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from small_net import small_net

NET = small_net("stripes", (8, 8, 7), scaling="scale: 0.0078125", augmented=False, filters=4, alphas=(1,), fraction=0.8)
SOLVER = """
net: "net.prototxt"
base_lr: 0.02 lr_policy: "fixed" momentum: 0.9 weight_decay: 0.001
max_iter: 12 display: 4 random_seed: 5 solver_mode: CPU
"""


@pytest.fixture(scope="session")
def stripes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with net.prototxt and solver.prototxt, 45 source and 30 darker target images of 3 classes."""
    folder = tmp_path_factory.mktemp("stripes")
    rng = np.random.default_rng(0)
    for domain, count, ink in (("source", 45, 128), ("target", 30, 90)):
        for i in range(count):
            image = rng.integers(0, 64, (8, 8, 3), dtype=np.uint8)
            image[:, :, i % 3] += ink
            place = folder / domain / "abc"[i % 3]
            place.mkdir(parents=True, exist_ok=True)
            assert cv2.imwrite(str(place / f"{i}.png"), image)
    for name in ("source", "target", "test"):
        images = sorted((folder / name.replace("test", "target")).glob("*/*.png"))
        (folder / f"{name}.txt").write_text("".join(f"{path} {'abc'.index(path.parent.name)}\n" for path in images))
    (folder / "net.prototxt").write_text(NET)
    (folder / "solver.prototxt").write_text(SOLVER)
    return folder
