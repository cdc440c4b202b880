"""Every record of a single layer, as the original Caffe computed it, against the layer as a torch module by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from check_layers import BACKWARD, FORWARD, records
from judging import difference

from autodial import proto
from autodial.layers import LayerContext, layer_class
from autodial.layers.base import TEST, TRAIN


def single_layer_records() -> list[Path]:
    found = []
    for path in records():
        net = proto.parse_net(str(np.load(path)["prototxt"]))
        if sum(layer.type != "Input" for layer in net.layer) == 1:
            found.append(path)
    return found


GROWS = ("Filter", "DetectionOutput", "Proposal", "Python")
"""Types whose tops have as many rows as the forward pass finds."""


def assert_close(name: str, ours: torch.Tensor, theirs: Any, tolerance: dict[str, float]) -> None:
    assert difference(name, ours.detach(), theirs, **tolerance) is None


@pytest.mark.parametrize("path", single_layer_records(), ids=lambda path: path.stem)
def test_record(path: Path) -> None:
    with np.load(path) as archive:
        record = {key: archive[key] for key in archive.files}
    param = next(p for p in proto.parse_net(str(record["prototxt"])).layer if p.type != "Input")
    blobs = {blob: torch.from_numpy(record[f"in/{blob}"]) for blob in param.bottom}
    bottoms = [blobs[blob] for blob in param.bottom]  # one blob may be several bottoms
    shapes = tuple(tuple(bottom.shape) for bottom in bottoms)
    phase = TRAIN if str(record["phase"]) == "TRAIN" else TEST
    cls = layer_class(param.type)
    layer = cls.from_caffe(LayerContext(param, phase, shapes, len(param.top), torch.Generator()))
    layer.train(phase == TRAIN)

    for i, blob in enumerate(layer.blobs):
        with torch.no_grad():
            blob.copy_(torch.from_numpy(record[f"param/{param.name}/{i}"]))
    for bottom, blob in zip(bottoms, param.bottom, strict=True):
        bottom.requires_grad_(f"din/{blob}" in record)
    before = [bottom.clone() for bottom in bottoms]
    for _ in range(int(record["passes"])):
        tops = layer(*bottoms)
    tops = (tops,) if isinstance(tops, torch.Tensor) else tops

    for bottom, same in zip(bottoms, before, strict=True):
        assert torch.equal(bottom, same), "a layer must not change its bottoms"
    if param.type not in GROWS:
        assert [tuple(top.shape) for top in tops] == layer.top_shapes(shapes)
    for blob, top in zip(param.top, tops, strict=True):
        assert_close(f"out/{blob}", top, record[f"out/{blob}"], FORWARD)
    for i, blob in enumerate(layer.blobs):
        assert_close(f"after/{i}", blob, record[f"after/{param.name}/{i}"], FORWARD)

    if not any(key.startswith("din/") for key in record):
        return
    loss_weight = param.loss_weight[0] if param.loss_weight else 1.0
    gradients = [
        torch.from_numpy(record[f"dtop/{blob}"]) if f"dtop/{blob}" in record else torch.tensor(loss_weight)
        for blob in param.top
    ]
    pairs = [pair for pair in zip(tops, gradients, strict=True) if pair[0].requires_grad]
    torch.autograd.backward(*zip(*pairs, strict=True))
    for bottom, blob in zip(bottoms, param.bottom, strict=True):
        if f"din/{blob}" in record:
            assert_close(f"din/{blob}", bottom.grad, record[f"din/{blob}"], BACKWARD)
    for i, blob in enumerate(layer.blobs):
        got = torch.zeros_like(blob) if blob.grad is None else blob.grad
        assert_close(f"dparam/{i}", got, record[f"dparam/{param.name}/{i}"], BACKWARD)
