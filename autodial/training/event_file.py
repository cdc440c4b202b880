"""TensorBoard's event files, each event on disk at once.

SummaryWriter would write in a thread, and a full disk or a removed folder ends that with a traceback.
"""

from __future__ import annotations

import io
import itertools
import os
import socket
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # type: ignore[import-untyped]
from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]
from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

from autodial.system.files import AppendedFile

_numbers = itertools.count()


def event_file(folder: Path) -> Path:
    """A new name for an event file in a folder: TensorBoard recognizes and sorts event files by their names."""
    name = f"events.out.tfevents.{int(time.time()):010}.{socket.gethostname()}.{os.getpid()}.{next(_numbers)}"
    return folder / name


class EventFile:
    """Scalars as TensorBoard reads them.

    Args:
        file: an empty one.

    Every method raises OSError if the file can't be written, and has written nothing then.
    """

    def __init__(self, file: AppendedFile) -> None:
        self._file = file

    def start(self, resumed_at: int | None) -> None:
        """Begin the file.

        Args:
            resumed_at: the iteration from which events of earlier files no longer count; None without earlier files.
        """
        events = [Event(file_version="brain.Event:2")]
        if resumed_at is not None:
            events.append(Event(step=resumed_at, session_log=SessionLog(status=SessionLog.START)))
        self._append(events)

    def write(self, scalars: Mapping[str, float], iteration: int) -> None:
        """Write an iteration's numbers, by tag."""
        self._append(
            Event(step=iteration, summary=Summary(value=[Summary.Value(tag=tag, simple_value=value)]))
            for tag, value in scalars.items()
        )

    def _append(self, events: Iterable[Event]) -> None:
        records = io.BytesIO()
        writer = RecordWriter(records)
        for event in events:
            event.wall_time = time.time()
            writer.write(event.SerializeToString())
        self._file.append(records.getvalue())
