"""What a person should label: uncertain images, unlike one another."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import typer
from exported_model import CLASSES

from autodial.commands.predict import predict
from autodial.deploy import PredictOptions, Predictor, choose_to_label, to_label, worth_labelling
from autodial.errors import InputError, WorkError

app = typer.Typer()
app.command()(predict)


def run(*arguments: object) -> None:
    app([str(argument) for argument in arguments], standalone_mode=False)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


CONFUSIONS = np.array([[0.5, 0.5, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0.5, 0.5], [0.6, 0, 0, 0.4]])
"""Four ways of being uncertain; the gradients of any two lie apart."""


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_images_that_are_confused_alike_are_chosen_once(count: int) -> None:
    certain = np.eye(4)[np.arange(200) % 4]
    probabilities = np.concatenate([certain, np.repeat(CONFUSIONS, 50, axis=0), certain])
    chosen = worth_labelling(probabilities, count)
    assert chosen.dtype == np.int64 and chosen.min() >= 200 and chosen.max() < 400
    assert len(set((chosen - 200) // 50)) == count


def test_the_first_rows_are_the_choice_of_fewer() -> None:
    probabilities = np.random.default_rng(3).dirichlet(np.ones(5), 300)
    chosen = worth_labelling(probabilities, 40)
    assert len(set(chosen.tolist())) == 40
    assert (worth_labelling(probabilities, 15) == chosen[:15]).all()


def test_a_row_is_drawn_by_its_squared_distance() -> None:
    """One row's gradient has the squared length 0.5, the 25 others' 2 * 0.1 ** 2 each: shares of 0.5 and 0.02.

    The draw falls on 0.637 of all, numpy's first number for seed 0, which lies in the row's share if 7 to 25 others
    come before it.
    """
    for place in range(26):
        probabilities = np.full((26, 2), [0.9, 0.1])
        probabilities[place] = 0.5
        assert (worth_labelling(probabilities, 1)[0] == place) == (place >= 7)


def test_features_tell_images_apart_that_are_confused_alike() -> None:
    probabilities = np.full((6, 2), 0.5)
    features = np.array([[1.0, 0], [1, 0], [1, 0], [0, 1], [0, 1], [0, 1]])
    one, two = worth_labelling(probabilities, 2, features=features)
    assert (one < 3) != (two < 3)
    # a label brings nothing to weights that read zeros
    features[:3] = 0
    assert worth_labelling(probabilities, 1, features=features)[0] >= 3


def test_rows_that_are_left_over_come_in_their_order() -> None:
    assert worth_labelling([[1.0, 0], [0, 1], [1, 0]], 5).tolist() == [0, 1, 2]
    first, second, third = worth_labelling([[1.0, 0], [0.5, 0.5], [0.5, 0.5]], 3)
    assert {first, third} == {1, 2} and second == 0


def test_of_many_rows_the_least_certain_take_part() -> None:
    p = np.linspace(0.5, 1, 40_000)
    probabilities = np.stack([p, 1 - p], 1)[::-1]
    chosen = worth_labelling(probabilities, 1000)
    assert chosen.min() >= 40_000 - to_label.POOL


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0.5, 0.5], 1), r"the shape \(2,\): give \(rows, classes\)"),
        (([[0.5, 0.5]], 0), "`count` is 0: choose from 1 to 1,000 images"),
        (([[0.5, 0.5]], 1001), "choose from 1 to 1,000"),
        (([[np.nan, 0.5]], 1), "not finite: leave out such rows"),
    ],
)
def test_arguments_that_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        worth_labelling(*arguments)


def test_features_of_other_images_are_refused() -> None:
    with pytest.raises(InputError, match=r"`features` has the shape \(2, 3\): give \(1, D\)"):
        worth_labelling([[0.5, 0.5]], 1, features=np.zeros((2, 3)))


def test_a_list_of_what_to_label(model: Any, photos: Path, tmp_path: Path) -> None:
    (photos / "sub/x.png").write_bytes(b"broken")
    made = choose_to_label(model.path, [photos], tmp_path / "out.csv", 5, PredictOptions(top_k=2, entropy=True))
    assert (made.chosen, made.images, made.errors) == (5, 12, 1) and "x.png" in made.first_error
    table = rows(tmp_path / "out.csv")
    assert list(table[0]) == ["path", "label", "label_1", "probability_1", "label_2", "probability_2", "entropy"]
    files = sorted(str(path) for path in photos.rglob("*") if path.is_file() and path.name != "x.png")
    probabilities = model.probabilities(*map(Path, files))
    assert [row["path"] for row in table] == [files[i] for i in worth_labelling(probabilities, 5)]
    for row in table:
        expected = probabilities[files.index(row["path"])]
        assert row["label"] == "" and row["label_1"] == CLASSES[expected.argmax()]
        assert float(row["probability_1"]) == pytest.approx(expected.max(), rel=1e-4)
        assert float(row["entropy"]) == pytest.approx(-(expected * np.log(expected)).sum(), rel=1e-4)


@pytest.mark.parametrize("batch_size", [1, 3, 32])
def test_few_images_are_held_and_the_choice_is_the_same(
    model: Any, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_size: int
) -> None:
    monkeypatch.setattr(to_label, "POOL", 4)
    choose_to_label(model.path, [photos], tmp_path / "out.csv", 3, PredictOptions(batch_size=batch_size))
    files = sorted(str(path) for path in photos.rglob("*") if path.is_file())
    _, probabilities = Predictor(model.path).predict(files)
    assert [row["path"] for row in rows(tmp_path / "out.csv")] == [files[i] for i in worth_labelling(probabilities, 3)]


def test_the_command_writes_the_list_and_says_what_to_do(
    model: Any, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.csv"
    run(model.path, photos, "-o", out, "--to-label", 4, "--sort-into", tmp_path / "sorted")
    printed = capsys.readouterr().err
    assert "12 images in " in printed and f"{out} lists 4 images to label, the most useful first" in printed
    assert f"move the images in {tmp_path / 'sorted'} to the right folders" in printed
    assert "`autodial init --labelled-target`" in printed
    links = [path for path in (tmp_path / "sorted").rglob("*") if path.is_symlink()]
    assert sorted(str(link.readlink()) for link in links) == sorted(row["path"] for row in rows(out))
    with pytest.raises(InputError, match="exists, and may hold labels that were filled in"):
        run(model.path, photos, "-o", out, "--to-label", 4)
    run(model.path, photos, "-o", tmp_path / "all.csv", "--to-label", 50, "--json")
    record = json.loads(capsys.readouterr().out)
    assert (record["chosen"], record["images"], record["errors"]) == (12, 12, 0)
    assert sum(record["classes"].values()) == 12


@pytest.mark.parametrize(
    "options",
    [["--logits"], ["--resume"], ["--shard", "1/2"], ["--drift", "d.json"], ["--column", "image"], ["--ray", "local"]],
)
def test_options_for_all_images_are_refused(model: Any, photos: Path, tmp_path: Path, options: list[str]) -> None:
    with pytest.raises(InputError, match=f"{options[0]} is for a table of all images"):
        run(model.path, photos, "-o", tmp_path / "out.csv", "--to-label", 2, *options)


def test_images_that_are_no_files_are_refused(model: Any, photos: Path, tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    for given in (f"local://{photos}", "table.parquet"):
        with pytest.raises(InputError, match=f"images to label must be files of this machine, and {given} is not"):
            run(model.path, given, "-o", tmp_path / "out.csv", "--to-label", 2)
    run(f"local://{model.path}", photos, "-o", tmp_path / "out.csv", "--to-label", 2)
    assert len(rows(tmp_path / "out.csv")) == 2


def test_other_outputs_are_refused(model: Any, photos: Path, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"images to label are listed in CSV, to be filled in: name a file that ends in \.csv"
    ):
        run(model.path, photos, "-o", tmp_path / "out.jsonl", "--to-label", 2)
    with pytest.raises(InputError, match="name a file"):
        run(model.path, photos, "-o", "-", "--to-label", 2)


def test_images_without_labels_end_the_run_where_asked(model: Any, photos: Path, tmp_path: Path) -> None:
    (photos / "a.png").write_bytes(b"broken")
    with pytest.raises(WorkError, match=r"a.png is not.*1 image has no label, which is more than 0 failures"):
        run(model.path, photos, "-o", tmp_path / "out.csv", "--to-label", 2, "--on-error", "fail")
    with pytest.raises(WorkError, match="no image can be labelled, the first one because of this"):
        run(model.path, photos / "a.png", "-o", tmp_path / "out.csv", "--to-label", 2)
    assert not (tmp_path / "out.csv").exists()


def test_a_run_that_fails_names_the_model_s_address(
    model: Any, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the copy that is run."""
    pytest.importorskip("fsspec")

    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(onnxruntime.InferenceSession, "run", fail)
    with pytest.raises(WorkError, match=rf"^local://{model.path}: ONNX Runtime failed on a batch"):
        choose_to_label(f"local://{model.path}", [photos], tmp_path / "out.csv", 2, PredictOptions(device="cpu"))
