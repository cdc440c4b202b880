"""make_model.py DIR: images, a small AutoDIAL net's predictor, and the labels that the unfolded net gives them."""

from __future__ import annotations

import sys
from pathlib import Path

import cv2
import numpy as np
import torch

from autodial.converters.net_export import export
from autodial.net.net import Net
from autodial.proto import messages as pb
from autodial.proto import parse_net

NET = """
name: "small"
layer { name: "data" type: "ImageData" top: "data" top: "label" include { phase: TEST }
  transform_param { scale: 0.0078125 mean_value: 128 } image_data_param { source: "list.txt" batch_size: 4 } }
layer { name: "data" type: "Input" top: "data" include { phase: TRAIN }
  input_param { shape { dim: 8 dim: 3 dim: 12 dim: 12 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 6 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "dial" type: "Dial" bottom: "conv" top: "conv" dial_param { weight_filler { value: 0.8 } } }
layer { name: "scale" type: "Scale" bottom: "conv" top: "conv" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "fc" type: "InnerProduct" bottom: "conv" top: "fc"
  inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "accuracy" type: "Accuracy" bottom: "fc" bottom: "label" top: "accuracy" include { phase: TEST } }
"""


def main(folder: Path) -> None:
    (folder / "images").mkdir(parents=True)
    random = np.random.default_rng(0)
    names = [f"{i}.png" for i in range(12)]
    for name in names:
        cv2.imwrite(str(folder / "images" / name), random.integers(0, 256, (12, 12, 3), np.uint8))
    (folder / "list.txt").write_text("".join(f"images/{name} 0\n" for name in names))

    message = parse_net(NET, "small net")
    train = Net(message, pb.TRAIN, base_dir=folder)
    for _ in range(3):
        train({"data": torch.from_numpy(random.normal(size=(8, 3, 12, 12)).astype(np.float32))})
    weights = train.weights()
    export(message, weights, folder / "target_predictor.onnx", base_dir=folder)

    test = Net(message, pb.TEST, base_dir=folder)
    test.load_weights(weights)
    source = test.layer("data").source
    with torch.no_grad(), (folder / "expected.txt").open("w") as expected:
        for index in range(3):
            images, labels = (torch.from_numpy(array) for array in source.batch(index))
            scores = test.blobs({"data": images, "label": labels}, ["fc"])["fc"]
            for entry, label in zip(source.rows(index), scores.argmax(1).tolist(), strict=True):
                expected.write(f"{Path(entry.path).name} {label}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
