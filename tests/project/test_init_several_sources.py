"""`autodial init` with several sources, and with latent domains, up to an exported net."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from autodial import proto
from autodial.cli import app
from autodial.data.image_list import ImageList
from autodial.deploy import Predictor
from autodial.errors import InputError
from autodial.report.data import Sizes, count_rows, source_labels
from autodial.report.evaluation import evaluate
from autodial.report.latent_domains import LatentDomains
from autodial.report.run import Run
from autodial.report.trained_net import find_trained_net

pytestmark = pytest.mark.usefixtures("here")


def run(*words: object) -> None:
    app([str(word) for word in words], standalone_mode=False)


def init(*words: str, sources: tuple[str, ...] = ("one", "two")) -> None:
    given = [word for source in sources for word in ("--source", source)]
    run("init", "project", "--arch", "digits", *given, "--target", "target", *words)


@pytest.fixture(autouse=True)
def domains(here: Path, images: Any) -> None:
    for folder, classes, count in (("one", "abc", 12), ("two", "bcd", 6), ("target", "abcd", 5)):
        for name in classes:
            images(f"{folder}/{name}", count, color=False)


def written() -> dict[str, Any]:
    return {layer.name: layer for layer in proto.read_net("project/train_val.prototxt").layer}


def test_each_source_has_a_list_and_rows_in_proportion_to_its_images(capsys: pytest.CaptureFixture[str]) -> None:
    init("--batch-size", "24", "--epochs", "2")
    assert Path("project/labels.txt").read_text().split() == ["a", "b", "c", "d"]
    one, two = (ImageList.read(f"project/source_{number}.txt") for number in (1, 2))
    for source, folder in ((one, "one"), (two, "two")):
        for entry in source.entries:
            assert Path(entry.path).parts[-3:-1] == (folder, "abcd"[entry.label])
    assert (len(one), len(two)) == (36, 18)
    layers = written()
    # 54 of 74 images are sources': 17 of 24 rows, of which two thirds are the first one's
    rows = [layers[name].image_data_param.batch_size for name in ("data-source-1", "data-source-2", "data-target")]
    assert rows == [11, 6, 7]
    for layer in layers.values():
        if layer.type == "Dial":
            assert (layer.dial_param.slice_point, list(layer.dial_param.source_slice_point)) == (17, [11])
    solver = proto.read_solver("project/solver.prototxt")
    assert solver.max_iter == -(-2 * 54 // 17)
    out = capsys.readouterr().out
    assert "batch        24: 11 + 6 source images, then 7 target images" in out
    assert "Source 1 (one) has no images of 1 of the 4 classes (d)" in out
    assert "Source 2 (two) has no images of 1 of the 4 classes (a)" in out


def test_from_folders_to_a_file_of_the_target_s_statistics(capsys: pytest.CaptureFixture[str]) -> None:
    init("--batch-size", "24", "--epochs", "1")
    run("train", "--solver", "project/solver.prototxt", "--device", "cpu", "--workers", "0")
    weights = f"project/solver_iter_{proto.read_solver('project/solver.prototxt').max_iter}.caffemodel"
    assert "autodial export --recalibrate" in capsys.readouterr().out
    net = ("--net", "project/train_val.prototxt", "--weights", weights)
    run("recalibrate", *net, "-o", "listed.caffemodel")
    run(
        "recalibrate",
        *net,
        "--source",
        "one",
        "--source",
        "two",
        "--target",
        "target",
        "-o",
        "named.caffemodel",
        "--json",
    )
    record = json.loads(capsys.readouterr().out.partition("Wrote listed.caffemodel\n")[2])
    assert (record["source"], record["source_samples"], record["target_samples"]) == (["one", "two"], 54, 20)
    assert Path("listed.caffemodel").read_bytes() == Path("named.caffemodel").read_bytes()
    stored = {layer.name: layer for layer in proto.read_weights("listed.caffemodel").layers}
    assert stored["conv1-dial"].blobs[1].shape == (3, 20)
    run("export", "--recalibrate", *net, "-o", "model.onnx")
    assert "with the target's statistics" in capsys.readouterr().out
    run("report", "project/solver_run", "-o", "report.html")
    assert "fc4-dial" in Path("report.html").read_text("utf-8")


def test_labelled_images_of_the_target_are_not_a_source_s() -> None:
    """What the report and the card say of two sources and a few labels of the target."""
    Path("few.txt").write_text("target/a/1.png a\ntarget/d/2.png d\n")
    init("--batch-size", "24", "--epochs", "1", "--labelled-target", "few.txt")
    run("train", "--solver", "project/solver.prototxt", "--device", "cpu", "--workers", "0")
    found = Run.read(Path("project/solver_run"))
    # the test set lacks the two that are learned from
    assert count_rows(found) == Sizes(source=36 + 18, target=20, test=18)
    assert source_labels(found) == [0] * 12 + [1] * 12 + [2] * 12 + [1] * 6 + [2] * 6 + [3] * 6
    weights = max(Path("project").glob("*.caffemodel"), key=lambda path: path.stat().st_mtime)
    trained = find_trained_net(str(weights), "fc4")
    assert trained is not None and trained.sources == ["source_1.txt", "source_2.txt"]
    assert (trained.labelled_target, trained.labelled_images) == ("target_labelled.txt", 2)


def check_domains(weights: str) -> None:
    """Compare the domains of the report with torch's layers."""
    cpu = torch.device("cpu")
    found = evaluate(Run.read(Path("project/solver_run")), images=100, layers=[], device=cpu, workers=0).domains
    assert isinstance(found, LatentDomains) and found.total == 54
    paths = [entry.path for entry in ImageList.read("project/source.txt")]
    pixels = np.stack([cv2.resize(cv2.imread(path, cv2.IMREAD_GRAYSCALE), (20, 20)) for path in paths])
    blobs = {
        layer.name: [torch.from_numpy(np.array(blob)) for blob in layer.blobs]
        for layer in proto.read_weights(weights).layers
    }
    conv = F.conv2d(torch.from_numpy(pixels / 256).float()[:, None], *blobs["conv1"])
    scores = F.linear(conv.relu().mean((2, 3)), *blobs["domain-predictor"])
    expected = scores.softmax(1).numpy()
    np.testing.assert_allclose(found.weights, expected, atol=1e-5)
    np.testing.assert_allclose(found.shares, expected.mean(0), atol=1e-5)
    assert [one[0].path for one in found.images] == [paths[row] for row in expected.argmax(0)]


def test_latent_domains_up_to_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    init("--batch-size", "24", "--epochs", "1", "--latent", "2")
    assert len(ImageList.read("project/source.txt")) == 54
    assert not [layer for layer in written().values() if layer.type == "Dial"]
    assert "a mixture of 2 domains" in Path("project/train_val.prototxt").read_text("utf-8")
    run("train", "--solver", "project/solver.prototxt", "--device", "cpu", "--workers", "0")
    told = capsys.readouterr().out
    assert "autodial export --net" in told and "--recalibrate" not in told
    weights = f"project/solver_iter_{proto.read_solver('project/solver.prototxt').max_iter}.caffemodel"
    net = ("--net", "project/train_val.prototxt", "--weights", weights)
    run("export", *net, "-o", "model.onnx", "--card", "README.md")
    assert "with the target's statistics" in capsys.readouterr().out
    card = Path("README.md").read_text("utf-8")
    assert "It is for images of the target" in card and "no domain alignment layers" not in card
    assert "and was not scored itself" not in card
    logits, _ = Predictor("model.onnx", "cpu").predict([np.zeros((20, 20), np.uint8)])
    assert logits.shape == (1, 4)
    run("report", "project/solver_run", "-o", "report.html")
    page = Path("report.html").read_text("utf-8")
    assert "2 latent domains, no Dial layers" in page and "Latent domains of the source" in page
    assert "Over 54 source images." in page and "Domain 2: the source images with the largest weights" in page
    check_domains(weights)
    with pytest.raises(InputError, match=r"--layers conv1: the net has latent domains and no Dial layer.*leave it"):
        run("report", "project/solver_run", "--layers", "conv1")
    with pytest.raises(InputError, match="the net has latent domains"):
        run("recalibrate", *net, "-o", "new.caffemodel")
    with pytest.raises(InputError, match=r"the net has latent domains .* the net can be exported as it is"):
        run("export", "--recalibrate", *net, "-o", "again.onnx")
    selected = ("select", "--solver", "project/solver.prototxt", "--try", "solver.base_lr=0.1,0.01", "-o", "selected")
    for more in ((), ("--no-recalibrate",)):
        with pytest.raises(InputError, match=r"the net has latent domains .* train such nets with `autodial train`"):
            run(*selected, *more)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--source", "one"), "^source 1 and source 3 are the same, one"),
        (("--source", "one/a"), "one/a contains 12 images outside of class folders"),
        (("--source", "other"), r"other \(x, y\) and one \(a, b, c\) have no class in common"),
        (("--batch-size", "5"), r"a batch of 5 is too small for 2 sources and a target, .* raise --batch-size to 6"),
        (
            ("--latent", "9", "--batch-size", "19"),
            r"a batch of 19 is too small for 9 latent domains and a target, .* raise --batch-size to 20",
        ),
        (("--latent", "1"), "--latent 1: choose a number of domains from 2"),
    ],
)
def test_what_is_refused(images: Any, words: tuple[str, ...], message: str) -> None:
    for name in "xy":
        images(f"other/{name}", 3)
    with pytest.raises(InputError, match=message):
        init(*words)
    assert not Path("project").exists()


def test_lists_have_their_classes_by_name(images: Any) -> None:
    paths = images("flat", 4)
    Path("lists").mkdir()
    Path("lists/labels.txt").write_text("d\na\n")
    Path("lists/list.txt").write_text("".join(f"{path} {i % 2}\n" for i, path in enumerate(paths)))
    init("--batch-size", "24", "--epochs", "2", sources=("one", "lists/list.txt"))
    labels = {Path(entry.path).name: entry.label for entry in ImageList.read("project/source_2.txt").entries}
    assert labels == {"0.png": 3, "1.png": 0, "2.png": 3, "3.png": 0}


def test_numbers_in_lists_keep_their_meaning() -> None:
    """Classes 0 to 11 in one list and 0 to 10 in the other; names in order would put 10 behind 1."""
    paths = sorted(Path().glob("one/*/*.png"))
    for name, count in (("eleven", 11), ("twelve", 12)):
        lines = [f"{path} {number}\n" for number, path in enumerate(paths[:count])]
        Path(f"{name}.txt").write_text("".join(lines))
        paths = paths[count:]
    Path("labelled.txt").write_text("".join(f"{p} 2\n" for p in sorted(Path().glob("target/a/*.png"))))
    init("--test", "labelled.txt", "--batch-size", "24", "--epochs", "2", sources=("eleven.txt", "twelve.txt"))
    names = Path("project/labels.txt").read_text().split()
    assert names == [str(number) for number in range(12)]
    for written_list, given in (("source_1", "eleven"), ("source_2", "twelve"), ("test", "labelled")):
        made, own = (ImageList.read(f"{name}.txt").entries for name in (f"project/{written_list}", given))
        assert [names[entry.label] for entry in made] == [str(entry.label) for entry in own]
