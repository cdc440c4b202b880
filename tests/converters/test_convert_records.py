"""Converted nets against records of the original implementation and of Caffe's forks, in ONNX Runtime."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from check_layers import FORWARD, records
from judging import difference
from packaging.version import Version

from autodial.converters.net_convert import convert
from autodial.errors import InputError, WorkError
from autodial.proto import LayerWeights, Weights, parse_net
from autodial.proto import messages as pb

REFUSED = {
    r"accuracy.*": "compares with labels",
    r"argmax": "the higher one",
    r"dial_.*|net_autodial": "statistics were ever stored|other images of the batch",
    r"detout_eta": "eta lowers it",
    r"dropout.*": "drawn at random",
    r"hdf5.*": "writes a file",
    r"mmbn_.*|net_latent.*": "statistics were ever stored|other images of the batch|more weights than rows",
    r".*": "it is a loss",
}
"""What is refused, by a pattern of the records' names, and why."""
KEEPS_STATE = ("lstm_three_passes", "rnn_three_passes")
"""Records of several passes, of which each begins where the last ended; a file begins from zero."""
RECORDS = [path for path in records() if path.stem not in KEEPS_STATE]
SIZES_COUNT = ("priorbox_", "interp_", "pool_", "psroipool_", "upsample_", "shuffle_", "net_ssd", "proposal_", "crop")
"""How the names of records begin whose layers depend on the images' size, and so are written in another way for any."""
AVERAGES_WRONGLY = Version(onnxruntime.__version__) < Version("1.29")
"""Before 1.29, ONNX Runtime divides by too many values where a window of average pooling ends beyond the padding."""
SIZED = [path for path in RECORDS if path.stem.startswith(SIZES_COUNT)]


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_record(path: Path, tmp_path: Path) -> None:
    check(path, tmp_path, "batch")


@pytest.mark.parametrize("path", SIZED, ids=lambda path: path.stem)
def test_record_at_any_height_and_width(path: Path, tmp_path: Path) -> None:
    if path.stem == "pool_ave_pad_clip" and AVERAGES_WRONGLY:
        with pytest.raises(WorkError, match='nothing was written: ONNX Runtime\'s "y" differs'):
            check(path, tmp_path, "spatial")
    else:
        check(path, tmp_path, "spatial")


def check(path: Path, folder: Path, dynamic: Any) -> None:
    """Convert a record's net, and compare the file's outputs with the record's."""
    with np.load(path) as archive:
        record = dict(archive)
    net = parse_net(str(record["prototxt"]))
    outputs = [key.partition("/")[2] for key in record if key.startswith("out/")]
    fed = {key.partition("/")[2]: record[key].astype(np.float32) for key in record if key.startswith("in/")}
    phase = pb.TRAIN if record["phase"] == "TRAIN" else pb.TEST
    try:
        weights = weights_of(net, record)
        convert(net, weights, folder / "net.onnx", outputs=outputs, phase=phase, samples=fed, dynamic=dynamic)
    except InputError as error:
        reason = next(why for names, why in REFUSED.items() if re.fullmatch(names, path.stem))
        assert re.search(reason, str(error)), error
        assert not list(folder.iterdir())
        return
    session = onnxruntime.InferenceSession(str(folder / "net.onnx"), providers=["CPUExecutionProvider"])
    results = session.run(outputs, {end.name: fed[end.name] for end in session.get_inputs()})
    for name, result in zip(outputs, results, strict=True):
        assert difference(name, result, record[f"out/{name}"], **FORWARD) is None


def weights_of(net: Any, record: dict[str, Any]) -> Weights | None:
    """The parameters of a record."""
    blobs: dict[str, dict[int, Any]] = defaultdict(dict)
    for key, value in record.items():
        if key.startswith("param/"):
            _, layer, index = key.split("/")
            blobs[layer][int(index)] = value
    layers = {layer.name: layer for layer in net.layer}
    stored = [LayerWeights(layers[name], [each[i] for i in sorted(each)]) for name, each in blobs.items()]
    return Weights(net.name, stored) if stored else None
