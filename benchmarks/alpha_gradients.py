"""What the two losses do to each Dial layer's alpha in the course of a training, as Markdown.

    python benchmarks/alpha_gradients.py SOLVER.prototxt [--seed N] [--set LAYER.FIELD=VALUE ...] [--at 25 50 100 ...]

At some iterations, training pauses, and the gradients of the source's loss and of the target's entropy with respect to
alpha are computed on 40 batches that training has not seen yet: their means and standard errors. The entropy's is
multiplied by lambda, as in training. Where a gradient is positive, the loss wants alpha to be smaller.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from contextlib import closing
from pathlib import Path
from statistics import mean, stdev

import torch

from autodial.layers import DomainAlignment
from autodial.net.feed import Feed
from autodial.net.net import Net
from autodial.training.solver import Solver

BATCHES = 40


def gradients(net: Net, first: int) -> dict[str, list[list[float]]]:
    """By loss that counts, the gradient of each Dial layer's alpha on each batch; the net is left as it was."""
    dials = [layer for name in net.layer_names if isinstance(layer := net.layer(name), DomainAlignment)]
    blobs = [blob for dial in dials for blob in dial.blobs]
    saved = [blob.detach().clone() for blob in blobs]
    found: dict[str, list[list[float]]] = {name: [] for name in net.loss_weights}
    feed = Feed(net, range(first, first + BATCHES), device=blobs[0].device, workers=0)
    with closing(feed):
        for batch in feed:
            outputs = net(batch)
            for name, weight in net.loss_weights.items():
                loss = outputs[name] * weight
                of_each = torch.autograd.grad(loss.sum(), [dial.alpha for dial in dials], retain_graph=True)
                found[name].append([float(gradient.sum()) for gradient in of_each])
    with torch.no_grad():
        for blob, old in zip(blobs, saved, strict=True):
            blob.copy_(old)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("solver", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", dest="settings", action="append", default=[])
    parser.add_argument("--at", type=int, nargs="+", default=[10, 25, 50, 100, 200, 400, 800])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        solver = Solver.from_file(
            arguments.solver,
            device="cpu",
            seed=arguments.seed,
            overrides=[*arguments.settings, f"solver.snapshot_prefix={folder}/net"],
        )
        names = list(solver.net.alphas())
        print(f"| iteration | | {' | '.join(names)} |\n|---|---|{'---|' * len(names)}")
        for iteration in arguments.at:
            solver.step(iteration - solver.iter)
            alphas = " | ".join(f"{alpha:.2f}" for alpha in solver.net.alphas().values())
            print(f"| {iteration} | alpha | {alphas} |")
            # far beyond what training reads
            for name, rows in gradients(solver.net, arguments.at[-1] + 1).items():
                cells = [f"{mean(v):+.3f} ± {stdev(v) / math.sqrt(len(v)):.3f}" for v in zip(*rows, strict=True)]
                print(f"| | {name} | {' | '.join(cells)} |", flush=True)
        solver.close()


if __name__ == "__main__":
    main()
