"""Export of nets whose statistics are mixed for each image by a side branch that predicts its latent domain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from autodial.converters.destinations.caffe import CaffeFolder
from autodial.converters.net_convert import convert
from autodial.converters.net_export import export
from autodial.deploy import Predictor
from autodial.errors import InputError
from autodial.proto import LayerWeights, Weights, parse_net
from autodial.proto import messages as pb

NET = """
layer { name: "data" type: "ImageData" top: "data" top: "label" include { phase: TEST }
  transform_param { scale: 0.01 mean_value: 90 }
  image_data_param { source: "test.txt" batch_size: 2 new_height: 6 new_width: 6 } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 5 kernel_size: 3 } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "positive" }
layer { name: "pool" type: "Pooling" bottom: "positive" top: "pooled" pooling_param { pool: AVE global_pooling: true } }
layer { name: "predictor" type: "InnerProduct" bottom: "pooled" top: "w_score" inner_product_param { num_output: 2 } }
layer { name: "soft" type: "Softmax" bottom: "w_score" top: "w" }
layer { name: "cut" type: "Slice" bottom: "w" top: "w1" top: "w2" slice_param { axis: 1 } }
layer { name: "norm-1" type: "MultiModalBatchNorm" bottom: "conv" bottom: "w1" top: "n1" }
layer { name: "norm-2" type: "MultiModalBatchNorm" bottom: "conv" bottom: "w2" top: "n2" }
layer { name: "sum" type: "Eltwise" bottom: "n1" bottom: "n2" top: "sum" }
layer { name: "fc" type: "InnerProduct" bottom: "sum" top: "fc" inner_product_param { num_output: 3 } }
layer { name: "accuracy" type: "Accuracy" bottom: "fc" bottom: "label" top: "accuracy" include { phase: TEST } }
"""
SHAPES = {
    "conv": ((5, 3, 3, 3), (5,)),
    "predictor": ((2, 5), (2,)),
    "norm-1": ((5,), (5,), (1,)),
    "norm-2": ((5,), (5,), (1,)),
    "fc": ((3, 80), (3,)),
}


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Six images in the list, (6, 6, 6, 3)."""
    monkeypatch.chdir(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (6, 6, 6, 3), dtype=np.uint8)
    for number, image in enumerate(pixels):
        cv2.imwrite(f"{number}.png", image)
    Path("test.txt").write_text("".join(f"{number}.png {number % 3}\n" for number in range(6)))
    return pixels


def weights(normalizer: float = 2) -> Weights:
    rng = np.random.default_rng(1)
    layers = []
    for name, shapes in SHAPES.items():
        blobs = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
        if name.startswith("norm"):
            blobs = [blobs[0], np.square(blobs[1]) + 1, np.full(1, normalizer, np.float32)]
        layers.append(LayerWeights(pb.LayerParameter(name=name), blobs))
    return Weights("n", layers)


def logits_by_torch(pixels: Any) -> Tensor:
    blobs = {layer.name: [torch.from_numpy(blob) for blob in layer.blobs] for layer in weights().layers}
    x = (torch.from_numpy(pixels).permute(0, 3, 1, 2).float() - 90) * 0.01
    conv = F.conv2d(x, *blobs["conv"])
    shares = F.linear(F.relu(conv).mean((2, 3)), *blobs["predictor"]).softmax(1)
    assert shares.std(0).min() > 0.01, "the images differ in their domains"
    total = torch.zeros_like(conv)
    for share, name in zip(shares.T, ("norm-1", "norm-2"), strict=True):
        mean, variance, normalizer = blobs[name]
        total += share.view(-1, 1, 1, 1) * F.batch_norm(conv, mean / normalizer, variance / normalizer)
    return F.linear(total.flatten(1), *blobs["fc"])


def test_the_file_computes_the_side_branch_for_each_image(images: Any) -> None:
    export(parse_net(NET), weights(), "model.onnx")
    logits, _ = Predictor("model.onnx", "cpu").predict(images)
    np.testing.assert_allclose(logits, logits_by_torch(images), rtol=1e-3, atol=1e-4)


def test_statistics_that_were_never_stored_are_refused(images: Any) -> None:
    with pytest.raises(InputError, match=r'"norm-1" \(MultiModalBatchNorm\): no statistics were ever stored'):
        export(parse_net(NET), weights(normalizer=0), "model.onnx")
    of_batch = NET.replace('top: "n2"', 'top: "n2" multimodal_batch_norm_param { use_global_stats: false }')
    with pytest.raises(InputError, match=r'"norm-2" \(MultiModalBatchNorm\) has use_global_stats: false'):
        export(parse_net(of_batch), weights(), "model.onnx")


def test_plain_caffe_has_no_such_layer(images: Any) -> None:
    with pytest.raises(
        InputError, match=r'"norm-1" \(MultiModalBatchNorm\) can\'t be exported, .*: BVLC Caffe lacks it'
    ):
        export(parse_net(NET), weights(), CaffeFolder(Path("caffe")))


def test_it_is_converted_without_weights_too(images: Any) -> None:
    convert(parse_net(NET), None, "net.onnx")
    assert Path("net.onnx").exists()
