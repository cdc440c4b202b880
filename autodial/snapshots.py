"""The snapshots that a training leaves on disk, and which of them make room for newer ones."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from pathlib import Path

from autodial.outputs import real_path

_log = logging.getLogger(__name__)

_NAME = re.compile(r"_iter_(0|[1-9][0-9]*)\.(caffemodel|solverstate)(\.h5)?")


def delete_older(prefix: str, keep: int, newest: int, spared: Collection[Path]) -> None:
    """Delete the snapshots of a snapshot_prefix but for the newest ones; a warning names what can't be deleted.

    A snapshot is a solver's state with its weights, whichever start of the training wrote them; weights alone stay.
    So do snapshots beyond the one just written, of a training that was resumed from before them.

    Args:
        keep: how many stay, at least 1.
        newest: iteration of the one just written.
        spared: files, as `real_path` gives them, whose snapshots stay besides.
    """
    found: dict[int, dict[str, list[Path]]] = {}
    folder, name = Path(prefix).parent, Path(prefix).name
    for path in folder.iterdir():
        match = _NAME.fullmatch(path.name.removeprefix(name)) if path.name.startswith(name) else None
        if match is not None and path.is_file() and int(match[1]) <= newest:
            found.setdefault(int(match[1]), {}).setdefault(match[2], []).append(path)
    whole = [kinds for _, kinds in sorted(found.items()) if len(kinds) == 2]
    for kinds in whole[:-keep]:
        # the state first, as one without its weights could not be resumed from
        files = [*kinds["solverstate"], *kinds["caffemodel"]]
        if any(real_path(path) in spared for path in files):
            continue
        for path in files:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                _log.warning("The older snapshot %s can't be deleted: %s.", path, error.strerror)
                break
