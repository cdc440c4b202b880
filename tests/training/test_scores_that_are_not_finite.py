"""What trainings and `autodial test` say of scores that are no numbers, as those of damaged weights are."""

from __future__ import annotations

import csv
from collections.abc import Callable
from math import inf, nan
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from autodial.net.net import Net
from autodial.proto import LayerWeights, Weights, parse_net, read_weights, write_weights
from autodial.proto import messages as pb
from autodial.training.run_record import read_log
from autodial.training.score_watch import ScoreWatch, not_finite
from autodial.training.solver import Solver

Run = Callable[..., tuple[int, str, str]]
TRAIN = ("train", "--solver", "solver.prototxt", "--workers", "0", "--device", "cpu")
TEST = ("test", "--net", "net.prototxt", "--workers", "0", "--device", "cpu")
# the classifier's bias is NaN, and nobody looks at the loss
BROKEN = ("fc.inner_product_param.weight_filler.type=constant", "fc.inner_product_param.weight_filler.value=3e38")
BROKEN += ("solver.display=0", "solver.snapshot_after_train=false", "solver.snapshot=0", "solver.max_iter=1")


@pytest.fixture
def weights(project: Path) -> Path:
    """broken.caffemodel: of the classifier's biases the last one, class 2's, is NaN."""
    solver = Solver.from_file("solver.prototxt")
    solver.step(2)
    solver.close()
    model, _ = solver.snapshot()
    saved = read_weights(model)
    bias = next(layer for layer in saved.layers if layer.name == "fc").blobs[1]
    assert bias is not None
    bias[2] = nan
    write_weights(saved, "broken.caffemodel")
    return Path("broken.caffemodel")


def test_test_ends_with_status_1_and_writes_its_table(autodial: Run, weights: Path) -> None:
    status, out, err = autodial(*TEST, "--weights", str(weights), "-o", "scores.csv")
    assert status == 1
    assert (
        f"autodial: error: {weights}: the scores are not finite (NaN or infinite) "
        'in blob "fc" for 11 of 11 rows: the training diverged, or the file is damaged\n'
    ) in err
    # in Caffe, a NaN behind all others wins: right are the 3 of 11 images of class 2
    assert f"accuracy = {3 / 11:.6g}\n" in out and "loss-test = nan" in out
    with Path("scores.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 11 and {row["loss"] for row in rows} == {"nan"}


def test_single_rows_are_counted_once_each(autodial: Run) -> None:
    x = np.ones((5, 3), np.float32)
    x[1, 0], x[4, 2] = nan, inf
    with h5py.File("rows.h5", "w") as file:
        file["x"], file["label"] = x, np.zeros(5, np.float32)
    Path("rows.txt").write_text("rows.h5\n")
    Path("rows.prototxt").write_text("""
        layer { name: "data" type: "HDF5Data" top: "x" top: "label"
          hdf5_data_param { source: "rows.txt" batch_size: 2 } }
        layer { name: "score" type: "InnerProduct" bottom: "x" top: "score"
          inner_product_param { num_output: 4 bias_term: false } }
        layer { name: "loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "label" top: "loss" }
    """)
    layer = LayerWeights(pb.LayerParameter(name="score"), [np.eye(4, 3, dtype=np.float32)])
    write_weights(Weights("net", [layer]), "w.caffemodel")
    command = ("test", "--net", "rows.prototxt", "--weights", "w.caffemodel", "--workers", "0")
    status, _, err = autodial(*command)
    assert status == 1 and 'in blob "score" for 2 of 5 rows' in err
    status, _, err = autodial(*command, "--iterations", "3")  # the list starts again
    assert status == 1 and 'in blob "score" for 2 of 6 rows' in err


def test_training_s_tests_say_so(autodial: Run, weights: Path) -> None:
    status, out, err = autodial(*TRAIN, "--weights", str(weights), "--set", "solver.snapshot_prefix=again")
    lines = out.splitlines()
    (warning,) = (line for line in lines if line.startswith("Warning: "))
    assert warning == (
        'Warning: the scores are not finite (NaN or infinite) in blob "fc" for 8 of 8 rows, '
        "so that accuracies mean nothing"
    )
    assert lines.index(warning) == lines.index("Iteration 0, testing net 0") + 4
    assert status == 1 and "training has diverged" in err
    (row,) = read_log(Path("again_run"))
    assert row["not_finite"] == {"fc": [8, 8]}


def test_finite_scores_go_unmentioned(autodial: Run) -> None:
    status, out, err = autodial(*TRAIN)
    assert status == 0 and "finite" not in out + err
    assert [row["not_finite"] for row in read_log(Path("snapshots/stripes_run")) if row["event"] == "test"] == [{}] * 3
    status, out, err = autodial(*TEST, "--weights", "snapshots/stripes_iter_8.caffemodel")
    assert status == 0 and "finite" not in out + err


def test_ranks_count_together(on_ranks: Callable[..., list[tuple[int | None, Any]]]) -> None:
    for status, result in on_ranks(3, "train", overrides=BROKEN):  # of which one tests no batch
        assert status == 0
        _, tests, _ = result
        assert tests[0].not_finite == {"fc": (8, 8)}


NET = """
    layer { name: "data" type: "Input" top: "p" top: "label" top: "map"
      input_param { shape { dim: 4 dim: 3 } shape { dim: 4 } shape { dim: 4 dim: 2 dim: 2 dim: 3 } } }
    layer { name: "log" type: "Log" bottom: "p" top: "log p" }
    layer { name: "accuracy" type: "Accuracy" bottom: "log p" bottom: "label" top: "accuracy" }
    layer { name: "accuracy" type: "Accuracy" bottom: "log p" bottom: "label" top: "top 2"
      accuracy_param { top_k: 2 } }
    layer { name: "softmax" type: "Softmax" bottom: "map" top: "map" }
    layer { name: "distance" type: "EuclideanLoss" bottom: "label" bottom: "label" top: "distance" }
"""


def test_each_blob_is_counted_once_and_a_probability_of_0_is_none() -> None:
    net = Net(parse_net(NET), pb.TEST)
    p = torch.tensor([[0, 0.5, 0.5], [1, 0, 0], [0, 0, 0], [0.5, nan, 0.5]])
    map_ = torch.zeros(4, 2, 2, 3)
    map_[1, 0, 1, 2], map_[2, 1, 0, 0], map_[3, 1, 1, 1] = nan, inf, -inf
    blobs = {"p": p, "label": torch.tensor([1, 0, 2.0, nan]), "map": map_}
    blobs["label"] = torch.tensor([1, 0, 2.0, 1])
    with ScoreWatch(net) as watch:
        net(blobs)
        net({name: blob[:1] for name, blob in blobs.items()})
    net(blobs)  # is not looked at any more
    assert p.log().softmax(1).isfinite().all(1).tolist() == [True, True, False, False]
    assert not_finite(watch.counts()) == {"log p": (2, 5), "map": (2, 5)}
