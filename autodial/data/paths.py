"""Where a path that a prototxt or an image list names is looked for."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from autodial.errors import InputError
from autodial.wording import shortened


def find(path: str | PathLike[str], base_dir: Path | None) -> Path:
    """The existing file or folder that `path` means: in the working directory, as in Caffe, else in `base_dir`.

    Args:
        path: as the prototxt or list states it; an absolute path is taken as it stands.
        base_dir: folder of the file that names the path; None looks in the working directory alone.

    Raises:
        InputError: nothing is there; it lists every place that was looked at.
    """
    candidates = [Path(path)] if base_dir is None else [Path(path), base_dir / path]
    for candidate in candidates:
        try:
            if candidate.exists():
                return candidate
        except OSError as error:  # a name too long, a folder without access
            raise InputError(f'"{shortened(str(path))}" can\'t be looked up: {error.strerror}') from None
    places = list(dict.fromkeys(str(candidate.absolute()) for candidate in candidates))
    looked = "" if places == [str(path)] else f" (looked for {' and '.join(places)})"
    raise InputError(f'"{path}" does not exist{looked}')
