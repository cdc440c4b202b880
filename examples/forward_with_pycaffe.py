"""Run a deploy net on random numbers, as a pycaffe script does."""

from __future__ import annotations

import argparse

import numpy as np

import autodial.caffe as caffe
from autodial.errors import AutodialError


def main(prototxt: str, weights: str) -> None:
    net = caffe.Net(prototxt, weights, caffe.TEST)
    name = net.inputs[0]
    net.blobs[name].data[...] = np.random.default_rng(0).random(net.blobs[name].data.shape)
    for output, values in net.forward().items():
        print(f"{output}: {values.shape}, the first row's largest value is {values[0].max():.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prototxt", metavar="DEPLOY.prototxt")
    parser.add_argument("weights", metavar="WEIGHTS.caffemodel")
    try:
        main(**vars(parser.parse_args()))
    except AutodialError as error:
        parser.error(str(error))
