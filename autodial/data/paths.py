"""Where a path that a prototxt or an image list names is looked for."""

from __future__ import annotations

import errno
import os
from os import PathLike
from pathlib import Path

from autodial.errors import InputError
from autodial.wording import shortened

_NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL})
"""Errors for a path under which nothing can be found; EINVAL is Windows' error for names with forbidden characters."""


def find(path: str | PathLike[str], base_dir: Path | None) -> Path:
    """The existing file or folder that `path` means: in the working directory, as in Caffe, else in `base_dir`.

    Args:
        path: as the prototxt or list states it; an absolute path is taken as it stands.
        base_dir: folder of the file that names the path; None looks in the working directory only.

    Raises:
        InputError: nothing is there; it lists every place that was tried.
    """
    # strings, because pathlib takes several times as long, and lists have millions of paths
    name = os.fspath(path)
    places = [name] if base_dir is None else [name, os.path.join(base_dir, name)]  # noqa: PTH118
    for place in places:
        try:
            os.stat(place)  # noqa: PTH116
            return Path(place)
        except OSError as error:
            if error.errno not in _NOT_THERE:  # a name too long, a folder without access
                raise InputError(f'"{shortened(name)}" can\'t be looked up: {error.strerror}') from None
        except ValueError:  # NUL
            pass
    here = os.getcwd()  # noqa: PTH109
    tried = list(dict.fromkeys(os.path.normpath(os.path.join(here, place)) for place in places))  # noqa: PTH118
    looked = "" if tried == [name] else f" (looked for {' and '.join(tried)})"
    raise InputError(f'"{path}" does not exist{looked}')
