"""A run folder that somebody sent: nothing in it is run, nothing but the page is written, and no name is markup."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pytest
import torch

from autodial.report.evaluation import Absent, evaluate
from autodial.report.run import Run

Autodial = Callable[..., tuple[int, str, str]]
OPTIONS = ("--workers", "0", "--device", "cpu")
MODULE = """
from pathlib import Path
import autodial.caffe as caffe

Path("module-was-run").touch()


class Same(caffe.Layer):
    def setup(self, bottom, top):
        pass

    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].shape)

    def forward(self, bottom, top):
        top[0].data[...] = bottom[0].data
"""
PYTHON = 'layer { name: "mine" type: "Python" bottom: "%s" top: "%s" python_param { module: "%s" layer: "Same" } }\n'
WRITES = 'layer { name: "out" type: "HDF5Output" bottom: "fc" bottom: "label" hdf5_output_param { file_name: "x.h5" } }'
HOSTILE = "</pre><script>alert(1)</script> \x1b]0;title\x07 \u202e & \"'"


def edit_record(project: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    path = project / "run/run.json"
    record = json.loads(path.read_text())
    edit(record["starts"][-1])
    path.write_text(json.dumps(record))


def edit_net(project: Path, edit: Callable[[str], str]) -> None:
    edit_record(project, lambda start: start.update(nets=[edit(net) for net in start["nets"]]))


def with_python_in_front_of_the_logits(net: str) -> str:
    head, tail = net.split('layer {\n  name: "conv"\n', 1)
    return f'{head}{PYTHON % ("data", "data", "before_logits")}layer {{\n  name: "conv"\n{tail}'


@pytest.mark.usefixtures("undrawn")
def test_a_python_layer_is_not_run_unless_allowed(autodial: Autodial, read_page: Any, project: Path) -> None:
    (project / "before_logits.py").write_text(MODULE)
    edit_net(project, with_python_in_front_of_the_logits)
    assert autodial("report", "run", *OPTIONS)[0] == 0
    assert not Path("module-was-run").exists()
    page = read_page(project / "run/report.html")
    reason = 'No predictions: the net is not evaluated, as it has 1 Python layer ("mine" (before_logits))'
    assert reason in page.text
    assert "unless Python layers are allowed" in page.text
    assert "Alpha of each Dial layer" in page.tables
    assert autodial("report", "run", *OPTIONS, "--allow-python")[0] == 0
    assert Path("module-was-run").exists()
    assert "By class" in read_page(project / "run/report.html").tables


@pytest.mark.usefixtures("undrawn")
def test_layers_that_the_logits_do_not_need_are_left_out(autodial: Autodial, read_page: Any, project: Path) -> None:
    """A Python layer that scores, and one that writes a file over the user's."""
    (project / "behind_logits.py").write_text(MODULE)
    precious = project / "x.h5"
    precious.write_bytes(b"precious")
    edit_net(project, lambda net: f"{net}{PYTHON % ('fc', 'mine', 'behind_logits')}{WRITES}")
    assert autodial("report", "run", *OPTIONS)[0] == 0
    assert not Path("module-was-run").exists()
    assert precious.read_bytes() == b"precious"
    assert "By class" in read_page(project / "run/report.html").tables


def test_nothing_is_imported_from_the_trainings_folder(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The working directory is the first on the path of `python -c` and of a notebook."""
    (project / "late_module.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    found = []

    def look(share: float) -> None:
        assert Path.cwd() == project
        found.append(importlib.util.find_spec("late_module"))

    cpu = torch.device("cpu")
    evaluate(Run.read(project / "run"), images=5, layers=[], device=cpu, workers=0, progress=look)
    assert found
    assert set(found) == {None}
    assert "" in sys.path


@pytest.mark.parametrize("name", ["report.html", "report-losses.png"])
def test_nothing_is_written_through_a_link(autodial: Autodial, project: Path, tmp_path: Path, name: str) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (project / "run" / name).symlink_to(precious)
    status, _, err = autodial("report", "run", *OPTIONS)
    assert status == 2
    assert f"run/{name} is a link" in err
    assert precious.read_text() == "precious"


def test_every_name_is_text(autodial: Autodial, read_page: Any, project: Path) -> None:
    def spoil(start: dict[str, Any]) -> None:
        for name in ("command", "device"):
            start[name] = HOSTILE
        start["variants"] = start["settings"] = [HOSTILE]
        start["versions"] = {HOSTILE: HOSTILE, "autodial": HOSTILE}
        start["nets"] = [net.replace('"spots & <stripes>"', json.dumps(HOSTILE[:-1])) for net in start["nets"]]
        start["solver"] += f"# {HOSTILE}\n"

    edit_record(project, spoil)
    rows = [json.loads(line) for line in Path("run/log.jsonl").read_text().splitlines()]
    for row in rows:
        if row["event"] in ("train", "test"):
            row["outputs"][HOSTILE] = 0.5
        if row["event"] == "train":
            row["alphas"][HOSTILE] = 0.5
    alarm = {"event": "collapse", "iteration": 8, "layer": HOSTILE, "classes": 3, "in_use": 1.0, "in_source": 2.0}
    Path("run/log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, alarm]))
    Path("labels.txt").write_text(f"{HOSTILE} 1\n{HOSTILE} 2\n{HOSTILE} 3\n")
    status, _, err = autodial("report", "run", *OPTIONS)
    assert status == 0, err
    read_page(project / "run/report.html")  # which refuses scripts, handlers, and elements that are not closed
    assert "<script" not in Path("run/report.html").read_text("utf-8")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("name", ["labels.txt", "test.txt", "target/0.png", "spots_iter_8.caffemodel"])
def test_pipes_are_not_waited_for(project: Path, name: str) -> None:
    Path(name).unlink()
    os.mkfifo(name)
    run = Run.read(project / "run")
    result = evaluate(run, images=5, layers=[], device=torch.device("cpu"), workers=0)
    assert isinstance(result.predictions, Absent) == (name in ("test.txt", "target/0.png"))


def test_paths_that_no_system_has(autodial: Autodial, read_page: Any, project: Path) -> None:
    """Names that are too long, or hold NUL or bytes in no encoding: what is found there is nothing."""

    def spoil(start: dict[str, Any]) -> None:
        for name, other in (("source.txt", "x" * 5_000), ("target.txt", "a\\000b"), ("test.txt", "../" * 2_000)):
            start["nets"] = [net.replace(name, other) for net in start["nets"]]
        start["folder"] = start["net_folders"][0] = "x" * 5_000

    edit_record(project, spoil)
    log = Path("run/log.jsonl")
    log.write_text(log.read_text().replace("spots_iter_4", "y" * 5_000))
    status, _, err = autodial("report", "run", *OPTIONS)
    assert status == 0, err
    assert "No predictions: " in read_page(project / "run/report.html").text


def test_images_without_finite_scores_are_left_out(autodial: Autodial, read_page: Any, project: Path) -> None:
    """Three rows of HDF5 data are NaN; the others get the numbers that they have without these."""
    images, labels = [], []
    for line in Path("test.txt").read_text().splitlines():
        path, label = line.split()
        image = cv2.imread(path)
        assert image is not None
        images.append((image[1:9, 1:9].astype(np.float32).transpose(2, 0, 1) - 100) * 0.01)
        labels.append(int(label))
    whole = [i for i in range(len(images)) if i not in (2, 5, 11)]
    pages = {}
    for case, rows in (("spoilt", range(len(images))), ("whole", whole)):
        with h5py.File(f"{case}.h5", "w") as file:
            data = np.stack([images[i] for i in rows])
            if case == "spoilt":
                data[[2, 5, 11], 0, 3, 3] = np.nan
            file["data"], file["label"] = data, np.array([labels[i] for i in rows], np.float32)
        Path("h5.txt").write_text(f"{case}.h5\n")
        edit_net(project, reading_hdf5)
        status, _, err = autodial("report", "run", *OPTIONS)
        assert status == 0, err
        pages[case] = read_page(project / "run/report.html")
    assert "The scores of 3 of 14 target images are not finite (NaN or infinite)" in pages["spoilt"].text
    assert "all 14 images of h5.txt, without 3 whose scores are not finite" in pages["spoilt"].text
    assert "not finite" not in pages["whole"].text
    for table in ("By class", "The most frequent confusions"):
        assert pages["spoilt"].tables.get(table) == pages["whole"].tables.get(table)


def reading_hdf5(net: str) -> str:
    """A net's TEST phase with an HDF5Data layer in place of its images."""
    if "HDF5Data" in net:
        return net
    layers = net.split("layer {\n")
    (number,) = (i for i, layer in enumerate(layers) if 'name: "test"' in layer)
    layers[number] = (
        'name: "test" type: "HDF5Data" top: "data" top: "label" include { phase: TEST }'
        ' hdf5_data_param { source: "h5.txt" batch_size: 5 } }\n'
    )
    return "layer {\n".join(layers)


def test_logged_values_that_are_not_finite_are_told_at_the_top(
    autodial: Autodial, read_page: Any, project: Path
) -> None:
    rows = [json.loads(line) for line in Path("run/log.jsonl").read_text().splitlines()]
    for row in rows:
        if row["event"] == "train" and row["iteration"] >= 4:
            row["loss"] = None
        if row["event"] == "test":
            row["outputs"]["accuracy"] = None
            row["not_finite"] = {"fc": [3, 14]}
    Path("run/log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert autodial("report", "run", *OPTIONS)[0] == 0
    tests = sum(row["event"] == "test" for row in rows)
    text = read_page(project / "run/report.html").text
    assert "Not finite (NaN or infinite), as in a training that diverged: " in text
    assert f"{2 + tests} logged values of loss, test: accuracy, the first at iteration 0." in text
    assert f"The scores of {tests} tests were not finite, first at iteration 0, in blob fc for 3 of 14 rows" in text


@pytest.mark.filterwarnings("ignore:overflow")
def test_features_of_images_with_nan_are_left_out(project: Path) -> None:
    """A source whose images are all NaN has no features, and the rest of the report is there."""
    run = Run.read(project / "run")
    for param in (run.train_net, run.test_net):
        for layer in param.layer:
            if layer.name == "source":
                layer.transform_param.scale = 3e38
    result = evaluate(run, images=5, layers=["fc/dial"], device=torch.device("cpu"), workers=0)
    assert isinstance(result.features, Absent)
    assert "the features of every source image are not finite" in result.features.reason
    assert not isinstance(result.predictions, Absent)
