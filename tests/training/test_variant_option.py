"""`--variant` as a user gives it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from autodial.netparam.variants import VARIANTS
from autodial.proto import parse_net, read_weights, write_weights
from autodial.training.run_record import read_log

Run = Callable[..., tuple[int, str, str]]
TRAIN = ("train", "--solver", "solver.prototxt", "--workers", "0", "--device", "cpu")
WEIGHTS = "snapshots/stripes_iter_8.caffemodel"


@pytest.mark.parametrize("command", ["train", "test", "export", "time"])
def test_help_names_every_variant(autodial: Run, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    _, out, _ = autodial(command, "--help")
    words = out.replace("│", " ").replace(",", " ").split()
    assert set(VARIANTS).issubset(words)


def test_source_only_from_training_to_the_exported_file(autodial: Run) -> None:
    variant = ("--variant", "source-only")
    status, _, err = autodial(*TRAIN, *variant)
    assert (status, err) == (0, "")
    (start,) = json.loads(Path("snapshots/stripes_run/run.json").read_text())["starts"]
    assert start["variants"] == ["source-only"]
    assert "--variant source-only" in start["command"]
    (net,) = start["nets"]
    assert not {"Dial", "EntropyLoss", "Concat", "Slice"}.intersection(layer.type for layer in parse_net(net).layer)
    row = next(row for row in read_log(Path("snapshots/stripes_run")) if row["event"] == "train")
    assert (row["alphas"], list(row["outputs"])) == ({}, ["loss-source"])

    status, _, err = autodial("test", "--net", "net.prototxt", "--weights", WEIGHTS, "--workers", "0", *variant)
    assert (status, err) == (0, "")
    # the net as it is misses its Dial layer's statistics
    status, _, err = autodial("test", "--net", "net.prototxt", "--weights", WEIGHTS, "--workers", "0")
    assert status == 2 and "has nothing for conv/dial" in err
    status, out, err = autodial("export", "--net", "net.prototxt", "--weights", WEIGHTS, *variant)
    assert (status, err) == (0, "")
    assert "statistics" not in out.splitlines()[0]
    status, out, _ = autodial("time", "--net", "net.prototxt", "--iterations", "1", "--json", *variant)
    record = json.loads(out)
    assert (status, record["variants"]) == (0, ["source-only"])
    assert "conv/dial" not in [layer["name"] for layer in record["layers"]]


@pytest.mark.parametrize("command", ["test", "export"])
def test_weights_trained_with_alignment_do_not_fit_a_variant_without(
    autodial: Run, command: str, caplog: pytest.LogCaptureFixture
) -> None:
    autodial(*TRAIN)
    workers = ("--workers", "0") if command == "test" else ()
    given = (command, "--net", "net.prototxt", "--weights", WEIGHTS, *workers)
    assert autodial(*given)[0] == 0 and "that the net lacks" not in caplog.text
    assert autodial(*given, "--variant", "source-only")[0] == 0
    assert caplog.text.count("trained with 1 Dial layer that the net lacks, conv/dial first") == 1


def test_settings_come_after_the_variant(autodial: Run) -> None:
    Path("wide.settings").write_text("conv.convolution_param.num_output=6\nconv/dial.param[0].lr_mult=5\n")
    setting = ("--set", "conv/dial.dial_param.weight_filler.value=0.75")
    status, _, err = autodial(*TRAIN, "--variant", "wide", "--variant", "fixed-alpha", *setting)
    assert (status, err) == (0, "")
    (start,) = json.loads(Path("snapshots/stripes_run/run.json").read_text())["starts"]
    layers = {layer.name: layer for layer in parse_net(start["nets"][0]).layer}
    assert layers["conv"].convolution_param.num_output == 6
    assert layers["conv/dial"].param[0].lr_mult == 0
    assert {row["alphas"]["conv/dial"] for row in read_log(Path("snapshots/stripes_run")) if "alphas" in row} == {0.75}


def test_fixed_alpha_holds_against_weights(autodial: Run) -> None:
    autodial(*TRAIN)
    weights = read_weights(WEIGHTS)
    (dial,) = (layer for layer in weights.layers if layer.name == "conv/dial")
    assert dial.blobs[0] is not None
    dial.blobs = [np.full_like(dial.blobs[0], 0.6), *dial.blobs[1:]]
    write_weights(weights, "start.caffemodel")
    other = ("--set", "solver.snapshot_prefix=other")
    status, _, _ = autodial(*TRAIN, *other, "--variant", "adabn", "--weights", "start.caffemodel", "-o", "run")
    assert status == 0
    alphas = [row["alphas"]["conv/dial"] for row in read_log(Path("run")) if row["event"] == "train"]
    assert set(alphas) == {1.0}


def test_resuming_another_variant_is_refused(autodial: Run) -> None:
    autodial(*TRAIN, "--variant", "fixed-alpha")
    resume = (*TRAIN, "--snapshot", "snapshots/stripes_iter_4.solverstate")
    status, out, err = autodial(*resume)
    assert (status, out) == (2, "")
    assert "snapshots/stripes_run holds a run with --variant fixed-alpha: resume it with the same" in err
    status, out, _ = autodial(*resume, "--variant", "fixed-alpha")
    assert status == 0
    assert "Training done." in out.splitlines()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--variant", "adabm"), 'no variant "adabm"; there are source-only, entropy-only'),
        (("--variant", "source-only", "--variant", "adabn"), 'variant "adabn" changes Dial layers, and the net has'),
    ],
)
def test_what_is_refused(autodial: Run, arguments: tuple[str, ...], message: str) -> None:
    for command in (TRAIN, ("export", "--net", "net.prototxt", "--weights", "x.caffemodel")):
        status, out, err = autodial(*command, *arguments)
        assert (status, out) == (2, "")
        assert message in err
        assert "net.prototxt" in err
        assert err.count("\n") == 1
    assert not Path("snapshots").exists()
