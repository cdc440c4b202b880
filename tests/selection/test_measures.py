"""What is measured of a trained candidate."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from autodial.errors import DivergedError
from autodial.proto import read_net, read_weights, write_weights
from autodial.selection.holdout import Fold
from autodial.selection.measures import measure
from autodial.training.solver import Solver


def test_scores_that_overflow_are_those_of_a_training_that_diverged(
    stripes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights are finite, so that there is a snapshot."""
    monkeypatch.chdir(stripes)
    model, _ = Solver.from_file("solver.prototxt", overrides=[f"solver.snapshot_prefix={tmp_path / 'net'}"]).snapshot()
    saved = read_weights(model)
    weights = next(layer for layer in saved.layers if layer.name == "fc").blobs[0]
    assert weights is not None
    weights[:] = 3e38
    write_weights(saved, model)
    source = stripes / "source.txt"
    with pytest.raises(DivergedError, match=r'after training, scores in blob "fc" are not finite'):
        measure(
            read_net("net.prototxt"),
            model,
            Fold(training=source, held_out=source, sample=source),
            base_dir=stripes,
            device=torch.device("cpu"),
            workers=0,
            target_labels=False,
        )
