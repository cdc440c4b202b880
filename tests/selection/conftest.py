"""A small AutoDIAL net on striped images that the tests draw themselves."""

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
max_iter: 12 display: 4 snapshot_prefix: "stripes" random_seed: 5 solver_mode: CPU
"""


@pytest.fixture(scope="session")
def stripes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with net.prototxt, solver.prototxt, 60 source and 40 darker target images of 3 classes, and lists."""
    folder = tmp_path_factory.mktemp("stripes")
    rng = np.random.default_rng(0)
    for domain, count, ink in (("source", 60, 128), ("target", 40, 90)):
        lines = []
        for i in range(count):
            image = rng.integers(0, 64, (8, 8, 3), dtype=np.uint8)
            image[:, :, i % 3] += ink
            assert cv2.imwrite(str(folder / f"{domain} {i}.png"), image)
            lines.append((f"{domain} {i}.png", i % 3))
        labelled = domain == "source"
        text = "".join(f"{path} {label if labelled else 0}\n" for path, label in lines)
        (folder / f"{domain}.txt").write_text(text)
    (folder / "test.txt").write_text("".join(f"{path} {label}\n" for path, label in lines))
    (folder / "net.prototxt").write_text(NET)
    (folder / "solver.prototxt").write_text(SOLVER)
    return folder
