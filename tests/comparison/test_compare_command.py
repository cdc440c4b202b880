"""`autodial compare` as users type it."""

from __future__ import annotations

import csv
import json
import os
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forked import commands_are_forked
from typer.testing import CliRunner, Result

from autodial import proto
from autodial.cli import app
from autodial.comparison.folder import Comparison, Request
from autodial.comparison.methods import METHODS, Method
from autodial.deploy import Predictor
from autodial.errors import InputError
from autodial.report.trained_net import find_trained_net
from autodial.selection import processes
from autodial.selection.outputs import Outputs, count_features
from autodial.system.outputs import locked

WORDS = ("--source", "source", "--target", "target", "--base", "net.prototxt")
METHOD_NAMES = ("source-only", "adabn", "gfk")


RUNNING = ("--device", "cpu", "--jobs", "2", "--workers", "0")


def compare(*arguments: str, running: tuple[str, ...] = RUNNING) -> Result:
    return CliRunner().invoke(app, ["compare", *arguments, *running])


def error(*arguments: str, running: tuple[str, ...] = RUNNING) -> str:
    result = compare(*arguments, running=running)
    assert isinstance(result.exception, InputError), result.output
    return str(result.exception)


def results(folder: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(Path(folder, "results.json").read_text())
    return loaded


def written(folder: str) -> dict[str, float]:
    """When each result was written."""
    return {str(path): path.stat().st_mtime for path in sorted(Path(folder).glob("*/seed_*/result.json"))}


def copied(folder: Path) -> Path:
    """A copy of the comparison in `table`, which works at its new place."""
    place = folder / "table"
    shutil.copytree("table", place)
    record = json.loads((place / "comparison.json").read_text())
    record["folder"] = str(place)
    (place / "comparison.json").write_text(json.dumps(record))
    return place


@pytest.fixture(scope="module", autouse=True)
def runs_are_forked() -> Iterator[None]:
    with commands_are_forked(processes):
        yield


@pytest.fixture(scope="module")
def compared(stripes: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A folder with the stripes and a finished comparison in `table`."""
    folder = tmp_path_factory.mktemp("compared") / "project"
    shutil.copytree(stripes, folder)
    before = Path.cwd()
    os.chdir(folder)
    try:
        return folder, compare("table", *WORDS, "--methods", ",".join(METHOD_NAMES), "--seeds", "3")
    finally:
        os.chdir(before)


@pytest.fixture
def project(compared: tuple[Path, Result], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The comparison's folder, made the working directory; tests leave the comparison as it is."""
    monkeypatch.chdir(compared[0])
    return compared[0]


def test_a_table_without_labels_of_the_target(project: Path, compared: tuple[Path, Result]) -> None:
    result = compared[1]
    assert result.exit_code == 0, result.output
    found = results("table")
    assert list(found["methods"]) == list(METHOD_NAMES)
    for name in METHOD_NAMES:
        (run,) = found["methods"][name]
        assert run["seed"] == 3 and run["error"] is None and run["accuracy"] is None and not run["collapsed"]
    assert found["chosen"]["method"] in METHOD_NAMES
    assert "accuracy in %" not in Path("table/table.txt").read_text()
    assert "the trained net with the best rank" in result.output and "results of gfk can't be exported" in result.output
    assert "GFK (gfk) aligns the features of source only's net" in result.output
    assert "the statistics of Dial layers were computed over all images" in result.output
    for text in ("45 source and 30 target images", "8 source and 8 target images in a batch", "12 iterations"):
        assert text in result.output
    for suffix in ("txt", "csv", "tex", "html"):
        assert Path(f"table/table.{suffix}").stat().st_size


def test_the_target_list_has_no_labels_and_nets_read_the_common_lists(project: Path) -> None:
    assert {line.rpartition(" ")[2] for line in Path("table/target.txt").read_text().splitlines()} == {"-1"}
    net = proto.read_net("table/source-only/train_val.prototxt")
    lists = {layer.image_data_param.source for layer in net.layer if layer.type == "ImageData"}
    assert lists == {str(project / "table" / f"{part}.txt") for part in ("source", "test")}
    assert proto.read_solver("table/source-only/solver.prototxt").max_iter == 12


@pytest.mark.parametrize(("name", "trained"), [("source-only", "iter_12"), ("adabn", "recalibrated")])
def test_a_row_can_be_trained_again(name: str, trained: str, project: Path, tmp_path: Path) -> None:
    """With the commands in the file, from any folder, whose files stay there; the weights are those of the cell."""
    before = sorted(Path("table", name).iterdir())
    lines = Path("table", name, "train_val.prototxt").read_text().splitlines()
    commands = [shlex.split(line.lstrip("# "))[1:] for line in lines if line.startswith("# autodial ")]
    assert [words[0] for words in commands] == ["train", "recalibrate"][: 1 + (trained == "recalibrated")]
    commands[0][commands[0].index("--seed") + 1] = "3"
    os.chdir(tmp_path)
    for words in commands:
        result = CliRunner().invoke(app, [*words, "--device", "cpu", "--workers", "0"])
        assert result.exit_code == 0, result.output
    file = f"{name}_seed_1{'' if trained == 'recalibrated' else '_iter_12'}.caffemodel"
    again, cell = (
        {(layer.name, number): blob for layer in weights.layers for number, blob in enumerate(layer.blobs)}
        for weights in map(proto.read_weights, (file, project / "table" / name / "seed_3/weights.caffemodel"))
    )
    assert again.keys() == cell.keys() and len(again)
    for key, blob in cell.items():
        assert again[key] == pytest.approx(blob, rel=1e-4, abs=1e-6), key
    assert sorted((project / "table" / name).iterdir()) == [project / path for path in before]


def test_what_is_finished_is_not_run_again(project: Path) -> None:
    """The same words, or the folder alone; a cell that is missing is run. Labels have not been asked for yet."""
    before = written("table")
    assert compare("table").exit_code == 0
    assert compare("table", *WORDS).exit_code == 0
    assert written("table") == before
    shutil.rmtree("table/gfk/seed_3")
    assert compare("table").exit_code == 0
    after = written("table")
    assert [name for name in after if after[name] != before.get(name)] == ["table/gfk/seed_3/result.json"]


def test_features_of_a_net_that_is_trained_again_are_aligned_again(project: Path, tmp_path: Path) -> None:
    """Deleting a net's runs is how one runs a changed method again; what was made of the old net does not count."""
    place = copied(tmp_path)
    Comparison(place).remember(Request(methods=list(METHOD_NAMES), seeds=[3], target_labels=False))
    before = written(str(place))
    shutil.rmtree(place / "source-only/seed_3")
    assert compare(str(place), "--methods", "source-only").exit_code == 0
    assert compare(str(place), "--methods", ",".join(METHOD_NAMES)).exit_code == 0
    after = written(str(place))
    changed = {Path(name).parts[-3] for name in after if after[name] != before[name]}
    assert changed == {"source-only", "gfk"}


def test_labels_are_added_without_training(project: Path, tmp_path: Path) -> None:
    before = Path("table/source-only/seed_3/weights.caffemodel").stat().st_mtime
    result = compare("table", "--target-labels", "--methods", "source-only")
    assert result.exit_code == 0, result.output
    assert Path("table/source-only/seed_3/weights.caffemodel").stat().st_mtime == before
    net = ["--net", "table/source-only/train_val.prototxt", "--weights", "table/source-only/seed_3/weights.caffemodel"]
    scores = str(tmp_path / "scores.csv")
    assert CliRunner().invoke(app, ["test", *net, "--device", "cpu", "-o", scores]).exit_code == 0
    with Path(scores).open() as file:
        rows = list(csv.DictReader(file))
    accuracy = sum(row["label"] == row["predicted"] for row in rows) / len(rows)
    (run,) = results("table")["methods"]["source-only"]
    assert run["accuracy"] == pytest.approx(accuracy)
    assert "accuracy in %" in result.output and f"{100 * accuracy:.1f}" in result.output


def test_a_run_that_has_collapsed_is_marked(project: Path, tmp_path: Path) -> None:
    """All scores equal: neither the collapse alarm nor the mean prediction shows that a net like this knows nothing."""
    place = copied(tmp_path)
    Comparison(place).remember(Request(methods=list(METHOD_NAMES), seeds=[3], target_labels=False))
    outputs = Outputs.read(place / "source-only/seed_3/outputs.npz")
    outputs.target_logits[:] = 0
    outputs.write(place / "source-only/seed_3/outputs.npz")
    result = compare(str(place))
    assert result.exit_code == 0, result.output
    assert [row.split()[-1] for row in result.output.splitlines() if row.startswith("source only ")] == ["*"]
    assert "* marks runs that collapsed" in result.output and "(source-only, seed 3)" in result.output
    found = results(str(place))
    assert [found["methods"][name][0]["collapsed"] for name in METHOD_NAMES] == [True, False, False]
    assert found["chosen"]["method"] == "adabn"


def test_a_run_that_fails_is_a_cell(project: Path, tmp_path: Path) -> None:
    """A rate at which the net diverges: with a solver of one's own, and the table says which seed and why."""
    for name in ("source", "target", "net.prototxt"):
        (tmp_path / name).symlink_to(project / name)
    (tmp_path / "net").mkdir()
    shutil.copy("net.prototxt", tmp_path / "net")
    solver = Path("solver.prototxt").read_text().replace("base_lr: 0.02", "base_lr: 1e30")
    (tmp_path / "net/solver.prototxt").write_text(solver)
    os.chdir(tmp_path)
    words = ("--source", "source", "--target", "target", "--base", "net/net.prototxt", "--methods", "source-only,tca")
    result = compare("table", *words, "--seeds", "1")
    assert result.exit_code == 1
    assert "every run failed" in str(result.exception)
    found = results("table")
    assert "training has diverged" in found["methods"]["source-only"][0]["error"]
    assert found["methods"]["tca"][0]["error"] == "it aligns features of source-only, which failed"
    assert "source-only, seed 1 failed" in Path("table/table.txt").read_text()


def test_weights_that_the_base_net_s_solver_names(project: Path, tmp_path: Path) -> None:
    """All trainings start from them, and the table says so."""
    shutil.copy("net.prototxt", tmp_path)
    solver = Path("solver.prototxt").read_text().replace("max_iter: 12", 'max_iter: 1 weights: "start.caffemodel"')
    (tmp_path / "solver.prototxt").write_text(solver)
    shutil.copy("table/source-only/seed_3/weights.caffemodel", tmp_path / "start.caffemodel")
    words = ("--source", "source", "--target", "target", "--base", str(tmp_path / "net.prototxt"))
    result = compare(str(tmp_path / "new"), *words, "--methods", "source-only", "--seeds", "1")
    assert result.exit_code == 0, result.output
    assert f"with {tmp_path / 'start.caffemodel'}; the course" in result.output
    start, made = (
        {
            (layer.name, number): blob
            for layer in proto.read_weights(path).layers
            for number, blob in enumerate(layer.blobs)
        }
        for path in (tmp_path / "start.caffemodel", tmp_path / "new/source-only/seed_1/weights.caffemodel")
    )
    assert made.keys() == start.keys()
    for key, blob in start.items():
        assert made[key] == pytest.approx(blob, abs=0.1), key  # one update at a small rate


def test_several_comparisons_side_by_side(project: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copytree("table", tmp_path / name)
        edited = results(str(tmp_path / name))
        for runs in edited["methods"].values():
            runs[0]["accuracy"] = 0.5 if name == "a" else 0.75
        (tmp_path / name / "results.json").write_text(json.dumps(edited))
    result = CliRunner().invoke(app, ["compare", str(tmp_path / "a"), str(tmp_path / "b"), "-o", str(tmp_path / "all")])
    assert result.exit_code == 0, result.output
    with (tmp_path / "all/table.csv").open() as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    assert tuple(rows["source-only"][name] for name in ("a mean", "b mean", "average")) == ("50", "75", "62.5")


def test_wrong_words(project: Path, tmp_path: Path) -> None:
    assert "another `autodial" not in error("table", *WORDS, "--same-schedule")
    assert "--same-schedule" in error("table", *WORDS, "--same-schedule")
    assert "there is no method" in error("table", "--methods", "dam")
    assert "--seeds 1,x: must be whole numbers" in error("table", "--seeds", "1,x")
    assert "holds no comparison: name --source, --target and --base" in error(str(tmp_path / "none"))
    assert "takes --source, --target and --base" in error("other", "--source", "source")
    assert "takes --source, --target and --base" in error("table", "--epochs", "3")
    for option in (("--target-labels",), RUNNING[:2], RUNNING[2:4], RUNNING[4:]):
        assert f"{option[0]} is for one comparison" in error("table", "table", running=option)
    assert "table is given twice: name each folder once" in error("table", "table", running=())
    assert "table/../table and table are the same folder" in error("table", "table/../table", running=())
    assert "-o table holds a comparison" in error("table", str(tmp_path), "-o", "table", running=())
    assert "-o is for the table of several" in error("table", "-o", "all")
    assert "holds no finished comparison" in error("table", str(tmp_path), running=())
    with locked(project / "table", "autodial compare"):
        assert "another `autodial compare` is at work in" in error("table")


def test_options_are_checked_before_images_are_read(project: Path, tmp_path: Path) -> None:
    """What is wrong with an option is said although the images can't be read; nothing is written."""
    place = tmp_path / "new"
    unread = (str(place), "--source", "none", "--target", "none", "--base", "net.prototxt")
    message = error(*unread, "--methods", "adabnn")
    assert message.startswith('--methods: there is no method "adabnn"; did you mean "adabn"')
    assert all(name in error(*unread, "--methods", "x") for name in METHODS)
    assert "--methods names none" in error(*unread, "--methods", "")
    assert "--seeds 1,x" in error(*unread, "--seeds", "1,x")
    assert "device" in str(CliRunner().invoke(app, ["compare", *unread, "--device", "gpu"]).exception)
    assert "--source is given 2 times" in error(*unread, "--source", "more")
    assert not place.exists()


def test_a_comparison_that_is_refused_leaves_nothing(project: Path, tmp_path: Path) -> None:
    """Labels that are not there, and a net that the solver can't train; an empty folder stays, and stays empty."""
    unlabelled = tmp_path / "unlabelled"
    unlabelled.mkdir()
    for path in Path("target").glob("*/*.png"):
        shutil.copy(path, unlabelled)
    new, empty = tmp_path / "new", tmp_path / "empty"
    empty.mkdir()
    words = ("--source", "source", "--base", "net.prototxt", "--methods", "source-only", "--seeds", "1")
    message = error(str(new), *words, "--target", str(unlabelled), "--target-labels")
    assert "--target-labels: no labels of the target are known" in message and "--test" in message
    (tmp_path / "net").mkdir()
    shutil.copy("net.prototxt", tmp_path / "net")
    solver = Path("solver.prototxt").read_text().replace('lr_policy: "fixed"', 'lr_policy: "unknown"')
    (tmp_path / "net/solver.prototxt").write_text(solver)
    for place in (new, empty):
        result = compare(str(place), *words, "--target", "target", "--base", str(tmp_path / "net/net.prototxt"))
        assert isinstance(result.exception, InputError) and "unknown" in str(result.exception), result.output
    assert not new.exists() and not list(empty.iterdir())


def test_features_that_are_too_many_for_an_alignment_are_refused_before_training(project: Path, tmp_path: Path) -> None:
    (wide := tmp_path / "wide").mkdir()
    shutil.copy("solver.prototxt", wide)
    net = Path("net.prototxt").read_text()
    (wide / "net.prototxt").write_text(net.replace("num_output: 4 kernel_size: 3", "num_output: 228 kernel_size: 3"))
    words = ("--source", "source", "--target", "target", "--base", str(wide / "net.prototxt"), "--seeds", "1")
    message = error(str(tmp_path / "new"), *words, "--methods", "source-only,gfk")
    assert message.startswith("method gfk: the classifier of ") and "leave gfk out of --methods" in message
    assert f"reads {228 * 6 * 6:,} values, and an alignment takes at most 8,192" in message
    assert not (tmp_path / "new").exists()


def test_features_are_counted_as_they_are_stored(project: Path) -> None:
    folder = Path("table/source-only")
    stored = Outputs.read(folder / "seed_3/outputs.npz").features
    net = proto.read_net(folder / "train_val.prototxt")
    assert count_features(net, Path("table/target.txt"), folder) == stored.shape[1] == 4 * 6 * 6


def test_a_folder_that_does_not_say_what_was_asked_for(project: Path, tmp_path: Path) -> None:
    place = copied(tmp_path)
    (place / "request.json").unlink()
    assert "name --methods and --seeds" in error(str(place))


def test_what_a_comparison_was_made_from_is_quoted(project: Path) -> None:
    comparison = Comparison(Path("table"))
    other = {**comparison.inputs, "source": "elsewhere"}
    comparison.inputs["source"] = "/tmp/studio a"
    with pytest.raises(InputError, match="`source` '/tmp/studio a': give the same"):
        comparison.check_inputs(other)  # type: ignore[arg-type]


def test_the_export_has_the_names_of_the_classes(project: Path, tmp_path: Path) -> None:
    command = Comparison(Path("table")).commands("source-only", 3)["export"]
    os.chdir(tmp_path)
    result = CliRunner().invoke(app, shlex.split(command)[1:])
    assert result.exit_code == 0, result.output
    assert Predictor("target_predictor.onnx").info.classes == ("a", "b", "c")


def test_a_file_that_was_changed_after_its_runs(project: Path) -> None:
    net = Path("table/source-only/train_val.prototxt")
    text = net.read_text()
    net.write_text(text.replace("xavier", "msra"))
    try:
        message = error("table", "--methods", "source-only")
    finally:
        net.write_text(text)
    assert str(net.absolute()) in message and "delete" in message


def test_every_method_has_a_cell(project: Path, tmp_path: Path) -> None:
    """Each net is checked before any is trained."""
    comparison = Comparison(copied(tmp_path))
    names = [name for name in METHODS if name != "sa"]
    cells = comparison.cells(names, [3, 4], device="cpu", target_labels=False)
    assert [(cell.method, cell.seed) for cell in cells if cell.seed == 3] == [
        (name, 3) for kind in (True, False) for name in names if isinstance(METHODS[name], Method) is kind
    ]
    assert comparison.check(cells) > 0
    comparison.remember(Request(methods=names, seeds=[3], target_labels=False))
    assert comparison.request() == Request(methods=names, seeds=[3], target_labels=False)


@pytest.mark.parametrize(("name", "seed"), [("source-only", 4), ("gfk", 3)])
def test_a_missing_image_of_the_target_is_found_at_once(name: str, seed: int, project: Path, tmp_path: Path) -> None:
    """Also where no net of the method reads the target, and where only an alignment is left to do."""
    place = copied(tmp_path)
    for base in (place / "base.prototxt", place / "base_solver.prototxt"):
        base.write_text(base.read_text().replace(str(project / "table"), str(place)))
    with (place / "target.txt").open("a") as file:
        file.write(f"{tmp_path / 'gone.png'} -1\n")
    shutil.rmtree(place / "gfk/seed_3")
    comparison = Comparison(place)
    cells = comparison.cells([name], [seed], device="cpu", target_labels=False)
    with pytest.raises(InputError, match=r"gone\.png"):
        comparison.check(cells)


def test_outputs_of_an_alignment(project: Path) -> None:
    outputs = Outputs.read(Path("table/gfk/seed_3/outputs.npz"))
    assert outputs.target_logits.shape == (30, 3) and outputs.source_logits.shape == (45, 3)
    assert outputs.features.shape == (30, 40)


def test_the_record_of_kept_weights_is_found(project: Path) -> None:
    """With an accuracy once --target-labels, in an earlier test, has asked for it."""
    found = find_trained_net("table/source-only/seed_3/weights.caffemodel", "fc")
    assert found is not None and (found.seed, found.statistics) == (3, None)
    accuracy = results("table")["methods"]["source-only"][0]["accuracy"]
    assert (found.scores and found.scores.accuracy) == (accuracy and pytest.approx(accuracy))
    assert found.iteration == proto.read_solver("table/source-only/solver.prototxt").max_iter
