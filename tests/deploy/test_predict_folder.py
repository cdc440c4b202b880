from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import pytest

from autodial.deploy import PredictOptions, Predictor, predict_folder
from autodial.errors import InputError, WorkError


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def images_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_labels_a_folder_as_numpy_does(model: Any, photos: Path, tmp_path: Path) -> None:
    files = images_in(photos)
    (photos / "notes.txt").touch()
    summary = predict_folder(model.path, [photos], tmp_path / "out.csv", PredictOptions(top_k=3, batch_size=5))
    table = rows(tmp_path / "out.csv")
    header = "path,status,label_1,probability_1,label_2,probability_2,label_3,probability_3,error"
    assert (tmp_path / "out.csv").read_text(encoding="utf-8").split("\n", 1)[0] == header
    assert [row["path"] for row in table] == [str(file) for file in files]
    assert {(row["status"], row["error"]) for row in table} == {("ok", "")}
    probabilities = model.probabilities(*files)
    for row, expected in zip(table, probabilities, strict=True):
        best = np.argsort(expected)[::-1][:3]
        assert [row[f"label_{k}"] for k in (1, 2, 3)] == [model.classes[i] for i in best]
        np.testing.assert_allclose([float(row[f"probability_{k}"]) for k in (1, 2, 3)], expected[best], rtol=1e-4)
    labels = model.labels(*files)
    assert summary.counts == {label: labels.count(label) for label in set(labels)}
    assert list(summary.counts.values()) == sorted(summary.counts.values(), reverse=True)
    assert (summary.images, summary.errors, summary.provider) == (12, 0, "CPUExecutionProvider")
    assert summary.images_per_second == summary.images / summary.seconds
    assert summary.passed_over == {".txt": 1}


def test_the_run_s_own_files_are_not_counted(model: Any, photos: Path, tmp_path: Path) -> None:
    (photos / "notes.txt").touch()
    for _ in range(2):
        summary = predict_folder(model.path, [photos], photos / "out.csv")
        assert summary.passed_over == {".txt": 1}


def test_grey_models_read_grey(grey_model: Any, photos: Path, tmp_path: Path) -> None:
    predict_folder(grey_model.path, [photos], tmp_path / "out.csv")
    assert [row["label_1"] for row in rows(tmp_path / "out.csv")] == grey_model.labels(*images_in(photos))


def test_the_table_depends_on_neither_threads_nor_batch_size(model: Any, photos: Path, tmp_path: Path) -> None:
    (photos / "b.JPG").write_bytes(b"broken")
    tables = []
    for workers, batch_size in [(1, 1), (1, 32), (2, 5), (7, 3), (16, 1), (None, 12)]:
        predict_folder(
            model.path, [photos], tmp_path / "out.csv", PredictOptions(top_k=4, batch_size=batch_size, workers=workers)
        )
        tables.append([list(row.values())[:3] for row in rows(tmp_path / "out.csv")])
    assert all(table == tables[0] for table in tables)

    contents = []
    for workers in (1, 2, 3, 8):
        predict_folder(
            model.path, [photos], tmp_path / "out.csv", PredictOptions(top_k=4, batch_size=5, workers=workers)
        )
        contents.append((tmp_path / "out.csv").read_bytes())
    assert len(set(contents)) == 1


def test_an_unreadable_image_is_a_row(model: Any, photos: Path, tmp_path: Path) -> None:
    damaged = {"a.png": b"", "sub/x.png": b"not an image", "c, d.bmp": (photos / "c, d.bmp").read_bytes()[:-60]}
    for name, content in damaged.items():
        (photos / name).write_bytes(content)
    (photos / "list.txt").write_text("sub/0.png 1\nsub/deep/0.png 2\n")
    summary = predict_folder(
        model.path, [photos, photos / "list.txt"], tmp_path / "out.csv", PredictOptions(top_k=2, batch_size=2)
    )
    table = {row["path"]: row for row in rows(tmp_path / "out.csv")}
    assert list(table) == [
        *map(str, images_in(photos)[:3]),
        *map(str, images_in(photos)[4:]),
        "sub/0.png",
        "sub/deep/0.png",
    ]
    for name in [*(str(photos / name) for name in damaged), "sub/0.png"]:
        assert table[name]["status"] == "error"
        assert "".join(table[name][f"{field}_{k}"] for k in (1, 2) for field in ("label", "probability")) == ""
    assert "is empty" in table[str(photos / "a.png")]["error"]
    assert "not an image" in table[str(photos / "sub/x.png")]["error"]
    assert "does not exist" in table["sub/0.png"]["error"]
    readable = [path for path, row in table.items() if row["status"] == "ok"]
    assert len(readable) == 10
    assert [table[path]["label_1"] for path in readable] == model.labels(*(photos / path for path in readable))
    assert (summary.images, summary.errors, sum(summary.counts.values())) == (14, 4, 10)


def test_a_folder_of_broken_images_is_a_table(model: Any, tmp_path: Path) -> None:
    (tmp_path / "a.png").touch()
    summary = predict_folder(model.path, [tmp_path], tmp_path / "out.csv")
    assert (summary.images, summary.errors, summary.counts) == (1, 1, {})
    assert rows(tmp_path / "out.csv")[0]["status"] == "error"


def test_a_name_that_is_not_utf8_keeps_its_bytes(model: Any, photos: Path, tmp_path: Path) -> None:
    name = os.fsencode(photos) + b"/caf\xe9.png"
    try:
        (photos / "a.png").rename(os.fsdecode(name))
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    predict_folder(model.path, [os.fsdecode(name)], tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_bytes().split(b"\n")[1].startswith(name + b",ok,")


def test_output_to_standard_output(model: Any, photos: Path, tmp_path: Path, capfdbinary: Any) -> None:
    predict_folder(model.path, [photos], "-", PredictOptions(top_k=2))
    predict_folder(model.path, [photos], tmp_path / "out.csv", PredictOptions(top_k=2))
    assert capfdbinary.readouterr().out == (tmp_path / "out.csv").read_bytes()


def test_progress_is_told_after_every_batch(model: Any, photos: Path, tmp_path: Path) -> None:
    told: list[int] = []
    predict_folder(model.path, [photos], tmp_path / "o.csv", PredictOptions(batch_size=5), progress=told.append)
    assert told == [5, 10, 12]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("a bug"), WorkError("it broke")])
def test_what_is_done_outlives_a_failure(model: Any, photos: Path, tmp_path: Path, error: BaseException) -> None:
    out, partial = tmp_path / "out.csv", tmp_path / "out.csv.partial"
    out.write_text("older work")

    def stop(done: int) -> None:
        if done == 10:
            raise error

    with pytest.raises(type(error)) as caught:
        predict_folder(model.path, [photos], out, PredictOptions(batch_size=5), progress=stop)
    assert [row["path"] for row in rows(partial)] == [str(path) for path in images_in(photos)[:10]]
    if not isinstance(error, RuntimeError):
        assert str(caught.value).endswith(
            f"the rows of the first 10 images are in {partial}, and `resume` goes on from there"
        )
    with pytest.raises(
        InputError, match=r"out.csv.partial holds what an interrupted run has done.*`resume`, or delete"
    ):
        predict_folder(model.path, [photos], out, PredictOptions(batch_size=5))
    assert out.read_text() == "older work"
    summary = predict_folder(model.path, [photos], out, PredictOptions(batch_size=5, resume=True))
    assert (summary.images, summary.resumed, sum(summary.counts.values())) == (12, 10, 12)
    predict_folder(model.path, [photos], tmp_path / "whole.csv", PredictOptions(batch_size=5))
    assert out.read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert sorted(path.name for path in tmp_path.glob("*.csv*")) == ["out.csv", "whole.csv"]


def test_a_failure_before_the_first_row_leaves_nothing(
    model: Any, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise WorkError("it broke")

    monkeypatch.setattr(Predictor, "run", fail)
    with pytest.raises(WorkError, match=r"it broke$"):
        predict_folder(model.path, [photos], tmp_path / "out.csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos"]


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on the size of files")
def test_a_full_disk(model: Any, photos: Path, tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk: 5 rows, a part of the sixth, and the record fit.

    Long paths make the rows larger than the record, wherever the temporary folder is.
    """
    photos = photos.rename(tmp_path / ("long" * 50))
    program = f"""
import resource, signal, sys
from autodial.deploy import PredictOptions, predict_folder
from autodial.errors import WorkError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
options = dict(top_k=4, logits=True, batch_size=5)
predict_folder({str(model.path)!r}, [{str(photos)!r}], "whole.csv", PredictOptions(**options))
size = len(b"".join(open("whole.csv", "rb").readlines()[:7])) - 3
resource.setrlimit(resource.RLIMIT_FSIZE, (max(size, 1), resource.RLIM_INFINITY))
try:
    predict_folder({str(model.path)!r}, [{str(photos)!r}], "out.csv", PredictOptions(**options))
except WorkError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
predict_folder({str(model.path)!r}, [{str(photos)!r}], "out.csv", PredictOptions(**options, resume=True))
"""
    command = [sys.executable, "-c", program]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert "out.csv: can't write: File too large; the rows of the first 5 images are in" in said
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()


def test_refuses_before_it_writes(model: Any, photos: Path, tmp_path: Path) -> None:
    (photos / "list.txt").write_text("a.png\n")
    out = tmp_path / "out.csv"
    for output, inputs, options, message in [
        (out, [photos, "nowhere"], {}, "nowhere: no such file or folder"),
        (out, [photos], {"top_k": 5}, r"`top_k` is 5, and .* has 4 classes: choose from 1 to 4"),
        (out, [photos], {"top_k": 0}, "`top_k` is 0"),
        (out, [photos], {"device": "tpu"}, "device 'tpu'"),
        (tmp_path, [photos], {}, "not a regular file"),
        (tmp_path / "no" / "out.csv", [photos], {}, "there is no folder"),
        (model.path, [photos], {}, "reads this file"),
        (photos / "list.txt", [photos / "list.txt"], {}, "reads this file"),
        (Path(os.devnull), [photos], {}, "not a regular file"),
        (tmp_path / "out.txt", [photos], {}, r"the table is .csv, .jsonl, .parquet, by the name's suffix"),
        (out, [photos], {"shard": (0, 2)}, "shard 0/2: shards count from 1"),
        (out, [photos], {"shard": (3, 2)}, "shard 3/2"),
        ("-", [photos], {"resume": True}, "standard output can't be resumed"),
        (out, [photos], {"sort_into": photos / "sorted"}, "lies in .*photos, whose images are labelled"),
        (out, [f"{photos}/**/*.png"], {"sort_into": photos / "sub" / "sorted"}, "whose images are labelled"),
        (out, [photos], {"sort_into": photos}, "something in this folder"),
        (out, [photos], {"sort_into": model.path}, "is not a folder: name another"),
    ]:
        with pytest.raises(InputError, match=message):
            predict_folder(model.path, inputs, output, PredictOptions(**options))
    assert not list(tmp_path.glob("*.csv*"))
    assert (photos / "list.txt").read_text() == "a.png\n"


def test_a_link_keeps_pointing_at_the_table(model: Any, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    try:
        (tmp_path / "out.csv").symlink_to(tmp_path / "real" / "table.csv")
    except OSError:
        pytest.skip("no symbolic links here")
    predict_folder(model.path, [photos], tmp_path / "out.csv")
    assert (tmp_path / "out.csv").is_symlink()
    assert len(rows(tmp_path / "real" / "table.csv")) == 12


def test_batches_of_one_size_where_that_is_faster(
    model: Any, photos: Path, tmp_path: Path, batch_sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on CUDA: the last batch, and one with images that can't be read, are filled up."""
    for name in ("a.png", "sub/x.png"):
        (photos / name).write_bytes(b"broken")
    predict_folder(model.path, [photos], tmp_path / "plain.csv", PredictOptions(top_k=4, batch_size=5))
    batch_sizes.clear()
    monkeypatch.setattr(Predictor, "fixed_batches", True)
    predict_folder(model.path, [photos], tmp_path / "fixed.csv", PredictOptions(top_k=4, batch_size=5))
    assert batch_sizes == [5, 5, 5]
    for fixed, plain in zip(rows(tmp_path / "fixed.csv"), rows(tmp_path / "plain.csv"), strict=True):
        assert fixed == plain


def test_opencvs_threads_are_its_own_again_afterwards(model: Any, photos: Path, tmp_path: Path) -> None:
    before = cv2.getNumThreads()
    during = []
    watch = lambda done: during.append(cv2.getNumThreads())  # noqa: E731
    predict_folder(model.path, [photos], tmp_path / "o.csv", PredictOptions(batch_size=5), progress=watch)
    assert during[0] == 1 and cv2.getNumThreads() == before


def test_the_summary_says_which_stage_was_slowest(
    model: Any, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, prepare = Predictor.run, Predictor.prepare
    monkeypatch.setattr(Predictor, "run", lambda self, batch: (time.sleep(0.1), run(self, batch))[1])
    summary = predict_folder(model.path, [photos], tmp_path / "o.csv", PredictOptions(workers=2))
    assert summary.stages[0].name == "run" and 60 < summary.stages[0].images_per_second < 120
    monkeypatch.setattr(Predictor, "prepare", lambda self, image: (time.sleep(0.05), prepare(self, image))[1])
    summary = predict_folder(model.path, [photos], tmp_path / "o.csv", PredictOptions(workers=2))
    assert summary.stages[0].name == "decode" and 20 < summary.stages[0].images_per_second < 40
    assert {stage.name for stage in summary.stages} == {"decode", "run", "write"}
    assert {stage.images for stage in summary.stages} == {12}


def test_decoding_runs_ahead_by_a_bounded_number_of_images(
    model: Any, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the model works on a batch, the next ones are decoded, and no more than that."""
    list_file = tmp_path / "list.txt"
    list_file.write_text(f"{photos / 'a.png'}\n" * 100)
    decoded = threading.Semaphore(0)
    count = 0
    prepare, run = Predictor.prepare, Predictor.run

    def counted(self: Predictor, image: Any) -> Any:
        nonlocal count
        count += 1
        decoded.release()
        return prepare(self, image)

    seen = []

    def slow(self: Predictor, batch: Any) -> Any:
        if len(seen) < 5:
            # A batch of 10 for the model, and 10 + 10 beyond it: 20 more than the batches done must get decoded.
            for _ in range(30 if not seen else 10):
                assert decoded.acquire(timeout=30)
            seen.append(count)
        return run(self, batch)

    monkeypatch.setattr(Predictor, "prepare", counted)
    monkeypatch.setattr(Predictor, "run", slow)
    predict_folder(model.path, [list_file], tmp_path / "out.csv", PredictOptions(batch_size=10, workers=3))
    assert seen == [30, 40, 50, 60, 70]
    assert len(rows(tmp_path / "out.csv")) == 100


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_classes_of_one_name_are_told_apart_everywhere(
    model: Any, write_model: Any, photos: Path, tmp_path: Path, suffix: str
) -> None:
    """The same model under names of which three are one: every image gets the label of the same number."""
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    names = {"cat": "crane_0", "dog, big": "crane_1", 'the "other"': "gull", "Ødegård 猫": "crane_3"}
    record = json.loads(onnx.load(model.path).metadata_props[0].value)
    alike = onnx.load(model.path)
    onnx.helper.set_model_props(
        alike, {"autodial": json.dumps(record | {"classes": ["crane", "crane", "gull", "crane"]})}
    )
    onnx.save(alike, tmp_path / "alike.onnx")
    summaries, tables = [], []
    for path, folder in ((model.path, "a"), (tmp_path / "alike.onnx", "b")):
        (tmp_path / folder).mkdir()
        out = tmp_path / folder / f"out{suffix}"
        summaries.append(
            predict_folder(path, [photos], out, PredictOptions(top_k=4, logits=True, sort_into=tmp_path / folder / "s"))
        )
        tables.append(read_table(out))
    assert summaries[1].counts == {names[name]: count for name, count in summaries[0].counts.items()}
    for before, after in zip(*tables, strict=True):
        assert [after[f"label_{i}"] for i in range(1, 5)] == [names[before[f"label_{i}"]] for i in range(1, 5)]
        if suffix == ".csv":
            assert [after[f"logit_{names[name]}"] for name in names] == [before[f"logit_{name}"] for name in names]
    assert {path.name for path in (tmp_path / "b" / "s").iterdir()} == set(summaries[1].counts)


def read_table(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        import pyarrow.parquet

        rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
        return rows
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file)) if path.suffix == ".csv" else [json.loads(line) for line in file]


@pytest.mark.parametrize("inputs", ["photos", Path("photos"), b"photos"])
def test_one_input_is_no_sequence_of_inputs(model: Any, tmp_path: Path, inputs: Any) -> None:
    with pytest.raises(InputError, match="inputs is a sequence of files, folders, lists and patterns, not one of them"):
        predict_folder(model.path, inputs, tmp_path / "out.csv")
