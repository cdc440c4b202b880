"""A project's folder: whether it can be made, and its files, written whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path

from autodial import outputs
from autodial.errors import InputError, WorkError
from autodial.project.scan import Domain, shown
from autodial.proto import Weights, write_weights
from autodial.proto.files import replacing

UNLABELLED = -1
"""Label in lists whose labels nothing reads."""


def check_folder(folder: Path, origins: Iterable[Path]) -> None:
    """Find out whether a project can be written to a folder.

    Args:
        folder: to be made, or empty.
        origins: folders and lists of images.

    Raises:
        InputError: it holds something, is no folder, lies in a folder of images, or can't be written to.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: name a folder to make")
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} exists and is not empty: name another folder, or delete it")
    real = outputs.real_path(folder)
    for origin in origins:
        if origin.is_dir() and real.is_relative_to(outputs.real_path(origin)):
            raise InputError(f"{folder} lies in {origin}, which holds images: name a folder outside of it")
    try:
        real.as_posix().encode()
    except UnicodeEncodeError:
        raise InputError(f"{shown(str(folder))}: the name is not UTF-8: choose another one") from None
    outputs.check_folder(folder)


def list_text(domain: Domain, *, labels: bool) -> str:
    """A domain's list: absolute paths, so that it names the same images from anywhere, wherever it is moved to.

    Args:
        labels: whether to state them, or UNLABELLED for each.
    """
    return "".join(f"{image.path} {image.label if labels else UNLABELLED}\n" for image in domain.images)


def write_files(folder: Path, contents: Mapping[str, str | Weights]) -> None:
    """Write files to a new or empty folder, in order; if one fails, none is left.

    Raises:
        WorkError: something can't be written.
    """
    existed = [parent for parent in (folder, *folder.parents) if parent.exists()]
    with ExitStack() as undo:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise WorkError(f"{folder} can't be made: {error.strerror}") from error
        for made in (parent for parent in (*reversed(folder.parents), folder) if parent not in existed):
            undo.callback(made.rmdir)
        for name, content in contents.items():
            if isinstance(content, Weights):
                write_weights(content, folder / name)
            else:
                with replacing(folder / name) as file:
                    file.write(content.encode())
            undo.callback((folder / name).unlink)
        undo.pop_all()
