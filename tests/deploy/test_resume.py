"""Interrupted runs, frozen at every step that a kill could leave behind, and what is refused to go on."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autodial.deploy import PredictOptions, Predictor, predict_folder, writer
from autodial.deploy.rows import Columns, Csv
from autodial.errors import InputError, WorkError

OPTIONS: dict[str, Any] = {"top_k": 2, "entropy": True, "logits": True, "batch_size": 3, "workers": 2}


@pytest.fixture
def snapshots(model: Any, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function of a file's suffix: the finished table, and copies of what lay on disk after every write to it."""

    def take(suffix: str, commits: bool) -> tuple[Path, list[Path]]:
        (photos / "b.JPG").write_bytes(b"broken")
        monkeypatch.setattr(writer, "SECONDS_BETWEEN_COMMITS", 0 if commits else 1e9)
        folders: list[Path] = []
        out = tmp_path / f"out{suffix}"

        def copy() -> None:
            folders.append(tmp_path / f"after-{suffix}-{commits}-{len(folders)}")
            folders[-1].mkdir()
            for path in tmp_path.glob(f"out{suffix}*"):
                shutil.copy(path, folders[-1])

        for place, step in ((writer.Table, "write"), (writer, "write_whole")):
            unwatched = getattr(place, step)

            def watched(*arguments: Any, unwatched: Any = unwatched) -> None:
                copy()
                unwatched(*arguments)
                copy()

            monkeypatch.setattr(place, step, watched)
        unlink = Path.unlink

        def watched_unlink(self: Path, missing_ok: bool = False) -> None:
            if self.parent == tmp_path and self.exists():
                copy()
            unlink(self, missing_ok)

        monkeypatch.setattr(Path, "unlink", watched_unlink)
        predict_folder(model.path, [photos], out, PredictOptions(**OPTIONS))
        monkeypatch.undo()
        return out, folders

    return take


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_from_wherever_it_was_killed_it_ends_alike(
    model: Any, photos: Path, snapshots: Any, suffix: str, commits: bool
) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    whole, folders = snapshots(suffix, commits)
    assert len(folders) >= 8
    resumed = []
    for folder in folders:
        for cut in (0, 7):  # the last bytes that no record vouches for may be missing, too
            again = folder / f"again-{cut}"
            shutil.copytree(folder, again, ignore=shutil.ignore_patterns("again*"))
            partial, record = again / f"out{suffix}.partial", again / f"out{suffix}.partial.json"
            if partial.exists() and record.exists():
                vouched = json.loads(record.read_text())["bytes"]
                os.truncate(partial, max(vouched, partial.stat().st_size - cut))
            summary = predict_folder(
                model.path, [photos], again / f"out{suffix}", PredictOptions(resume=True, **OPTIONS)
            )
            assert (again / f"out{suffix}").read_bytes() == whole.read_bytes()
            assert [path.name for path in again.iterdir()] == [f"out{suffix}"]
            assert (summary.images, summary.errors, sum(summary.counts.values())) == (12, 1, 11)
            resumed.append(summary.resumed)
    assert set(resumed) == ({0, 3, 6, 9, 12} if commits else {0, 12})


def interrupt(model: Any, inputs: list[Path], out: Path, **options: Any) -> None:
    def stop(done: int) -> None:
        if done >= 6:
            raise WorkError("Stopped.")

    with pytest.raises(WorkError, match="Stopped"):
        predict_folder(model.path, inputs, out, PredictOptions(**OPTIONS | options), progress=stop)


def test_other_settings_are_refused(model: Any, write_model: Any, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    interrupt(model, [photos], out)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("out.csv*")}
    for changed, message in [
        ({"top_k": 3}, "`top_k` was 2 and is 3"),
        ({"batch_size": 4}, "`batch_size` was 3 and is 4"),
        ({"entropy": False, "logits": False}, "`logits` was set and is not set; `entropy` was set and is not set"),
        ({"sort_into": tmp_path / "sorted"}, "`sort_into` was not set and is /"),
    ]:
        with pytest.raises(InputError, match=f"out.csv.partial can't be resumed with other settings .*{message}"):
            predict_folder(model.path, [photos], out, PredictOptions(resume=True, **OPTIONS | changed))
    with pytest.raises(InputError, match="the model is another file"):
        predict_folder(write_model(), [photos], out, PredictOptions(resume=True, **OPTIONS))
    with pytest.raises(InputError, match=r"the input was .*photos and is .*sub"):
        predict_folder(model.path, [photos / "sub"], out, PredictOptions(resume=True, **OPTIONS))
    assert {path.name: path.read_bytes() for path in tmp_path.glob("out.csv*")} == before
    # what doesn't change a row may change
    predict_folder(
        model.path, [photos], out, PredictOptions(resume=True, **OPTIONS | {"workers": 1, "max_failures": 1})
    )


@pytest.mark.parametrize("change", ["added", "removed", "renamed"])
def test_other_files_are_refused(model: Any, photos: Path, tmp_path: Path, change: str) -> None:
    out = tmp_path / "out.csv"
    interrupt(model, [photos], out)
    if change == "added":
        shutil.copy(photos / "a.png", photos / "0.png")
    elif change == "removed":
        (photos / "a.png").unlink()
    else:
        (photos / "a.png").rename(photos / "aa.png")
    for _ in range(2):  # and the refusal leaves it as it is
        with pytest.raises(
            InputError, match="no longer those of the interrupted run: images were added, removed or re"
        ):
            predict_folder(model.path, [photos], out, PredictOptions(resume=True, **OPTIONS))
    assert (tmp_path / "out.csv.partial").exists()


def test_files_that_come_later_may_change(model: Any, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    interrupt(model, [photos], out)
    shutil.copy(photos / "a.png", photos / "zz.png")
    assert predict_folder(model.path, [photos], out, PredictOptions(resume=True, **OPTIONS)).images == 13


def test_what_cannot_be_trusted_is_refused(model: Any, photos: Path, tmp_path: Path) -> None:
    out, partial, record = (tmp_path / f"out.csv{end}" for end in ("", ".partial", ".partial.json"))
    interrupt(model, [photos], out)
    kept = record.read_bytes()
    for content, message in ((None, "json is missing"), (b"{", "is damaged"), (kept, "has lost rows")):
        if content is None:
            record.unlink()
        else:
            record.write_bytes(content)
        if content == kept:
            os.truncate(partial, 50)
        with pytest.raises(InputError, match=message):
            predict_folder(model.path, [photos], out, PredictOptions(resume=True, **OPTIONS))


def test_with_nothing_to_go_on_with_it_starts(model: Any, photos: Path, tmp_path: Path) -> None:
    summary = predict_folder(model.path, [photos], tmp_path / "out.csv", PredictOptions(resume=True))
    assert (summary.images, summary.resumed) == (12, 0)


def test_a_disk_that_is_full_from_the_start_leaves_nothing_behind(
    model: Any, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "out").mkdir()
    monkeypatch.setattr(writer.os, "fsync", full)
    with pytest.raises(InputError, match="can't write here: No space left on device"):
        predict_folder(model.path, [photos], tmp_path / "out" / "labels.csv", PredictOptions(**OPTIONS))
    assert not list((tmp_path / "out").iterdir())


def test_standard_output_that_is_closed(model: Any, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(InputError, match="-: standard output is closed; name a file"):
        predict_folder(model.path, [photos], "-", PredictOptions(**OPTIONS))


@pytest.mark.skipif(sys.platform == "win32", reason="no such locks there")
def test_two_runs_do_not_write_one_file(model: Any, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    program = f"""
from autodial.deploy import PredictOptions, predict_folder
from autodial.errors import InputError
try:
    predict_folder({str(model.path)!r}, [{str(photos)!r}], {str(out)!r}, PredictOptions(resume=True))
except InputError as error:
    print(error)
"""
    said = []

    def other(done: int) -> None:
        said.append(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)

    predict_folder(model.path, [photos], out, progress=other)
    assert "another run is writing it" in said[0]
    assert len(out.read_text(encoding="utf-8").splitlines()) == 13


def test_batches_are_the_same_after_a_resume(
    model: Any, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row's batch never depends on where the run was cut: on a GPU, numbers may depend on the batch."""
    sizes: list[int] = []
    run = Predictor.run
    monkeypatch.setattr(Predictor, "run", lambda self, batch: (sizes.append(len(batch)), run(self, batch))[1])
    interrupt(model, [photos], tmp_path / "out.csv", batch_size=5)
    predict_folder(
        model.path, [photos], tmp_path / "out.csv", PredictOptions(resume=True, **OPTIONS | {"batch_size": 5})
    )
    assert sizes == [5, 5, 2, 2]


@pytest.mark.parametrize("change", ["content", "time", "removed", "came", "link"])
def test_an_image_that_has_changed_is_refused_by_name(model: Any, photos: Path, tmp_path: Path, change: str) -> None:
    listed = tmp_path / "list.txt"
    listed.write_text("".join(f"photos/{name}\n" for name in ("sub/x.png", "a.png", "gone.png", "c, d.bmp", "b.JPG")))
    if change == "link":
        (photos / "a.png").rename(photos / "real.png")
        (photos / "a.png").symlink_to("real.png")
    out = tmp_path / "out.csv"

    def stop(done: int) -> None:
        if done >= 3:
            raise WorkError("Stopped.")

    with pytest.raises(WorkError, match="Stopped"):
        predict_folder(model.path, [listed], out, PredictOptions(**OPTIONS), progress=stop)
    path, message = photos / "a.png", "a.png has changed, by its size or its time of modification, since its row"
    if change == "content":
        path.write_bytes((photos / "b.JPG").read_bytes())
    elif change == "time":
        os.utime(path, (1, 1))
    elif change == "link":  # what it leads to counts
        (photos / "real.png").write_bytes((photos / "b.JPG").read_bytes())
    elif change == "removed":
        path.unlink()
        message = "a.png was removed since its row was written"
    else:
        shutil.copy(path, photos / "gone.png")
        message = "gone.png has come since its row was written"
    before = out.with_name("out.csv.partial").read_bytes()
    for _ in range(2):
        with pytest.raises(InputError, match=message):
            predict_folder(model.path, [listed], out, PredictOptions(resume=True, **OPTIONS))
    assert out.with_name("out.csv.partial").read_bytes() == before
    if change == "content":  # one that has no row yet may change, and a run from the start takes all as it is
        out.with_name("out.csv.partial").unlink()
    elif change == "came":
        (photos / "gone.png").unlink()
    elif change == "time":
        return
    if change in ("content", "came"):
        (photos / "b.JPG").write_bytes((photos / "c, d.bmp").read_bytes())
        predict_folder(model.path, [listed], out, PredictOptions(resume=True, **OPTIONS))
        predict_folder(model.path, [listed], tmp_path / "whole.csv", PredictOptions(**OPTIONS))
        assert out.read_bytes() == (tmp_path / "whole.csv").read_bytes()


def values_of_every_kind() -> list[Any]:
    return [None, True, -1, 1.5, 2**70, "x", [], {}, [[]], {"0": 1}, {"x": 1}, {"0": -1}, float("nan"), float("inf")]


@pytest.mark.parametrize("key", ["settings", "rows", "bytes", "errors", "counts", "figures"])
def test_a_record_of_any_kind_is_refused_in_a_sentence(model: Any, photos: Path, tmp_path: Path, key: str) -> None:
    out, record = tmp_path / "out.csv", tmp_path / "out.csv.partial.json"
    interrupt(model, [photos], out)
    kept = json.loads(record.read_text())
    for value in values_of_every_kind():
        if key == "figures" and value is None:
            continue  # as it was
        record.write_text(json.dumps(kept | {key: value}))
        with pytest.raises(InputError) as failure:
            predict_folder(model.path, [photos], out, PredictOptions(resume=True, **OPTIONS))
        assert re.search("is damaged|other settings|has lost", str(failure.value)) and "\n" not in str(failure.value)
    del kept[key]
    record.write_text(json.dumps(kept))
    with pytest.raises(InputError, match=f'is damaged .the whole must be an object with "{key}"'):
        predict_folder(model.path, [photos], out, PredictOptions(resume=True, **OPTIONS))


@pytest.mark.parametrize("text", ["[" * 100_000, '{"settings":' * 100_000, "", "null", "[]", "3", "\udcff", "{}"])
def test_a_record_of_any_depth_is_refused_in_a_sentence(model: Any, photos: Path, tmp_path: Path, text: str) -> None:
    out = tmp_path / "out.csv"
    interrupt(model, [photos], out)
    (tmp_path / "out.csv.partial.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match=r"out.csv.partial.json is damaged"):
        predict_folder(model.path, [photos], out, PredictOptions(resume=True, **OPTIONS))


def test_without_what_the_rows_were_made_of_nothing_is_resumed(model: Any, photos: Path, tmp_path: Path) -> None:
    out, marks = tmp_path / "out.csv", tmp_path / "out.csv.partial.files"
    interrupt(model, [photos], out)
    os.truncate(marks, marks.stat().st_size - 1)
    with pytest.raises(InputError, match=r"partial.files has lost what was known of the rows"):
        predict_folder(model.path, [photos], out, PredictOptions(resume=True, **OPTIONS))
    marks.unlink()
    with pytest.raises(InputError, match=r"can't be resumed: out.csv.partial.files is missing"):
        predict_folder(model.path, [photos], out, PredictOptions(resume=True, **OPTIONS))
    (tmp_path / "out.csv.partial").unlink()
    assert predict_folder(model.path, [photos], out, PredictOptions(resume=True, **OPTIONS)).resumed == 0
    assert [path.name for path in tmp_path.glob("out*")] == ["out.csv"]


def test_an_error_beside_the_table_names_its_own_file(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    form = Csv(Columns(("a", "b")))
    with (
        pytest.raises(WorkError, match=r"^photos: No such file or directory$"),
        writer.open_table(out, form, {}),
    ):
        raise FileNotFoundError(2, "No such file or directory", "photos")
    with (
        pytest.raises(WorkError, match=r"out\.csv: can't write: No space left on device$"),
        writer.open_table(out, form, {}),
    ):
        raise OSError(28, "No space left on device", str(out.with_name("out.csv.partial.json.tmp")))
