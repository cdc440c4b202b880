"""Layers whose part in a net is unlike the others': several tops, a blob as a top, a matrix from a file, no top."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from autodial import proto
from autodial.errors import InputError
from autodial.net.net import Net
from autodial.proto import messages as pb


def net(text: str, base_dir: Path | None = None) -> Net:
    return Net(proto.parse_net(text), pb.TRAIN, base_dir=base_dir)


def test_one_convolution_for_both_of_a_pair() -> None:
    pair = net("""
        layer { name: "in" type: "Input" top: "a" top: "b" top: "similar"
          input_param { shape { dim: 4 dim: 2 dim: 3 dim: 3 } shape { dim: 4 dim: 2 dim: 3 dim: 3 } shape { dim: 4 } } }
        layer { name: "conv" type: "Convolution" bottom: "a" bottom: "b" top: "fa" top: "fb"
          convolution_param { num_output: 5 kernel_size: 3 weight_filler { type: "xavier" } } }
        layer { name: "loss" type: "ContrastiveLoss" bottom: "fa" bottom: "fb" bottom: "similar" }""")
    assert len(pair.params) == 2
    a = torch.randn(4, 2, 3, 3, generator=torch.Generator().manual_seed(0))
    blobs = pair({"a": a, "b": a, "similar": torch.ones(4)})
    assert pair.loss(blobs).item() == 0
    pair.loss(pair({"a": a, "b": a.flip(0), "similar": torch.ones(4)})).backward()
    assert pair.params[0].tensor.grad.abs().sum() > 0


def test_a_parameter_is_learned_and_saved() -> None:
    learned = net("""
        layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 4 dim: 3 } } }
        layer { name: "p" type: "Parameter" top: "p" parameter_param { shape { dim: 3 } } }
        layer { name: "bias" type: "Bias" bottom: "x" bottom: "p" top: "y" }
        layer { name: "loss" type: "Reduction" bottom: "y" top: "loss" loss_weight: 2 }""")
    x = torch.ones(4, 3)
    learned.loss(learned({"x": x})).backward()
    (param,) = learned.params
    assert param.tensor.grad.tolist() == [8, 8, 8]
    assert [layer.name for layer in learned.weights().layers if layer.blobs] == ["p"]


def test_infogain_matrix_beside_the_prototxt(tmp_path: Path) -> None:
    blob = pb.BlobProto(data=[1, 0, 0, 1])
    blob.shape.dim.extend([2, 2])
    (tmp_path / "matrix.binaryproto").write_bytes(blob.SerializeToString())
    text = """
        layer { name: "in" type: "Input" top: "x" top: "label"
          input_param { shape { dim: 4 dim: 2 } shape { dim: 4 } } }
        layer { name: "loss" type: "InfogainLoss" bottom: "x" bottom: "label" top: "loss"
          infogain_loss_param { source: "matrix.binaryproto" } }"""
    loss = net(text, tmp_path)({"x": torch.zeros(4, 2), "label": torch.zeros(4)})["loss"]
    assert loss.item() == pytest.approx(0.693147, rel=1e-5)
    with pytest.raises(InputError, match=r'layer "loss" \(InfogainLoss\): .*"matrix.binaryproto" does not exist'):
        net(text)


def test_places_of_the_maxima_are_an_output() -> None:
    pooled = net("""
        layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 1 dim: 1 dim: 4 dim: 4 } } }
        layer { name: "pool" type: "Pooling" bottom: "x" top: "y" top: "mask"
          pooling_param { kernel_size: 2 stride: 2 } }""")
    assert pooled.outputs == ("mask", "y")
    blobs = pooled({"x": torch.arange(16.0).view(1, 1, 4, 4)})
    assert blobs["mask"].tolist() == [[[[5, 7], [13, 15]]]]


def test_too_few_tops_for_a_convolution() -> None:
    with pytest.raises(InputError, match=r'layer "conv" \(Convolution\): 1 bottom must have as many tops, not 2'):
        net("""
            layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 1 dim: 1 dim: 4 dim: 4 } } }
            layer { name: "conv" type: "Convolution" bottom: "x" top: "y" top: "z"
              convolution_param { num_output: 2 kernel_size: 3 } }""")
