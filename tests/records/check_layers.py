"""Compares autodial.caffe with what the original computed, layer by layer: python check_layers.py [FOLDER]

FOLDER holds the records, one NAME.npz each: layers/ and forks/layers/ beside this file, unless another is named. The
exit status is 0 if all of them agree. Keys of a record: `prototxt`, `phase`, `passes` (forward passes), `in/BLOB`,
`param/LAYER/I` (before the passes), `out/BLOB`, `after/LAYER/I` (after them), `dtop/BLOB` (the gradients that backward
is given; none for a loss), `din/BLOB` and `dparam/LAYER/I` (the gradients that it gives).
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from judging import difference, judge

import autodial.caffe as caffe

FOLDER = Path(__file__).parent / "layers"
FORKS = Path(__file__).parent / "forks" / "layers"
FORWARD = {"rtol": 2e-4, "atol": 2e-5}
BACKWARD = {"rtol": 1e-3, "atol": 1e-4}


def check(path: Path) -> list[str]:
    """What the record in this file and autodial.caffe do not agree about."""
    with np.load(path) as archive:
        record = dict(archive)
    with tempfile.TemporaryDirectory() as folder:
        prototxt = Path(folder, "net.prototxt")
        prototxt.write_text(str(record["prototxt"]))
        net = caffe.Net(str(prototxt), caffe.TRAIN if record["phase"] == "TRAIN" else caffe.TEST)

    def recorded(kind: str) -> Iterator[tuple[str, str]]:
        return ((key, key.partition("/")[2]) for key in record if key.startswith(f"{kind}/"))

    def parameter(name: str) -> Any:
        layer, _, index = name.rpartition("/")
        return net.params[layer][int(index)]

    for key, name in recorded("param"):
        parameter(name).data[...] = record[key]
    for key, name in recorded("in"):
        net.blobs[name].data[...] = record[key]
    for _ in range(record["passes"]):
        net.forward()
    found = [difference(key, net.blobs[name].data, record[key], **FORWARD) for key, name in recorded("out")]
    found += [difference(key, parameter(name).data, record[key], **FORWARD) for key, name in recorded("after")]
    if any(recorded("din")) or any(recorded("dparam")):
        net.backward(**{name: record[key] for key, name in recorded("dtop")})
        found += [difference(key, net.blobs[name].diff, record[key], **BACKWARD) for key, name in recorded("din")]
        found += [difference(key, parameter(name).diff, record[key], **BACKWARD) for key, name in recorded("dparam")]
    if not found:
        return ["the record holds nothing to compare"]
    return [text for text in found if text is not None]


def records(*folders: Path) -> list[Path]:
    """The files of the folders' records; without a folder of all that are to be matched."""
    return [path for folder in folders or (FOLDER, FORKS) for path in sorted(folder.glob("*.npz"))]


if __name__ == "__main__":
    sys.exit(judge({path.stem: partial(check, path) for path in records(*map(Path, sys.argv[1:2]))}))
