"""A small net that reads image lists, with weights whose Dial layer holds statistics of its images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from autodial.net.net import Net
from autodial.proto import Weights, parse_net
from autodial.proto import messages as pb

NET = """
name: "small"
layer { name: "source" type: "ImageData" top: "source" top: "label" include { phase: TRAIN }
  image_data_param { source: "source.txt" batch_size: 4 new_height: 12 new_width: 12 } }
layer { name: "target" type: "ImageData" top: "target" top: "unused" include { phase: TRAIN }
  image_data_param { source: "target.txt" batch_size: 4 new_height: 12 new_width: 12 } }
layer { name: "silence" type: "Silence" bottom: "unused" include { phase: TRAIN } }
layer { name: "both" type: "Concat" bottom: "source" bottom: "target" top: "data" concat_param { axis: 0 }
  include { phase: TRAIN } }
layer { name: "test" type: "ImageData" top: "data" top: "label" include { phase: TEST }
  transform_param { crop_size: 10 scale: 0.0078125 mean_value: 104 mean_value: 117 mean_value: 123 }
  image_data_param { source: "test.txt" batch_size: 4 new_height: 12 new_width: 12 } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 8 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "dial" type: "Dial" bottom: "conv" top: "conv" dial_param { slice_point: 4 } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "norm" type: "LRN" bottom: "conv" top: "norm" lrn_param { local_size: 3 alpha: 1 } }
layer { name: "pool" type: "Pooling" bottom: "norm" top: "pool" pooling_param { pool: MAX kernel_size: 3 stride: 2 } }
layer { name: "fc" type: "InnerProduct" bottom: "pool" top: "fc"
  inner_product_param { num_output: 4 weight_filler { type: "gaussian" std: 0.5 } } }
layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" include { phase: TEST } }
"""


def write_images(folder: Path, count: int) -> list[Path]:
    """Images of different colours and contrasts, so that a net tells them apart."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(5)
    paths = [folder / f"{i:03}.png" for i in range(count)]
    for path in paths:
        coarse = rng.integers(0, 256, (3, 3, 3), dtype=np.uint8)
        cv2.imwrite(str(path), cv2.resize(coarse, (12, 12), interpolation=cv2.INTER_CUBIC))
    return paths


def small_trained_net(folder: Path, seed: int = 0) -> tuple[Any, Weights, Path]:
    """NET, weights with statistics of its images, and the folder with its lists; `seed` draws the weights."""
    images = write_images(folder / "images", 120)
    (folder / "target.txt").write_text("".join(f"images/{path.name} -1\n" for path in images[:100] * 2))
    (folder / "test.txt").write_text("".join(f"images/{path.name} 0\n" for path in images))
    message = parse_net(NET)
    train = parse_net(NET)
    for layer in train.layer:
        if layer.type == "ImageData":
            layer.type = "Input"
            layer.ClearField("image_data_param")
            layer.ClearField("transform_param")
            layer.input_param.shape.add(dim=[4, 3, 10, 10])
            layer.input_param.shape.add(dim=[4])
    net = Net(train, pb.TRAIN, seed=seed)
    pixels = np.stack([cv2.imread(str(path))[1:11, 1:11].transpose(2, 0, 1) for path in images[:8]])
    blobs = torch.from_numpy(((pixels - 115.0) / 128).astype(np.float32))
    torch.manual_seed(0)
    net({"source": blobs[:4], "target": blobs[4:], "label": torch.zeros(4), "unused": torch.zeros(4)})
    return message, net.weights(), folder
