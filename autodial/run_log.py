"""The folder of a training run: what was run, and what came of it.

`run.json` is an object {"schema": 1, "starts": [...]}, one record per start of the run (the first, and each time it was
resumed). `log.jsonl` has one JSON object per line: "event" is "train" (a displayed iteration), "test" or "start", and
NaN and infinite numbers are null. TensorBoard's event files hold the same numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from autodial.errors import InputError, WorkError
from autodial.monitor import Monitor, TestRow, TrainRow, Values
from autodial.proto.files import replacing

RECORD, LOG = "run.json", "log.jsonl"


class RunLog(Monitor):
    """Writes a run's folder; every line is on disk as soon as it is known.

    Args:
        folder: made if need be.
        record: what this start of the run is, as JSON values.
        iteration: where it starts.
        resumed: whether it goes on with the run that the folder holds, if it holds one.

    Raises:
        InputError: the folder holds a run, and this is not its continuation.
        WorkError: the folder can't be written to.
    """

    def __init__(self, folder: Path, record: Mapping[str, Any], *, iteration: int, resumed: bool) -> None:
        self.folder = folder
        if holds_run(folder) and not resumed:
            raise InputError(
                f"{folder} already holds a run: name another folder with -o, or go on with that run with --snapshot"
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            earlier = read_starts(folder) if holds_run(folder) else []
            with replacing(folder / RECORD) as file:
                file.write(json.dumps({"schema": 1, "starts": [*earlier, dict(record)]}, indent=2).encode())
            self._log = (folder / LOG).open("a", encoding="utf-8", buffering=1)
            self._events = SummaryWriter(str(folder), purge_step=iteration if resumed else None)
        except OSError as error:
            raise WorkError(f"the run's folder {folder} can't be written: {error.strerror}") from error
        self._write({"event": "start", "iteration": iteration})

    def displayed(self, row: TrainRow) -> None:
        self._write({"event": "train", **asdict(row), "outputs": _numbers(row.outputs)})
        self._scalar("train/loss", row.loss, row.iteration)
        self._scalar("train/lr", row.lr, row.iteration)
        if row.images_per_s is not None:
            self._scalar("train/images_per_s", row.images_per_s, row.iteration)
        for name, alpha in row.alphas.items():
            self._scalar(f"alpha/{name}", alpha, row.iteration)
        self._outputs("train", row.outputs, row.iteration)

    def tested(self, row: TestRow) -> None:
        self._write({"event": "test", **asdict(row), "outputs": _numbers(row.outputs)})
        self._outputs(f"test{row.net or ''}", row.outputs, row.iteration)

    def close(self) -> None:
        """Close the files; nothing more may be reported."""
        self._log.close()
        self._events.close()

    def _write(self, row: Mapping[str, Any]) -> None:
        self._log.write(json.dumps(_finite(row), allow_nan=False) + "\n")

    def _outputs(self, kind: str, outputs: Mapping[str, Values], iteration: int) -> None:
        for name, values in outputs.items():
            if len(values) == 1:
                self._scalar(f"{kind}/{name}", values[0], iteration)
        self._events.flush()

    def _scalar(self, tag: str, value: float, iteration: int) -> None:
        self._events.add_scalar(tag, value, iteration)


def holds_run(folder: Path) -> bool:
    """Whether a folder is that of a run."""
    return (folder / RECORD).exists()


def read_starts(folder: Path) -> list[dict[str, Any]]:
    """The records of a run's starts, the first one first."""
    starts: list[dict[str, Any]] = json.loads((folder / RECORD).read_text("utf-8"))["starts"]
    return starts


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The "train" and "test" rows of a run as if it had never been interrupted.

    What was logged beyond the iteration from which the run was resumed is left out: the resumed run logged it anew.
    """
    rows: list[dict[str, Any]] = []
    for line in (folder / LOG).read_text("utf-8").splitlines():
        row = json.loads(line)
        if row["event"] == "start":
            rows = [earlier for earlier in rows if earlier["iteration"] < row["iteration"]]
        else:
            rows.append(row)
    return rows


def _numbers(outputs: Mapping[str, Values]) -> dict[str, float | Values]:
    """Output blobs of one element as a number, others as a list."""
    return {name: values[0] if len(values) == 1 else values for name, values in outputs.items()}


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
