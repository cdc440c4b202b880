"""A project's folder: whether it can be made, and how its files are written, all or none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path

from autodial.errors import InputError, WorkError
from autodial.project.plan import PARTS, SOLVER
from autodial.project.scan import DomainImages, shown
from autodial.proto import Weights, write_weights
from autodial.system import outputs
from autodial.system.files import entries, replacing, replacing_files, was_interrupted

UNLABELLED = -1
"""The label in lists whose labels nothing reads."""


def check_folder(folder: Path, origins: Iterable[Path]) -> None:
    """Check that a project can be written to a folder.

    Args:
        folder: the folder to make; it may exist if it is empty.
        origins: the folders and lists of images.

    Raises:
        InputError: the folder is not empty, is a file, lies in a folder of images, or can't be written to.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: name a folder to make")
    if folder.exists() and not _is_free(folder):
        raise InputError(f"{folder} exists and is not empty: name another folder, or delete it")
    real = outputs.real_path(folder)
    for origin in origins:
        if origin.is_dir() and real.is_relative_to(outputs.real_path(origin)):
            raise InputError(f"{folder} lies in {origin}, a folder of images: name a folder outside of it")
    try:
        real.as_posix().encode()
    except UnicodeEncodeError:
        raise InputError(f"{shown(str(folder))}: this path is not UTF-8: choose another one") from None
    outputs.check_folder(folder)


def _is_free(folder: Path) -> bool:
    """Whether a folder is empty but for an unfinished project, without a solver, that a killed process left."""
    held = {path.name for path in entries(folder)}
    return not held or (was_interrupted(folder) and held.issubset(PARTS))


def list_text(domain: DomainImages, *, labels: bool) -> str:
    """The text of a domain's list. Its paths are absolute, so that the list can be moved.

    Args:
        labels: whether to write the labels; otherwise each is UNLABELLED.
    """
    return "".join(f"{image.path} {image.label if labels else UNLABELLED}\n" for image in domain.images)


def write_files(folder: Path, contents: Mapping[str, str | Weights]) -> None:
    """Write a project's files to a folder that `check_folder` accepts: all of them or, if one fails, none.

    Raises:
        WorkError: a file can't be written.
    """
    missing = [parent for parent in reversed(folder.parents) if not parent.exists()]
    with ExitStack() as undo:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            for name in PARTS if folder.exists() else ():  # a killed process may have left some
                (folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise WorkError(f"{folder} can't be made: {error.strerror}") from error
        for made in missing:
            undo.callback(made.rmdir)
        with replacing_files(folder, last=SOLVER) as aside:
            for name, content in contents.items():
                if isinstance(content, Weights):
                    write_weights(content, aside / name)
                else:
                    with replacing(aside / name) as file:
                        file.write(content.encode())
        undo.pop_all()
