"""The snapshots that a training leaves on disk, and which of them are deleted for newer ones."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path

from autodial.system.outputs import real_path

_log = logging.getLogger(__name__)

_NAME = re.compile(r"_iter_(0|[1-9][0-9]*)\.(caffemodel|solverstate)(\.h5)?")


def delete_older(prefix: str, keep: int, newest: int, spared: Set[Path]) -> None:
    """Delete all but the newest snapshots of a snapshot_prefix; a warning names a file that can't be deleted.

    A snapshot is a solver's state with its weights, whichever start of the training wrote them. Weights without a state
    stay. So do snapshots of later iterations than the newest, left from before the training was resumed.

    Args:
        keep: how many stay, at least 1.
        newest: the iteration of the snapshot just written.
        spared: files, as `real_path` returns them, whose snapshots stay too.
    """
    with _only_warning():
        for files in _up_to(prefix, newest)[:-keep]:
            if spared.isdisjoint(map(real_path, files)):
                with _only_warning():
                    for path in files:
                        path.unlink(missing_ok=True)


def newest_state(prefix: str) -> Path | None:
    """The solver's state of the newest whole snapshot of a snapshot_prefix, to resume from; None if there is none.

    Raises:
        OSError: the folder can't be read.
    """
    snapshots = _up_to(prefix, sys.maxsize)
    return snapshots[-1][0] if snapshots else None


@contextmanager
def _only_warning() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        _log.warning("Older snapshots can't be deleted: %s: %s", error.filename, error.strerror)


def _up_to(prefix: str, newest: int) -> list[list[Path]]:
    """The files of each snapshot, the oldest snapshot first; a state, useless without its weights, before these."""
    found: dict[int, dict[str, list[Path]]] = {}
    folder, name = Path(prefix).parent, Path(prefix).name
    for path in folder.iterdir():
        match = _NAME.fullmatch(path.name.removeprefix(name)) if path.name.startswith(name) else None
        if match is not None and path.is_file() and int(match[1]) <= newest:
            found.setdefault(int(match[1]), {}).setdefault(match[2], []).append(path)
    whole = (kinds for _, kinds in sorted(found.items()) if len(kinds) == 2)
    return [[*kinds["solverstate"], *kinds["caffemodel"]] for kinds in whole]
