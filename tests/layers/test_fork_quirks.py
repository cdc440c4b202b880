"""What forks of Caffe compute and this project does otherwise, as docs/caffe.md says: no more than that differs."""

from __future__ import annotations

from pathlib import Path

import check_layers
import numpy as np
import pytest

import autodial.caffe as caffe

DIFFERS = {
    "clip_in_place": {"din/x"},
    "dw_bvlc_num_output_ignored": set(),
    "dw_yonghenglh6_no_group": set(),
    "normalize_across_unequal_scales": {"din/x"},
    "normalize_unequal_scales_gradient": {"din/x"},
    "roipool_outside_and_inverted": {"din/x"},
    "smoothl1_no_loss_weight": {"din/x", "din/t"},
    "smoothl1_rfcn_fractional_weights": {"din/x", "din/t"},
    "upsample_segnet_same_place": {"din/x"},
}
FOLDER = check_layers.FORKS.parent / "quirks"


@pytest.mark.parametrize("path", check_layers.records(FOLDER), ids=lambda path: path.stem)
def test_only_gradients_differ(path: Path) -> None:
    found = {text.partition("[")[0] for text in check_layers.check(path)}
    assert found == DIFFERS[path.stem]


@pytest.mark.parametrize("name", sorted(name for name, keys in DIFFERS.items() if "din/x" in keys))
def test_our_gradients_are_those_of_what_is_computed(name: str, tmp_path: Path) -> None:
    """Against differences of the outputs, one value of the bottom at a time."""
    record = dict(np.load(FOLDER / f"{name}.npz"))
    (tmp_path / "net.prototxt").write_text(str(record["prototxt"]))
    net = caffe.Net(str(tmp_path / "net.prototxt"), caffe.TRAIN)
    for key, value in record.items():
        kind, _, rest = key.partition("/")
        if kind == "param":
            layer, _, index = rest.rpartition("/")
            net.params[layer][int(index)].data[...] = value
        elif kind == "in":
            net.blobs[rest].data[...] = value
    (top,) = net.outputs
    weights = record.get(f"dtop/{top}", np.float32(1))
    net.forward()
    net.backward(**{key[5:]: value for key, value in record.items() if key.startswith("dtop/")})
    ours = net.blobs["x"].diff.copy()
    x, step = net.blobs["x"].data, 2**-10
    for place in np.ndindex(x.shape):
        before, tops = x[place].copy(), []
        for sign in (1, -1):
            x[place] = before + sign * step
            net.forward()
            tops.append(net.blobs[top].data.astype(np.float64))
        x[place] = before
        assert ours[place] == pytest.approx(((tops[0] - tops[1]) * weights).sum() / (2 * step), rel=0.02, abs=0.005)
