"""Writes the table batch by batch: a run that is killed can be resumed, and half a table never has its final name."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TextIO, TypedDict

from autodial.deploy.addresses import is_address, name_of, shown, upload
from autodial.deploy.drift import Counts
from autodial.deploy.marks import Done, Marks, open_marks
from autodial.deploy.rows import Format, TableRow
from autodial.deploy.sources import FileState, ImageFile
from autodial.errors import AutodialError, InputError, WorkError
from autodial.system.json_files import NotJsonError, check, parse
from autodial.system.outputs import check_output, lock

STANDARD_OUTPUT = "-"

SECONDS_BETWEEN_COMMITS = 1.0

_Count = Annotated[int, range(2**63)]


@dataclass
class Tally:
    """What a table holds, counted while it is written."""

    rows: int = 0
    errors: int = 0
    """Rows without labels."""
    statuses: Counter[str] = field(default_factory=Counter)
    """Rows by their status: ok, damaged (with labels or without) or error."""
    counts: Counter[int] = field(default_factory=Counter)
    """Rows by their first class."""
    statistics: Counts | None = None
    """The rows' statistics, where they have any."""

    def add(self, rows: Sequence[TableRow]) -> None:
        """Count `rows`, which come next."""
        self.rows += len(rows)
        for row in rows:
            self.statuses[row.status] += 1
            if row.error is not None:
                self.errors += 1
            else:
                self.counts[row.classes[0]] += 1
        if self.statistics is not None:
            self.statistics.add([row.statistics for row in rows if row.error is None])


class Table:
    """A table that is being written; `open_table` makes one."""

    def __init__(self, file: BinaryIO | FileIO, form: Format, tally: Tally) -> None:
        self.tally = tally
        self._file = file
        self._form = form

    def write(self, rows: Sequence[TableRow], states: Sequence[FileState]) -> None:
        """Append rows, all of which or none outlive this process, and the states that their files were in."""
        self._append(self._form.encode(rows))
        self.tally.add(rows)

    def skip_done(self, images: Iterator[ImageFile]) -> Iterator[Done]:
        """Move `images` on, past those whose rows an earlier run wrote; InputError if they are others, or changed."""
        return iter(())

    def _append(self, data: bytes) -> None:
        self._file.write(data)
        self._file.flush()


class _ResumableTable(Table):
    """A Table in a file, with a record next to it that says how much of the file counts.

    The record, a small JSON file, is replaced about once a second, after what it vouches for is on disk; what lies
    behind that is cut off when the run is resumed.
    """

    def __init__(
        self,
        file: FileIO,
        form: Format,
        record: Path,
        marks: Marks,
        settings: Mapping[str, Any],
        kept: _Record | None,
        statistics: Counts | None,
    ) -> None:
        tally = Tally(statistics=statistics)
        if kept is not None:
            tally.rows, tally.errors = kept["rows"], kept["errors"]
            tally.statuses.update(kept["statuses"])
            tally.counts.update({int(index): count for index, count in kept["counts"].items()})
            if statistics is not None and kept["figures"] is not None:
                statistics.restore(kept["figures"])
        super().__init__(file, form, tally)
        self._record = record
        self._marks = marks
        self._settings = settings
        self._size: int = kept["bytes"] if kept else 0
        file.truncate(self._size)
        file.seek(self._size)
        if kept is None:
            self.commit()
        if self._size == 0:
            self._append(form.header())
        self._committed = time.monotonic()

    def write(self, rows: Sequence[TableRow], states: Sequence[FileState]) -> None:
        self._marks.add(rows, states)
        super().write(rows, states)
        if time.monotonic() - self._committed >= SECONDS_BETWEEN_COMMITS:
            self.commit()

    def skip_done(self, images: Iterator[ImageFile]) -> Iterator[Done]:
        return self._marks.check(images)

    def commit(self) -> None:
        """Make sure that a resumed run goes on from here."""
        self._marks.sync()
        os.fsync(self._file.fileno())
        tally = self.tally
        record = {
            "settings": self._settings,
            "rows": tally.rows,
            "bytes": self._size,
            "errors": tally.errors,
            "statuses": tally.statuses,
            "counts": tally.counts,
            "figures": None if tally.statistics is None else tally.statistics.state(),
        }
        write_whole(self._record, json.dumps(record))
        self._committed = time.monotonic()

    def _append(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:  # unbuffered: a full disk may take a part
            rest = rest[self._file.write(rest) :]
        self._size += len(data)


def write_whole(path: Path, text: str) -> None:
    """Replace the file `path` once all of `text` is on disk."""
    aside = path.with_name(f"{path.name}.tmp")
    try:
        with aside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def unfinished(output: Path) -> tuple[Path, Path, Path]:
    """Where the rows of a table that is not done are, and what is needed to go on with them: a record, and marks."""
    rows, record, marks = (output.with_name(f"{output.name}.partial{end}") for end in ("", ".json", ".files"))
    return rows, record, marks


@contextlib.contextmanager
def open_table(
    output: str | Path,
    form: Format,
    settings: Mapping[str, Any],
    *,
    resume: bool = False,
    statistics: Counts | None = None,
    standard_output: TextIO | None = None,
) -> Iterator[Table]:
    """A Table that becomes the file `output` when the block ends well; "-" is standard output.

    Until then its rows are in `output`.partial, and what is needed to go on with them in `output`.partial.json and
    `output`.partial.files. When the block is left by an exception, Ctrl-C included, they stay there, the exception's
    message says so, and `output` is as it was before; if there are no rows yet, nothing stays.

    If `output` is an address, these files lie in the working directory, and the whole table is uploaded in the end. If
    that fails, the rows stay.

    Args:
        output: the file to write.
        form: how.
        settings: all that the rows depend on, as JSON has it; a run with others is not resumed.
        resume: go on with what an interrupted run left, if it left something. The table's `tally` says how much.
        statistics: counts those of the rows; one that is resumed goes on from the interrupted run's.
        standard_output: what "-" means; None for sys.stdout.

    Raises:
        InputError: `output` can't be a file, an interrupted run's rows are there and `resume` is not set, or they can't
            be gone on with: they have other settings, or another process is writing them.
        WorkError: writing fails, on a full disk say.
    """
    if str(output) == STANDARD_OUTPUT:
        stream = standard_output or sys.stdout
        if stream is None:
            raise InputError("-: standard output is closed; name a file to write")
        try:
            stream.flush()
            table = Table(stream.buffer, form, Tally(statistics=statistics))
            table._append(form.header())
            yield table
        except BrokenPipeError:  # nobody reads it any more
            raise
        except OSError as error:
            raise WorkError(f"standard output can't be written: {error.strerror}") from error
        return
    remote = str(output) if is_address(str(output)) else None
    final = check_output(name_of(remote) if remote else output)
    partial, record, marks = unfinished(final)
    with contextlib.ExitStack() as stack:
        try:
            if not partial.exists():  # a run was killed between its last steps
                record.unlink(missing_ok=True)
                marks.unlink(missing_ok=True)
            file = stack.enter_context(_open_partial(partial, resume))
            kept = _kept(partial, file, _read_record(record), settings, form, statistics)
            if kept is not None and not marks.exists():
                raise _without(partial, marks)
            marked, marks_of_rows = open_marks(marks, 0 if kept is None else kept["rows"])
            stack.callback(marked.close)
            table = _ResumableTable(file, form, record, marks_of_rows, settings, kept, statistics)
        except OSError as error:
            with contextlib.suppress(OSError):
                if partial.stat().st_size == 0:  # nothing was done
                    for path in (partial, record, marks):
                        path.unlink(missing_ok=True)
            raise InputError(f"{final if remote else output}: can't write here: {error.strerror}") from error
        try:
            yield table
            table.commit()
            file.close()
            marked.close()
            if remote:
                _send(form, partial, remote)
            else:
                form.finish(partial, final)
            record.unlink()
            marks.unlink()
        except BaseException as error:
            _leave(error, table, unfinished(final), shown(remote) if remote else output)
            raise


def _send(form: Format, partial: Path, address: str) -> None:
    """Make the table of the rows in `partial` and upload it; the rows are removed when it has arrived."""
    rows, table = (partial.with_name(partial.name + end) for end in (".rows", ".table"))
    try:
        rows.unlink(missing_ok=True)  # of a run that was killed here
        try:
            rows.hardlink_to(partial)
        except OSError:  # a file system without links
            shutil.copyfile(partial, rows)
        form.finish(rows, table)
        upload(table, address)
    finally:
        rows.unlink(missing_ok=True)
        table.unlink(missing_ok=True)
    partial.unlink()


class _Statistics(TypedDict):
    bins: list[list[_Count]]
    sums: list[float]


class _Record(TypedDict):
    settings: Mapping[str, Any]
    rows: _Count
    bytes: _Count
    errors: _Count
    statuses: Mapping[str, _Count]
    counts: Mapping[str, _Count]
    figures: _Statistics | None


def _read_record(path: Path) -> _Record | None:
    try:
        return check(parse(path.read_bytes()), _Record)
    except FileNotFoundError:
        return None
    except (NotJsonError, InputError) as error:
        raise _damaged(path, str(error)) from error


def _damaged(record: Path, why: str) -> InputError:
    return InputError(f"{record} is damaged ({why}): delete it and the .partial next to it")


def _without(partial: Path, missing: Path) -> InputError:
    return InputError(f"{partial} can't be resumed: {missing.name} is missing; delete {partial.name} to start afresh")


def _open_partial(path: Path, resume: bool) -> FileIO:
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0) | (0 if resume else os.O_EXCL)
    try:
        file = FileIO(os.open(path, flags, 0o666), "rb+")
    except FileExistsError:
        raise InputError(
            f"{path} holds what an interrupted run has done, or one that still runs: go on with `resume`, or delete it "
            "to start afresh"
        ) from None
    if not lock(file):
        file.close()
        raise InputError(f"{path}: another run is writing it")
    return file


def _kept(
    partial: Path,
    file: FileIO,
    record: _Record | None,
    settings: Mapping[str, Any],
    form: Format,
    statistics: Counts | None,
) -> _Record | None:
    """The record of what can be gone on with, or None to start afresh; InputError if neither is right."""
    size = os.fstat(file.fileno()).st_size
    if record is None:
        if size == 0:
            return None
        raise _without(partial, partial.with_name(f"{partial.name}.json"))
    now = json.loads(json.dumps(settings))
    changed = [key for key in now if now[key] != record["settings"].get(key)]
    if changed:
        was = "; ".join(_change(key, record["settings"].get(key), now[key]) for key in changed)
        raise InputError(f"{partial} can't be resumed with other settings ({was}): repeat them, or delete the file")
    if record["bytes"] > size:
        raise InputError(f"{partial} can't be resumed: it has lost rows; delete it to start afresh")
    labelled, kept = sum(record["counts"].values()), record["figures"]
    classes = set(map(str, range(len(form.columns.classes))))
    if not record["counts"].keys() <= classes or record["errors"] + labelled != record["rows"]:
        raise _damaged(partial.with_name(f"{partial.name}.json"), "its rows and its classes contradict each other")
    if statistics is not None and (kept is None or not statistics.fits(kept["bins"], kept["sums"], labelled)):
        raise _damaged(partial.with_name(f"{partial.name}.json"), "its statistics are not those of its rows")
    return record


def _change(setting: str, was: Any, now: Any) -> str:
    """How a setting differs from that of the run to be resumed, in the words of the user who gave it."""
    if setting == "model_sha256":
        return "the model is another file"
    if setting == "versions" and isinstance(was, dict):
        return ", ".join(f"{name} was {was.get(name)} and is {now[name]}" for name in now if was.get(name) != now[name])
    name = {"inputs": "the input", "provider": "what runs the model"}.get(setting, f"`{setting}`")
    return f"{name} was {_given(was)} and is {_given(now)}"


def _given(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "set" if value else "not set"
    if isinstance(value, list):
        return " ".join(map(str, value)) if any(isinstance(part, str) for part in value) else "/".join(map(str, value))
    return str(value)


def _leave(error: BaseException, table: _ResumableTable, files: Sequence[Path], output: str | Path) -> None:
    """Tidy up after `error`, and raise it again with what is kept in its message, where it has one."""
    rows = table.tally.rows
    with contextlib.suppress(OSError, ValueError):  # a full disk, a file that is closed
        table.commit()
    if rows == 0:
        for path in files:
            path.unlink(missing_ok=True)
    first = "the row of the first image is" if rows == 1 else f"the rows of the first {rows} images are"
    kept = f"{first} in {files[0]}, and `resume` goes on from there" if rows else ""
    if isinstance(error, OSError):
        # Writing to an open file names none.
        own = error.filename is None or str(error.filename).startswith(str(files[0]).removesuffix(".partial"))
        what = f"{output}: can't write" if own else error.filename
        raise WorkError("; ".join(filter(None, [f"{what}: {error.strerror}", kept]))) from error
    if isinstance(error, (AutodialError, KeyboardInterrupt)):
        raise type(error)("; ".join(filter(None, [str(error), kept]))) from error
