"""The snapshots that a training leaves on disk, and which of them make room for newer ones."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path

from autodial.system.outputs import real_path

_log = logging.getLogger(__name__)

_NAME = re.compile(r"_iter_(0|[1-9][0-9]*)\.(caffemodel|solverstate)(\.h5)?")


def delete_older(prefix: str, keep: int, newest: int, spared: Set[Path]) -> None:
    """Delete the snapshots of a snapshot_prefix but for the newest ones; a warning names a file that can't be deleted.

    A snapshot is a solver's state with its weights, whichever start of the training wrote them; weights alone stay.
    So do snapshots beyond the one just written, of a training that was resumed from before them.

    Args:
        keep: how many stay, at least 1.
        newest: iteration of the one just written.
        spared: files, as `real_path` gives them, whose snapshots stay besides.
    """
    with _only_warning():
        for files in _up_to(prefix, newest)[:-keep]:
            if spared.isdisjoint(map(real_path, files)):
                with _only_warning():
                    for path in files:
                        path.unlink(missing_ok=True)


@contextmanager
def _only_warning() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        _log.warning("Older snapshots can't be deleted: %s: %s.", error.filename, error.strerror)


def _up_to(prefix: str, newest: int) -> list[list[Path]]:
    """The files of each snapshot, the oldest first: the state, which is of no use without its weights, before these."""
    found: dict[int, dict[str, list[Path]]] = {}
    folder, name = Path(prefix).parent, Path(prefix).name
    for path in folder.iterdir():
        match = _NAME.fullmatch(path.name.removeprefix(name)) if path.name.startswith(name) else None
        if match is not None and path.is_file() and int(match[1]) <= newest:
            found.setdefault(int(match[1]), {}).setdefault(match[2], []).append(path)
    whole = (kinds for _, kinds in sorted(found.items()) if len(kinds) == 2)
    return [[*kinds["solverstate"], *kinds["caffemodel"]] for kinds in whole]
