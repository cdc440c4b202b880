"""What pycaffe's view of every blob costs: forward passes of LeNet through autodial.caffe and through the torch module.

python benchmarks/pycaffe_forward.py [--batch-size N] [--passes N]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

import autodial.caffe as caffe
import autodial.net.net
from autodial.proto import parse_net

NET = """
layer {{ name: "data" type: "Input" top: "data" input_param {{ shape {{ dim: {batch} dim: 1 dim: 28 dim: 28 }} }} }}
layer {{ name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
  convolution_param {{ num_output: 20 kernel_size: 5 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1" pooling_param {{ kernel_size: 2 stride: 2 }} }}
layer {{ name: "conv2" type: "Convolution" bottom: "pool1" top: "conv2"
  convolution_param {{ num_output: 50 kernel_size: 5 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "pool2" type: "Pooling" bottom: "conv2" top: "pool2" pooling_param {{ kernel_size: 2 stride: 2 }} }}
layer {{ name: "ip1" type: "InnerProduct" bottom: "pool2" top: "ip1"
  inner_product_param {{ num_output: 500 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "relu1" type: "ReLU" bottom: "ip1" top: "ip1" }}
layer {{ name: "ip2" type: "InnerProduct" bottom: "ip1" top: "ip2"
  inner_product_param {{ num_output: 10 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "prob" type: "Softmax" bottom: "ip2" top: "prob" }}
"""


def milliseconds(run: Callable[[], object], passes: int) -> str:
    """Median and quartiles of one call."""
    for _ in range(10):
        run()
    times = []
    for _ in range(passes):
        started = time.perf_counter()
        run()
        times.append((time.perf_counter() - started) * 1e3)
    low, median, high = statistics.quantiles(times, n=4)
    return f"{median:.3f} ms ({low:.3f} to {high:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--passes", type=int, default=500)
    arguments = parser.parse_args()

    text = NET.format(batch=arguments.batch_size)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "lenet.prototxt")
        path.write_text(text)
        shown = caffe.Net(str(path), caffe.TEST)
    shown.blobs["data"].data[...] = 0.5
    plain = autodial.net.net.Net(parse_net(text), caffe.TEST)
    data = torch.full((arguments.batch_size, 1, 28, 28), 0.5)

    print(f"batch of {arguments.batch_size}, {arguments.passes} passes, {torch.get_num_threads()} threads")
    with torch.no_grad():
        print("torch module:  ", milliseconds(lambda: plain({"data": data}), arguments.passes))
    print("autodial.caffe:", milliseconds(shown.forward, arguments.passes))
    for blob in shown.blobs.values():
        assert blob.data.size  # from now on every blob has an array to keep up to date
    print("  every blob an array:", milliseconds(shown.forward, arguments.passes))


if __name__ == "__main__":
    main()
