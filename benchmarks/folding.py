"""What folding pays: images per second of a net's ONNX graph before folding, as affine ops, and folded, side by side.

    python benchmarks/folding.py [NET.prototxt ...] [--batch-size N] [--rounds N] [--threads N] [--quick]

Weights are the fillers', statistics are random. The three graphs of a net's TEST phase are

- unfolded: every Dial layer with the target's statistics, as the exporter writes them;
- affine: `autodial export --keep-affine`, the statistics as Mul and Add;
- folded: as `autodial export` writes it.

ONNX Runtime runs all three on the CPU with its optimizations on, and again with them off, as it folds some graphs
itself; the nodes that are counted are those that it leaves.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from measuring import describe, side_by_side

from autodial.converters.net_export import NetLogits, export
from autodial.net.net import Net
from autodial.netparam.graph import Graph
from autodial.netparam.net_state import filter_net
from autodial.netparam.shipped import shipped_net
from autodial.proto import LayerWeights, Weights, read_net
from autodial.proto import messages as pb

WATCHED = ("BatchNormalization", "Mul", "Add")
"""What Dial and Scale layers are in a graph."""


def random_weights(net: Net) -> Weights:
    """The fillers' weights, with statistics as if the net had been trained."""
    rng = np.random.default_rng(0)
    layers = []
    for message in net.param.layer:
        blobs = [blob.detach().numpy().copy() for blob in net.layer(message.name).blobs]
        if message.type == "Dial":
            _, mean, variance, normalizer = blobs
            mean[:], variance[:] = rng.normal(0, 0.1, mean.shape), rng.uniform(0.5, 2, variance.shape)
            normalizer[:] = 1
        layers.append(LayerWeights(message, blobs))
    return Weights(net.param.name, layers)


def graphs(path: Path, folder: Path) -> tuple[dict[str, Path], tuple[int, ...]]:
    """The three graphs' files, each from the net's float32 blob to its logits, and that blob's shape."""
    param = read_net(path)
    graph = Graph(filter_net(param, pb.TEST).layer)
    scores = graph.logits(None)
    logits = graph.names[scores]
    (data,) = (node for node in graph.ancestors(scores) if not node.bottoms)
    images = data.param.image_data_param
    side = data.param.transform_param.crop_size or images.new_height
    shape = (1, 3 if images.is_color else 1, side, side)
    graph.feed(data.tops[0], shape)
    deploy: Any = graph.net(param.name, scores)
    net = Net(deploy, pb.TEST, seed=0)
    weights = random_weights(net)
    net.load_weights(weights)
    files = {name: folder / f"{name}.onnx" for name in ("unfolded", "affine", "folded")}
    torch.onnx.export(
        NetLogits(net, logits).eval(),
        (torch.zeros(shape),),
        str(files["unfolded"]),
        input_names=["data"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        opset_version=18,
        dynamo=True,
        verbose=False,
    )
    for name in ("affine", "folded"):
        export(deploy, weights, files[name], logits=logits, raw_input=True, keep_affine=name == "affine")
    return files, shape


def session(file: Path, threads: int, optimized: Path | None) -> Any:
    """ONNX Runtime on the CPU, writing the graph as it optimizes it; without a file for that, it does not."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    if optimized is None:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    else:
        options.optimized_model_filepath = str(optimized)
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def measure(path: Path, options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as work:
        files, shape = graphs(path, Path(work))
        blob = np.random.default_rng(0).normal(0, 50, (options.batch_size, *shape[1:])).astype(np.float32)
        print(f"{path}: batches of {options.batch_size}, {shape[1]}x{shape[2]}x{shape[3]}")
        for words, optimizes in (("optimizations on", True), ("optimizations off", False)):
            runs, left = {}, {}
            for name, file in files.items():
                optimized = Path(work) / f"{name}.optimized.onnx" if optimizes else None
                loaded = session(file, options.threads, optimized)
                entry = loaded.get_inputs()[0].name
                runs[name] = lambda loaded=loaded, entry=entry: loaded.run(None, {entry: blob})
                left[name] = Counter(node.op_type for node in onnx.load(optimized or file).graph.node)
            times = side_by_side(runs, torch.device("cpu"), rounds=options.rounds)
            for name in runs:
                rates = sorted(options.batch_size / spent for spent in times[name])
                faster = statistics.median(a / b for a, b in zip(times["unfolded"], times[name], strict=True))
                ops = ", ".join(f"{left[name][op]} {op}" for op in WATCHED if left[name][op]) or "none of them left"
                print(
                    f"  {words:17} {name:8} {statistics.median(rates):8.1f} images/s "
                    f"({rates[0]:.1f} to {rates[-1]:.1f}), x{faster:.2f}; {left[name].total()} nodes, {ops}"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*", type=Path, help="train_val nets (default: the shipped inception_bn)")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="the shipped digits' net once, to see that it runs")
    options = parser.parse_args()
    if options.quick:
        options.rounds = 1
    torch.set_num_threads(options.threads)
    print(f"{describe(torch.device('cpu'))}, ONNX Runtime {onnxruntime.__version__}")
    for path in options.nets or [shipped_net("digits" if options.quick else "inception_bn")]:
        measure(path, options)


if __name__ == "__main__":
    main()
