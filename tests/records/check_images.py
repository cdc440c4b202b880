"""Compares ImageData in the TEST phase with what the original read: python check_images.py [FOLDER]

FOLDER holds list.txt, images/, mean.binaryproto and expected.npz (`prototxt/CASE`, `data/CASE`, `label/CASE`): images/
beside this file, unless another is named. The exit status is 0 if all cases agree.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from judging import judge

FOLDER = Path(__file__).parent / "images"


def load(folder: Path = FOLDER) -> dict[str, dict[str, Any]]:
    """By case: `prototxt`, in which paths are relative to the folder, `data` and `label`."""
    cases: dict[str, dict[str, Any]] = {}
    with np.load(folder / "expected.npz") as archive:
        for key, array in archive.items():
            kind, _, case = key.partition("/")
            cases.setdefault(case, {})[kind] = array
    return cases


def differences(case: dict[str, Any], data: Any, label: Any) -> list[str]:
    """How a batch differs from the original's."""
    if data.shape != case["data"].shape:
        return [f"shape {data.shape}, original {case['data'].shape}"]
    found = []
    off = np.abs(data - case["data"]).reshape(len(data), -1)
    # the last image is a JPEG, which may decode one step apart from one libjpeg to another; the rest is exact
    if off[:-1].max() > 1e-3 or off[-1].mean() > 0.5:
        found.append(f"image {off.max(axis=1).argmax()} is off by {off.max():.4g}")
    if not np.array_equal(label, case["label"]):
        found.append(f"labels {label.tolist()}, original {case['label'].tolist()}")
    return found


def check(case: dict[str, Any], folder: Path = FOLDER) -> list[str]:
    """What is different in the case as autodial.caffe reads it."""
    import autodial.caffe as caffe  # here, so that tests of the reader alone load no torch

    with tempfile.TemporaryDirectory() as copy:  # in which a net may lie beside the files that it names
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        prototxt = Path(copy, "net.prototxt")
        prototxt.write_text(str(case["prototxt"]))
        net = caffe.Net(str(prototxt), caffe.TEST)
        net.forward()
    return differences(case, net.blobs["data"].data, net.blobs["label"].data)


def main(folder: Path = FOLDER) -> int:
    return judge({name: partial(check, case, folder) for name, case in load(folder).items()})


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:2])))
