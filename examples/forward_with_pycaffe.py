"""Run a deploy net as a pycaffe script does: forward_with_pycaffe.py DEPLOY.prototxt WEIGHTS.caffemodel."""

from __future__ import annotations

import sys

import numpy as np

import autodial.caffe as caffe


def main(prototxt: str, weights: str) -> None:
    net = caffe.Net(prototxt, weights, caffe.TEST)
    name = net.inputs[0]
    net.blobs[name].data[...] = np.random.default_rng(0).random(net.blobs[name].data.shape)
    for output, values in net.forward().items():
        print(f"{output}: {values.shape}, the first row's largest value is {values[0].max():.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
