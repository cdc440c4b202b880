"""Model files that are replaced while they are served."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from autodial.deploy.serve.models import LoadedModel, Models
from autodial.deploy.weights_file import names_checksum, weights_file
from autodial.errors import AutodialError, InputError

_log = logging.getLogger("autodial.serve")

_FileState: TypeAlias = tuple[int, int, int] | None
"""A file's size, time of modification and inode; None where there is no file."""
_State: TypeAlias = tuple[_FileState, _FileState]
"""A model's, and that of its second file, which has weights above 2 GiB; None where the model has none."""


class Watch:
    """Looks at the models' files, and takes over those that have changed and can be served.

    A model counts as changed once two looks in a row find its file, and its second file if it has one, in the same
    state. It is loaded aside and tried before it is taken over; one that can't be is reported once, and what was served
    goes on.

    Args:
        paths: the models' files by name, before they are loaded.
        seconds: between two looks.
    """

    def __init__(self, paths: Mapping[str, Path], seconds: float = 1.0) -> None:
        self._paths = dict(paths)
        self._seconds = seconds
        self._settled = {name: _state(path) for name, path in paths.items()}
        """The state that was dealt with: served, or refused."""
        self._seen = dict(self._settled)

    async def run(self, models: Models) -> None:
        """Look until the task is cancelled.

        Args:
            models: the service's, loaded from the files.
        """
        while True:
            await asyncio.sleep(self._seconds)
            for name, path in self._paths.items():
                state = await asyncio.to_thread(_state, path)
                settled, self._seen[name] = state == self._seen[name], state
                if settled and state != self._settled[name]:
                    await self._replace(models, name, path, state)

    async def _replace(self, models: Models, name: str, path: Path, state: _State) -> None:
        if state[0] is None:
            self._settled[name] = state
            _log.warning("%s is gone: the model %s is served on as it was", path, name)
            return
        try:
            loaded = await asyncio.to_thread(_load, models, name, path)
        except Exception as error:
            if await asyncio.to_thread(_state, path) == state:  # else it is being written, and looked at again
                self._settled[name] = state
                models.refused(name)
                if isinstance(error, AutodialError):
                    _log.warning("the model %s is served on as it was: %s", name, error)
                else:
                    _log.exception("%s can't be loaded: the model %s is served on as it was", path, name)
            return
        if await asyncio.to_thread(_state, path) == state:
            self._settled[name] = state
            models.take_over(name, loaded)
            sha256 = loaded.predictor.info.weights_sha256
            _log.info("the model %s is now the new file %s (weights %.12s)", name, path, sha256)


def _load(models: Models, name: str, path: Path) -> LoadedModel:
    loaded = models.load(name)
    second = weights_file(path)
    if second is not None and not names_checksum(path):
        raise InputError(
            f"{path} has no checksum of {second.name}, so that nothing shows whether both files are new: "
            "start the service again"
        )
    return loaded


def _state(path: Path) -> _State:
    second = weights_file(path)
    return _file_state(path), None if second is None else _file_state(second)


def _file_state(path: Path) -> _FileState:
    try:
        status = os.stat(path)  # noqa: PTH116 - of three numbers
    except (OSError, ValueError):
        return None
    return status.st_size, status.st_mtime_ns, status.st_ino
