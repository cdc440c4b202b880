"""Compares training runs of autodial.caffe with runs of the original: python check_solvers.py [FOLDER]

FOLDER holds a folder for each run: solvers/ beside this file, unless another is named. The exit status is 0 if all of
them agree. A run has net.prototxt, solver.prototxt, init.caffemodel and trace.npz: `data` and `label` (what the Input
layers held in each iteration), `losses` (of the last pass of each iteration) and `iterN/LAYER/I` (the parameters after
some of the iterations). Some runs have snapshots, from which they are resumed, too.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from judging import difference, judge

import autodial.caffe as caffe

FOLDER = Path(__file__).parent / "solvers"
LOSSES = ("loss-source", "loss-target")
TOLERANCE = 2e-6
"""Of the largest element of a blob, at least of 1."""
TOLERANCES = {"sgd_alpha_moves": 2e-5, "adagrad": 1e-4, "adam": 1e-4, "rmsprop": 1e-4, "latent_two_domains": 5e-5}
"""Alphas with lr_mult 10 amplify rounding: computed in float64, that run is as far from the record. So do the types
that divide a gradient by its own size. MultiModalBatchNorm's released gradient takes eps for 0: with that fault, the
run agrees to 2e-6."""
SCALED = ("adagrad", "adam", "rmsprop")
"""Types that divide a gradient by its own size."""
WITHOUT_EFFECT = ("conv1/1", "fc6/1", "conv1/sc/1", "conv1/dial/1", "fc6-dial/1")
"""Biases that the Dial layer behind them takes out again (conv1/sc's where every pooled value is positive), and the
means that they shift. In exact arithmetic these biases have gradients of 0, and what the record holds of them in SCALED
runs is the original's rounding."""


def starts(folder: Path = FOLDER) -> list[tuple[str, int]]:
    """All runs by name, and the iterations from which they can be followed: 0, and those of their snapshots."""
    found = []
    for run in sorted(path for path in folder.iterdir() if path.is_dir()):
        snapshots = sorted(int(path.stem.split("_")[-1]) for path in run.glob("*.solverstate"))
        with np.load(run / "trace.npz") as trace:
            found += [(run.name, start) for start in (0, *snapshots) if start < len(trace["data"])]
    return found


def load(run: Path) -> dict[str, Any]:
    """The trace of a run."""
    with np.load(run / "trace.npz") as archive:
        return dict(archive)


def differences(
    run: str, trace: Mapping[str, Any], iteration: int, losses: Sequence[float], blob: Callable[[str, int], Any]
) -> list[str]:
    """What differs from the original's run after an iteration.

    Args:
        iteration: how many are done.
        losses: LOSSES, in the last pass.
        blob: gives a parameter by layer and index.
    """
    tolerance = TOLERANCES.get(run, TOLERANCE)
    found = []
    for key in trace:
        number, _, name = key.partition("/")
        if number == f"iter{iteration}" and not (run in SCALED and name in WITHOUT_EFFECT):
            layer, _, index = name.rpartition("/")
            found.append(difference(key, blob(layer, int(index)), trace[key], rtol=0, atol=tolerance))
    name = f"losses after iteration {iteration}"
    found.append(difference(name, losses, trace["losses"][iteration - 1], rtol=1e-5, atol=tolerance))
    return [text for text in found if text is not None]


@contextmanager
def _inside_copy(run: Path) -> Iterator[None]:
    """Work in a copy, as a run writes snapshots over the record's, and with one thread, which adds up in one order."""
    before, threads = Path.cwd(), torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(shutil.copytree(run, Path(folder, run.name)))
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            os.chdir(before)


def check(run: Path, start: int) -> list[str]:
    """What is different in the first iteration in which the run and autodial.caffe don't agree."""
    trace = load(run)
    with _inside_copy(run):
        solver = caffe.get_solver("solver.prototxt")
        if start:
            solver.restore(f"snap_iter_{start}.solverstate")
        else:
            solver.net.copy_from("init.caffemodel")
        for i in range(start, len(trace["data"])):
            for name in ("data", "label"):
                solver.net.blobs[name].data[...] = trace[name][i]
            solver.step(1)
            losses = [solver.net.blobs[name].data for name in LOSSES]
            found = differences(run.name, trace, i + 1, losses, lambda layer, j: solver.net.params[layer][j].data)
            if found:
                return found
    return []


def main(folder: Path = FOLDER) -> int:
    caffe.init_log(1)  # without the solvers' lines
    runs = starts(folder)
    return judge({f"{name} from {start}": partial(check, folder.resolve() / name, start) for name, start in runs})


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:2])))
