"""A small AutoDIAL net on striped images that the tests draw themselves."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

NET = """
name: "stripes"
layer { name: "source" type: "ImageData" top: "source" top: "label" include { phase: TRAIN }
  transform_param { scale: 0.0078125 } image_data_param { source: "source.txt" batch_size: 8 shuffle: true } }
layer { name: "target" type: "ImageData" top: "target" top: "target-label" include { phase: TRAIN }
  transform_param { scale: 0.0078125 } image_data_param { source: "target.txt" batch_size: 8 shuffle: true } }
layer { name: "silence" type: "Silence" bottom: "target-label" include { phase: TRAIN } }
layer { name: "data" type: "Concat" bottom: "source" bottom: "target" top: "data" include { phase: TRAIN }
  concat_param { axis: 0 } }
layer { name: "test" type: "ImageData" top: "data" top: "label" include { phase: TEST }
  transform_param { scale: 0.0078125 } image_data_param { source: "test.txt" batch_size: 7 } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "conv/dial" type: "Dial" bottom: "conv" top: "conv"
  dial_param { slice_point: 8 moving_average_fraction: 0.8 weight_filler { type: "constant" value: 1 } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "fc" type: "InnerProduct" bottom: "conv" top: "fc"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "slice" type: "Slice" bottom: "fc" top: "fc-source" top: "fc-target" include { phase: TRAIN }
  slice_param { axis: 0 slice_point: 8 } }
layer { name: "loss-source" type: "SoftmaxWithLoss" bottom: "fc-source" bottom: "label" top: "loss-source"
  include { phase: TRAIN } }
layer { name: "loss-target" type: "EntropyLoss" bottom: "fc-target" top: "loss-target" loss_weight: 0.1
  include { phase: TRAIN } }
layer { name: "accuracy" type: "Accuracy" bottom: "fc" bottom: "label" top: "accuracy" include { phase: TEST } }
"""

SOLVER = """
net: "net.prototxt"
base_lr: 0.02 lr_policy: "fixed" momentum: 0.9 weight_decay: 0.001
max_iter: 12 display: 4 snapshot_prefix: "stripes" random_seed: 5 solver_mode: CPU
"""


@pytest.fixture(scope="session")
def stripes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with net.prototxt, solver.prototxt, 60 source and 40 darker target images of 3 classes, and lists."""
    folder = tmp_path_factory.mktemp("stripes")
    rng = np.random.default_rng(0)
    for domain, count, ink in (("source", 60, 128), ("target", 40, 90)):
        lines = []
        for i in range(count):
            image = rng.integers(0, 64, (8, 8, 3), dtype=np.uint8)
            image[:, :, i % 3] += ink
            assert cv2.imwrite(str(folder / f"{domain} {i}.png"), image)
            lines.append((f"{domain} {i}.png", i % 3))
        labelled = domain == "source"
        text = "".join(f"{path} {label if labelled else 0}\n" for path, label in lines)
        (folder / f"{domain}.txt").write_text(text)
    (folder / "test.txt").write_text("".join(f"{path} {label}\n" for path, label in lines))
    (folder / "net.prototxt").write_text(NET)
    (folder / "solver.prototxt").write_text(SOLVER)
    return folder
