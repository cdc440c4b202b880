"""Every record of a single layer, as the original Caffe computed it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from autodial import proto
from autodial.layers import LayerContext, layer_class
from autodial.layers.base import TEST, TRAIN

RECORDS = Path(__file__).parent / "records"


def single_layer_records() -> list[str]:
    names = []
    for path in sorted(RECORDS.glob("*.npz")):
        net = proto.parse_net(str(np.load(path)["prototxt"]))
        if sum(layer.type != "Input" for layer in net.layer) == 1:
            names.append(path.stem)
    return names


def assert_close(name: str, got: torch.Tensor, want: np.ndarray, rtol: float, atol: float) -> None:
    assert got.shape == want.shape, name
    atol *= max(1.0, float(np.abs(want).max(initial=0)))
    np.testing.assert_allclose(got.detach().numpy(), want, rtol, atol, err_msg=name)


@pytest.mark.parametrize("name", single_layer_records())
def test_record(name: str) -> None:
    with np.load(RECORDS / f"{name}.npz") as archive:
        record = {key: archive[key] for key in archive.files}
    param = next(p for p in proto.parse_net(str(record["prototxt"])).layer if p.type != "Input")
    bottoms = [torch.from_numpy(record[f"in/{blob}"]) for blob in param.bottom]
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
    assert [tuple(top.shape) for top in tops] == layer.top_shapes(shapes)
    for blob, top in zip(param.top, tops, strict=True):
        assert_close(f"out/{blob}", top, record[f"out/{blob}"], rtol=2e-4, atol=2e-5)
    for i, blob in enumerate(layer.blobs):
        assert_close(f"after/{i}", blob, record[f"after/{param.name}/{i}"], rtol=2e-4, atol=2e-5)

    if not any(key.startswith("din/") for key in record):
        return
    loss_weight = param.loss_weight[0] if param.loss_weight else 1.0
    gradients = [
        torch.from_numpy(record[f"dtop/{blob}"]) if f"dtop/{blob}" in record else torch.tensor(loss_weight)
        for blob in param.top
    ]
    torch.autograd.backward(tops, gradients)
    for bottom, blob in zip(bottoms, param.bottom, strict=True):
        if f"din/{blob}" in record:
            assert_close(f"din/{blob}", bottom.grad, record[f"din/{blob}"], rtol=1e-3, atol=1e-4)
    for i, blob in enumerate(layer.blobs):
        got = torch.zeros_like(blob) if blob.grad is None else blob.grad
        assert_close(f"dparam/{i}", got, record[f"dparam/{param.name}/{i}"], rtol=1e-3, atol=1e-4)
