"""The two nets that the AutoDIAL authors released, against shapes, losses and gradients of the original."""

from __future__ import annotations

import json
from math import prod
from typing import Any

import numpy as np
import pytest
import torch
from originals import RECORDS, shared

from autodial.net.net import Net
from autodial.proto import messages as pb
from autodial.proto import read_net

NAMES = ("alexnet", "inception")


def released(name: str) -> tuple[Net, dict[str, Any]]:
    """The TRAIN net with Input layers in place of its image lists, and what the original gave."""
    record = json.loads((RECORDS / "released_nets.json").read_text())[name]
    param = read_net(shared(f"reference/autodial/{name}_train_val.prototxt"))
    kept = [layer for layer in param.layer if layer.type not in ("ImageData", "Silence")]
    inputs = [layer for layer in param.layer if layer.type == "ImageData" and layer.include[0].phase == pb.TRAIN]
    net = pb.NetParameter(name=param.name)
    for blob in [layer.top[0] for layer in inputs] + [inputs[0].top[1]]:
        layer = net.layer.add(name=blob, type="Input", top=[blob])
        layer.input_param.shape.add(dim=record["blobs"][blob])
    net.layer.extend(kept)
    return Net(net, pb.TRAIN), record


@torch.no_grad()
def fill(net: Net) -> None:
    """The recipe of the record's `how`."""
    k = 0
    for name in net.layer_names:
        layer = net.layer(name)
        for i, blob in enumerate(layer.blobs):
            shape = tuple(blob.shape)
            value = np.random.default_rng(k).standard_normal(shape).astype(np.float32)
            value *= np.float32(np.sqrt(2 / max(prod(shape[1:]), 1)) if len(shape) > 1 else 0.1)
            if layer.type_name == "Dial":
                value = np.full(shape, 0.0 if i else 0.8, np.float32)
            elif layer.type_name == "Scale":
                value = np.full(shape, 0.0 if i else 1.0, np.float32)
            blob.copy_(torch.from_numpy(value))
            k += 1


@pytest.mark.parametrize("name", NAMES)
def test_shapes_and_one_training_pass(name: str) -> None:
    net, record = released(name)
    built = zip(net.layer_names, (net.layer(layer).type_name for layer in net.layer_names), strict=True)
    assert [list(layer) for layer in built] == record["layers"]
    for blob, shape in record["blobs"].items():
        assert list(net.blob_shapes[blob]) == shape, blob
    for layer, shapes in record["params"].items():
        assert [list(blob.shape) for blob in net.layer(layer).blobs] == shapes, layer

    fill(net)
    random = np.random.default_rng(99)
    source, target, labels = net.inputs
    inputs = {
        blob: torch.from_numpy(random.standard_normal(record["blobs"][blob]).astype(np.float32) * np.float32(50))
        for blob in (source, target)
    }
    inputs[labels] = torch.arange(record["blobs"][labels][0]) % 10
    expected = record["expected"]
    logits = "fc8" if name == "alexnet" else "fc1"
    blobs = net.blobs(inputs, [*expected["loss"], logits])
    for loss, value in expected["loss"].items():
        assert blobs[loss].item() == pytest.approx(value, rel=1e-3)
    row = torch.tensor(expected["logits_first_row"])
    torch.testing.assert_close(blobs[logits][0].detach(), row, rtol=1e-3, atol=1e-3 * row.abs().max().item())

    net.loss(blobs).backward()
    for layer, sums in expected["abs_sum_of_gradients"].items():
        for blob, total in zip(net.layer(layer).blobs, sums, strict=True):
            found = 0.0 if blob.grad is None else blob.grad.abs().sum().item()
            assert found == pytest.approx(total, rel=1e-2, abs=1e-3), layer
