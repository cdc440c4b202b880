"""The whole demo, with very short trainings."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console

from autodial.commands.demo import demo
from autodial.data.image_list import ImageList
from autodial.errors import InputError
from autodial.training.run_record import read_log

story = pytest.importorskip("autodial.demo.story", reason="needs the packages of autodial[train]")
images = pytest.importorskip("autodial.demo.images")

ITERATIONS = 6


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Few source images, few iterations, and an empty working directory."""
    whole = story._write_net

    def write_net(output: Path) -> None:
        whole(output)
        solver = output / "solver.prototxt"
        lines = [line for line in solver.read_text().splitlines() if not line.startswith(("max_iter", "display"))]
        solver.write_text("\n".join([*lines, f"max_iter: {ITERATIONS}", "display: 2"]))

    monkeypatch.setattr(story, "_write_net", write_net)
    monkeypatch.setattr(images, "RENDERINGS", (1,) * 10)
    monkeypatch.chdir(tmp_path)


def read_table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_demo_trains_exports_and_predicts_four_variants(short: None) -> None:
    from autodial.commands.test import test

    out = io.StringIO()
    demo = Path("demo")
    scores = story.run_demo(demo, seed=3, device="cpu", console=Console(file=out, width=100, soft_wrap=True))

    assert [score.title for score in scores] == ["source only", "AdaBN", "AutoDIAL, alpha fixed", "AutoDIAL"]
    truth = {Path(entry.path).name: str(entry.label) for entry in ImageList.read(demo / "target_test.txt")}
    folders = ["source_only", "adabn", "fixed_alpha", "autodial"]
    for score, folder in zip(scores, folders, strict=True):
        predicted = {Path(row["path"]).name: row["label_1"] for row in read_table(demo / folder / "predictions.csv")}
        assert predicted.keys() == truth.keys()
        assert score.accuracy == sum(predicted[name] == truth[name] for name in truth) / len(truth)
        assert f"{score.accuracy:.1%}" in out.getvalue()
    assert [row["accuracy"] for row in json.loads((demo / "scores.json").read_text())["scores"]] == [
        score.accuracy for score in scores
    ]
    # learned alphas move, fixed ones don't
    alphas = {name: log_of(demo / name)[-1]["alphas"] for name in folders}
    assert alphas["source_only"] == {}
    assert set(alphas["adabn"].values()) == set(alphas["fixed_alpha"].values()) == {1.0}
    assert min(alphas["autodial"].values()) < 1
    assert "loss-target" not in log_of(demo / "source_only")[-1]["outputs"]
    assert (demo / "autodial.png").read_bytes().startswith(b"\x89PNG")

    # every command is shown, and what the last file says is what `autodial test` says
    assert out.getvalue().count("$ autodial ") == 12
    test(
        net=demo / "train_val.prototxt",
        weights=str(demo / "autodial" / f"digits_iter_{ITERATIONS}.caffemodel"),
        output=Path("scores.csv"),
        device="cpu",
        workers=0,
    )
    tested = {Path(row["path"]).name: row["predicted"] for row in read_table(Path("scores.csv"))}
    exported = {Path(row["path"]).name: row["label_1"] for row in read_table(demo / "autodial" / "predictions.csv")}
    assert tested == exported


def log_of(folder: Path) -> list[dict[str, Any]]:
    return read_log(folder / "run")


def test_a_folder_with_something_in_it_is_refused_and_left_alone(short: None) -> None:
    Path("demo").mkdir()
    Path("demo/mine.txt").write_text("keep")
    with pytest.raises(InputError, match="demo exists and is not empty"):
        story.run_demo(Path("demo"))
    assert [path.name for path in Path("demo").iterdir()] == ["mine.txt"]


def test_a_working_directory_whose_list_would_be_read_instead_is_refused(short: None) -> None:
    Path("target.txt").write_text("photo.png 0\n")
    with pytest.raises(InputError, match=r"working directory holds target\.txt"):
        story.run_demo(Path("demo"))
    assert not Path("demo").exists()


def test_interrupted_demo_says_where_its_results_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def run_demo(output: Path, **options: Any) -> None:
        output.mkdir()
        (output / "log.txt").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(story, "run_demo", run_demo)
    output = tmp_path / "d"
    with pytest.raises(typer.Exit) as exit_:
        demo(output)
    assert exit_.value.exit_code == 130
    assert f"Interrupted: {output} holds what was done so far, and {output / 'log.txt'} what" in capsys.readouterr().err
