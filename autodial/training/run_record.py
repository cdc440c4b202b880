"""What a run's folder says: the types of run.json and of log.jsonl, and their reading.

`run.json` is an object {"schema": 1, "starts": [...]}, one record per start of the run (the first, and each time it was
resumed). `log.jsonl` has one JSON object per line: "event" is "train" (a displayed iteration), "test", "snapshot",
"collapse" (an alarm, see `CollapseWatch`), "weights", "recalibration" or "start", "time" is when, in UTC, and NaN and
infinite numbers are null.
A "test" line has under "not_finite" the blobs with scores that were NaN or infinite: in how many rows, out of how many.
Under "recalls" and "balanced_accuracy" it has, by blob of scores, each class's recall over the whole test and their
mean. A class without labels is null.

`autodial select` and `autodial compare` add a line "weights" for the file that they keep of a training: its SHA-256,
whether its statistics were computed once more, over all images, and under "test" what it scored, if there were labels.
`autodial recalibrate` adds a line "recalibration": under "of" the SHA-256 of weights that this run wrote or that were
kept of it, under "sha256" that of the file with new statistics, and under "images" the names of the images that they
were computed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, TypedDict

from autodial.errors import InputError
from autodial.system.json_files import FilePath, NotJsonError, WrongValueError, check, parse, read

RECORD, LOG = "run.json", "log.jsonl"
SCHEMA = 1
"""The form of run.json that this version writes."""
_REMEDY = "name another folder, or put back what `autodial train` wrote"

Event = dict[str, Any]
"""A line of a log, of one of the types below."""


def _time(value: str) -> None:
    try:
        if datetime.fromisoformat(value).tzinfo is not None:
            return
    except ValueError:
        pass
    raise WrongValueError("a time such as 2024-05-31T12:00:00+00:00", value)


def _not_empty(value: list[Any]) -> None:
    if not value:
        raise WrongValueError("a list of one or more", value)


def _pair(value: list[int]) -> None:
    if len(value) != 2:
        raise WrongValueError("two numbers", value)


_Iteration = Annotated[int, range(2**31)]
_Time = Annotated[str, _time]
_Number = float | None
"""None where it was not finite."""
_Rows = Annotated[list[Annotated[int, range(2**63)]], _pair]
"""The number of rows with scores that were not finite, and of all rows."""


class _OldStart(TypedDict):
    """The entries that a start's record had in the first version."""

    command: str
    device: str
    folder: FilePath
    nets: Annotated[list[str], _not_empty]
    seed: int
    settings: list[str]
    solver: str
    started: _Time
    variants: list[str]
    versions: Mapping[str, str]


class Start(_OldStart, total=False):
    """A start of a run; `net_folders` has the folder of the file of each net in `nets`."""

    iteration: _Iteration
    net_folders: list[FilePath | None]
    precision: str
    ranks: int
    workers: int


class _Record(TypedDict):
    schema: int
    starts: Annotated[list[Start], _not_empty]


class _AnyRecord(TypedDict):
    schema: int
    starts: list[Mapping[str, Any]]


class _Line(TypedDict):
    event: str
    iteration: _Iteration


class _Timed(_Line, total=False):
    time: _Time


class _Logged(_Timed):
    outputs: Mapping[str, _Number | list[_Number]]
    loss_weights: Mapping[str, _Number]


class _Train(_Logged):
    lr: _Number
    loss: _Number
    alphas: Mapping[str, _Number]


class _TrainEvent(_Train, total=False):
    """A displayed iteration."""

    images_per_s: _Number
    diversity: Mapping[str, _Number]


class _TestEvent(_Logged, total=False):
    """A test of a test net."""

    net: Annotated[int, range(2**16)]
    not_finite: Mapping[str, _Rows]
    recalls: Mapping[str, list[_Number]]
    balanced_accuracy: Mapping[str, _Number]


class _SnapshotEvent(_Timed):
    """A snapshot that was written."""

    model: FilePath
    sha256: str


class KeptTest(TypedDict):
    """What kept weights scored: "images", how many had labels, and the rest as in a "test" line, for the logits."""

    images: Annotated[int, range(2**63)]
    accuracy: _Number
    balanced_accuracy: _Number
    recalls: list[_Number]


class _WeightsEvent(_Timed):
    """Weights that were kept."""

    model: FilePath
    sha256: str
    recalibrated: bool
    test: KeptTest | None


class _RecalibrationEvent(_Timed):
    """Weights with new statistics."""

    model: FilePath
    sha256: str
    of: str
    images: list[FilePath]


class _CollapseEvent(_Timed):
    """An alarm."""

    layer: str
    classes: _Iteration
    in_use: _Number
    in_source: _Number


_EVENTS: Mapping[str, Any] = {
    "train": _TrainEvent,
    "test": _TestEvent,
    "snapshot": _SnapshotEvent,
    "weights": _WeightsEvent,
    "recalibration": _RecalibrationEvent,
    "collapse": _CollapseEvent,
}


def holds_run(folder: Path) -> bool:
    """Whether a folder is that of a run."""
    return (folder / RECORD).exists()


def read_starts(folder: Path) -> list[Start]:
    """The records of a run's starts, the first one first; there is at least one.

    Raises:
        InputError: run.json can't be read, is damaged, or is of another program; it says where.
    """
    read_records(folder)  # raises first if the file is of a newer version, whatever that holds
    return read(folder / RECORD, _Record, remedy=_REMEDY)["starts"]


def read_records(folder: Path) -> list[Mapping[str, Any]]:
    """The records of a run's starts as they stand, so that further ones can be added, whatever they hold.

    Raises:
        InputError: as `read_starts`, but the insides of the records are not checked.
    """
    path = folder / RECORD
    record = read(path, _AnyRecord, remedy=_REMEDY)
    if record["schema"] != SCHEMA:
        raise InputError(
            f"{path} has schema {record['schema']}, and this AutoDIAL reads {SCHEMA}: use the version that wrote it"
        )
    return record["starts"]


def read_log(folder: Path) -> list[Event]:
    """The "train" and "test" rows of a run as if it had never been interrupted.

    Rows beyond the iteration from which the run was resumed are left out: the resumed run logged them again.

    Raises:
        InputError: as `read_events`.
    """
    return [row for row in read_events(folder) if row["event"] in ("train", "test")]


def read_events(folder: Path) -> list[Event]:
    """Every line of a run's log, without those beyond an iteration from which the run was resumed.

    An unfinished last line, which is being written or was when the run was killed, is left out.

    Raises:
        InputError: there is no log, a line is damaged, or the iterations go back without a start; it names the line.
    """
    path = folder / LOG
    rows: list[tuple[int, Event]] = []
    least = 2**31  # the smallest iteration of a later start
    for number, row in reversed(list(enumerate(_lines(path), start=1))):
        if _stands(row, least):
            rows.append((number, row))
        if row["event"] == "start":
            least = min(least, row["iteration"])
    rows.reverse()
    reached = 0
    for number, row in rows:
        if row["iteration"] < reached:
            raise InputError(
                f"{path}:{number}: the line is damaged, its iteration {row['iteration']} comes after {reached} without "
                "a start: delete the line to go on without it"
            )
        reached = row["iteration"]
    return [row for _, row in rows]


def _lines(path: Path) -> Iterator[Event]:
    """The checked lines of a log, except for an unfinished last one."""
    if path.exists() and not path.is_file():
        raise InputError(f"the run's log {path} is not a regular file: {_REMEDY}")
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    return
                try:
                    row: Event = parse(line)
                    check(row, _Timed)
                    if schema := _EVENTS.get(row["event"]):
                        check(row, schema)
                except (NotJsonError, InputError) as error:
                    raise InputError(
                        f"{path}:{number}: the line is damaged, {error}: delete it to go on without it"
                    ) from None
                yield row
    except OSError as error:
        raise InputError(f"the run's log {path} can't be read: {error.strerror}") from None


def _stands(row: Event, resumed_at: int) -> bool:
    """Whether a row counts after a resume from an iteration, which is displayed and tested again."""
    if row["event"] in ("snapshot", "recalibration", "start"):
        return bool(row["iteration"] <= resumed_at)
    return bool(row["iteration"] < resumed_at)
