"""Model files that are replaced while they are served."""

from __future__ import annotations

import asyncio
import logging
import os
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from autodial.deploy.serve.models import Models
from autodial.deploy.weights_file import weights_file
from autodial.errors import AutodialError

_log = logging.getLogger("autodial.serve")

_FileState: TypeAlias = tuple[int, int, int] | None
"""A file's size, time of modification and inode; None where there is no file."""
_State: TypeAlias = tuple[_FileState, _FileState] | None
"""Those of a model's file and of its second file, which has its weights; None where the model's file is not there."""


class Watch:
    """Looks at the models' files, and takes over those that have changed and can be served.

    A file, or the second one with its weights, counts as changed once two looks in a row find both in the same state.
    It is loaded aside and tried before it is taken over; one that can't be is reported once, and what was served goes
    on.

    Args:
        models: the service's.
        seconds: between two looks.
    """

    def __init__(self, models: Models, seconds: float = 1.0) -> None:
        self._models = models
        self._seconds = seconds
        self._settled = {name: _state(path) for name, path in models.paths.items()}
        """The state that was dealt with: served, or refused."""
        self._seen = dict(self._settled)

    async def run(self) -> None:
        """Look until the task is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._seconds)
            for name, path in self._models.paths.items():
                state = await loop.run_in_executor(None, _state, path)
                settled, self._seen[name] = state == self._seen[name], state
                if settled and state != self._settled[name]:
                    await self._replace(name, path, state)

    async def _replace(self, name: str, path: Path, state: _State) -> None:
        loop = asyncio.get_running_loop()
        if state is None:
            self._settled[name] = state
            _log.warning("%s is gone: the model %s is served on as it was", path, name)
            return
        try:
            predictor = await loop.run_in_executor(None, self._models.load, name)
        except AutodialError as error:
            if _state(path) == state:  # else it is being written, and looked at again
                self._settled[name] = state
                self._models.refused(name)
                _log.warning("the model %s is served on as it was: %s", name, error)
            return
        except Exception:
            self._settled[name] = state
            self._models.refused(name)
            _log.exception("%s can't be loaded: the model %s is served on as it was", path, name)
            return
        if _state(path) == state:
            self._settled[name] = state
            self._models.take_over(name, predictor)
            _log.info("the model %s is now the new file %s (weights %.12s)", name, path, predictor.info.weights_sha256)


def _state(path: Path) -> _State:
    state = _file_state(path)
    if state is None:
        return None
    second = _second(path, state)
    return state, None if second is None else _file_state(second)


@lru_cache(maxsize=256)
def _second(path: Path, state: _FileState) -> Path | None:
    """`weights_file`, for which the whole file is searched, of a model's file in a state."""
    return weights_file(path)


def _file_state(path: Path) -> _FileState:
    try:
        status = os.stat(path)  # noqa: PTH116 - of three numbers
    except (OSError, ValueError):
        return None
    return status.st_size, status.st_mtime_ns, status.st_ino
