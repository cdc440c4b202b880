"""Writes a training run's folder: what was run, and with which results.

autodial.training.run_record says what the files hold, and reads them. TensorBoard's event files hold the same numbers.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autodial.errors import InputError, WorkError
from autodial.system.files import AppendedFile, replacing
from autodial.system.hashing import file_hash
from autodial.system.json_files import finite
from autodial.training.event_file import EventFile, event_file
from autodial.training.monitor import BlobValues, CollapseRow, Monitor, RunningSolver, TestRow, TrainRow
from autodial.training.run_record import LOG, RECORD, SCHEMA, KeptTest, holds_run, read_events, read_records

_log = logging.getLogger(__name__)


class RunLog(Monitor):
    """Writes a run's folder; every line is on disk as soon as it is known.

    During training, lines that can't be written - the disk is full, the folder was removed - are left out, with one
    warning.

    Args:
        folder: made if it does not exist.
        record: this start of the run, as JSON values.
        iteration: the iteration of the start.
        resumed: whether this start continues the run that the folder holds, if it holds one.

    Raises:
        InputError: the folder holds a run, and this is not its continuation, or its run.json is damaged.
        WorkError: the folder can't be written to.
    """

    def __init__(self, folder: Path, record: Mapping[str, Any], *, iteration: int, resumed: bool) -> None:
        self.folder = folder
        if holds_run(folder) and not resumed:
            raise InputError(
                f"{folder} already holds a run: name another folder with `folder`, or resume that run with `snapshot`"
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            earlier = read_records(folder) if holds_run(folder) else []
            with replacing(folder / RECORD) as file:
                file.write(json.dumps({"schema": SCHEMA, "starts": [*earlier, dict(record)]}, indent=2).encode())
            _cut_unfinished_line(folder / LOG)
            self._files = ExitStack()
            self._log = self._files.enter_context(AppendedFile(folder / LOG))
            self._events = EventFile(self._files.enter_context(AppendedFile(event_file(folder))))
            self._iteration = iteration
            self._write({"event": "start", "iteration": iteration})
            self._events.start(iteration if resumed else None)
        except OSError as error:
            raise WorkError(f"the run's folder {folder} can't be written: {error.strerror}") from error
        self._complete = True

    def displayed(self, row: TrainRow) -> None:
        scalars = {"train/loss": row.loss, "train/lr": row.lr}
        if row.images_per_s is not None:
            scalars["train/images_per_s"] = row.images_per_s
        scalars |= {f"alpha/{name}": alpha for name, alpha in row.alphas.items()}
        scalars |= {f"diversity/{name}": diversity for name, diversity in row.diversity.items()}
        scalars |= _scalars("train", row.outputs)
        with self._going_on():
            self._write({"event": "train", **asdict(row), "outputs": _numbers(row.outputs)})
            self._events.write(scalars, row.iteration)

    def tested(self, row: TestRow) -> None:
        with self._going_on():
            self._write({"event": "test", **asdict(row), "outputs": _numbers(row.outputs)})
            tests = f"test{row.net or ''}"
            balanced = {f"{tests}/balanced_accuracy/{blob}": value for blob, value in row.balanced_accuracy.items()}
            self._events.write({**_scalars(tests, row.outputs), **balanced}, row.iteration)

    def saved(self, model: Path, state: Path) -> None:
        # the hash identifies this snapshot if another run overwrites it with one of the same name
        names = {"model": str(model.absolute()), "state": str(state.absolute())}
        with self._going_on():
            self._write({"event": "snapshot", "iteration": self._iteration, **names, "sha256": file_hash(model)})

    def iterated(self, solver: RunningSolver) -> None:
        self._iteration = solver.iter

    def collapsed(self, row: CollapseRow) -> None:
        with self._going_on():
            self._write({"event": "collapse", **asdict(row)})

    def close(self) -> None:
        """Close the files; nothing more may be reported."""
        self._files.close()

    def _write(self, row: Mapping[str, Any]) -> None:
        event = {"time": datetime.now(UTC).isoformat(timespec="seconds"), **row}
        self._log.append(json.dumps(finite(event), allow_nan=False).encode() + b"\n")

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        """Warn the first time that something can't be written."""
        try:
            yield
        except OSError as error:
            if self._complete:
                _log.warning(
                    "The run's log in %s can't be written (%s): training goes on, and lines from iteration %d on may "
                    "be missing",
                    *(self.folder, error.strerror, self._iteration),
                )
            self._complete = False


def log_weights(folder: Path, weights: Path, *, recalibrated: bool, test: KeptTest | None) -> None:
    """Add to a finished run's log which weights were kept of it.

    Args:
        folder: the run's.
        weights: the file.
        recalibrated: whether its statistics were computed once more, over all images.
        test: what it scored; None without labels.

    Raises:
        InputError: the log is damaged.
        WorkError: it can't be written to.
    """
    row = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "event": "weights",
        "iteration": read_events(folder)[-1]["iteration"],
        "model": str(weights.absolute()),
        "sha256": file_hash(weights),
        "recalibrated": recalibrated,
        "test": test,
    }
    try:
        with AppendedFile(folder / LOG) as log:
            log.append(json.dumps(finite(row), allow_nan=False).encode() + b"\n")
    except OSError as error:
        raise WorkError(f"the run's log in {folder} can't be written: {error.strerror}") from error


def log_recalibration(folder: Path, weights: Path, *, of: str, images: Sequence[str]) -> None:
    """Add to a run's log which file has new statistics; a warning says why, if that can't be done.

    Args:
        folder: the run's.
        weights: the file.
        of: the SHA-256 of the weights of this run that it was made of.
        images: names of the images that its statistics were computed over.
    """
    row = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "event": "recalibration",
        "iteration": read_events(folder)[-1]["iteration"],
        "model": str(weights.absolute()),
        "sha256": file_hash(weights),
        "of": of,
        "images": list(images),
    }
    try:
        with AppendedFile(folder / LOG) as log:
            log.append(json.dumps(row).encode() + b"\n")
    except OSError as error:
        _log.warning(
            "The run's log in %s can't be written (%s): a model card of %s will not know the training",
            *(folder, error.strerror, weights),
        )


def _cut_unfinished_line(path: Path) -> None:
    """Remove the unfinished last line of a killed run: the next line would be lost behind it."""
    if path.exists():
        text = path.read_bytes()
        with path.open("r+b") as file:
            file.truncate(text.rfind(b"\n") + 1)


def _scalars(kind: str, outputs: Mapping[str, BlobValues]) -> dict[str, float]:
    """Output blobs of one element, by their tags for TensorBoard."""
    return {f"{kind}/{name}": values[0] for name, values in outputs.items() if len(values) == 1}


def _numbers(outputs: Mapping[str, BlobValues]) -> dict[str, float | BlobValues]:
    """Output blobs of one element as a number, others as a list."""
    return {name: values[0] if len(values) == 1 else values for name, values in outputs.items()}
