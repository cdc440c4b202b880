"""From the INPUT arguments of a command line to the images they name, one at a time, in an order that never changes."""

from __future__ import annotations

import functools
import glob
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from autodial.data.folders import IMAGE_SUFFIXES, folders, in_order, is_hidden, is_image, walk
from autodial.data.image_list import paths_of, read_paths
from autodial.data.sequences import is_one_name
from autodial.deploy import addresses
from autodial.deploy.address_inputs import LIST_SUFFIX, expand_address, has_suffix, names_tables
from autodial.deploy.parquet_input import TABLE_SUFFIX, images_in_table
from autodial.deploy.sources import ImageFile, named, named_in_stream
from autodial.errors import InputError
from autodial.wording import counted

STANDARD_INPUT = ("-", "/dev/stdin")
"""Names of a list of paths on standard input."""

_DESCRIPTORS = ("/dev/fd/", "/proc/self/fd/")
"""Where a shell's `<(...)` stands: a pipe with a writer, unlike one with a name of its own in a folder."""
_SEPARATOR = r"[\\/]" if os.sep == "\\" else "/"
_ANY_FOLDERS = re.compile(rf"(?:^|(?<={_SEPARATOR}))(?:\*\*{_SEPARATOR})*\*\*(?:{_SEPARATOR}|$)")
"""`**` in a pattern, and what separates it from the rest."""
LINK = "link"
"""The kind of a link to a folder that was not followed."""
_KINDS = 100
"""How many kinds of files that are passed over are counted separately."""
_SHOWN = 5
"""How many of these kinds a message names."""


class PassedOver:
    """Counts what is passed over, by kind: "hidden", a lower-case suffix, "no suffix", or "link", to a folder.

    Beyond a hundred kinds, further ones are "others": names may be of any number of suffixes.

    Args:
        own: files that the run itself writes, links followed, which are not counted.
    """

    def __init__(self, own: Collection[Path] = ()) -> None:
        self.kinds: Counter[str] = Counter()
        self._own = {path.name: path for path in own}

    def __call__(self, path: str) -> None:
        file = Path(path)
        if file.name in self._own and os.path.realpath(path) == str(self._own[file.name]):
            return
        other = "hidden" if is_hidden(path) else file.suffix.lower() or "no suffix"
        kind = LINK if path.endswith(os.sep) else other
        self.kinds[kind if kind in self.kinds or len(self.kinds) < _KINDS else "others"] += 1


def describe_kinds(kinds: Mapping[str, int]) -> str:
    """Files that were passed over, by kind, the most frequent first: "5 files: .heic (3), hidden (2)"."""
    shown = [f"{kind} ({count})" for kind, count in Counter(kinds).most_common(_SHOWN)]
    more = ", ..." if len(kinds) > _SHOWN else ""
    return f"{counted(sum(kinds.values()), 'file')}: {', '.join(shown)}{more}"


def _ignore(path: str) -> None:
    pass


def check_sequence(inputs: Sequence[str | Path]) -> None:
    """Raise InputError for one input instead of a sequence of inputs."""
    if is_one_name(inputs):
        raise InputError(f"inputs is a sequence of files, folders, lists and patterns, not one of them: [{inputs!r}]")


def expand(
    inputs: Sequence[str | Path], passed_over: Callable[[str], None] = _ignore, *, column: str | None = None
) -> Iterator[ImageFile]:
    """All images that `inputs` name, in the order of the arguments.

    An argument is, in this order of precedence:

    - a folder: every file below it with an image's suffix (`IMAGE_SUFFIXES`), sorted by path; hidden files and folders
      are skipped, links to folders followed, each real folder once, but not to folders that hold the link. A folder
      below it that can't be listed is an ImageFile with an `error`;
    - a `.txt` file: a list in UTF-8, one path a line, in the list's order; blank lines are skipped. What follows the
      line's last space is a label, and dropped, if it is an integer, so that an ImageData list serves as it is (a file
      whose own name ends in a space and digits can't stand in a list without a label behind it). A relative path means
      the working directory, then the list's folder. Whether the file is there is found out when it is read;
    - `-` or `/dev/stdin`, once: such a list on standard input, and so is a pipe that this process was started with, as
      shells make it of `<(...)`. It is read as the images are, path by path. A relative path means the working
      directory;
    - any other file: an image, whatever its suffix;
    - a glob pattern with `*`, `?`, `[...]`, or `**` for any folders: the matching files with an image's suffix, or
      with `.parquet` if the pattern ends so, sorted by path, each real folder once; hidden files match where the
      pattern spells the dot, and `**` follows links as above.

    All of these, but for pipes, may be addresses (`s3://bucket/photos`), where fsspec and what it needs for their
    protocol are installed. In a list or table at an address, a relative path starts from its folder there. `file://`
    stands in front of a path of this machine.

    Nothing is dropped for being named twice: a list of n images always makes n rows. Arguments are checked at once,
    and read when the result is iterated over: however many images there are, few of them are in memory.

    Args:
        inputs: the arguments.
        passed_over: is told, while the result is iterated over, of every file in a folder or pattern that is hidden
            or, by its name, no image, and, with a separator at its end, of every folder in a folder that is
            there anyway or holds the link to it. Hidden folders are not looked into.
        column: the column of Parquet tables that has the images; None for the first of `parquet_input.COLUMNS`.

    Raises:
        InputError: an argument names nothing that exists, or no image at all, or can't be read; while iterating: a list
            or table has been removed or damaged meanwhile, or standard input names no image.
        WorkError: a package that an argument needs is not installed.
    """
    arguments = [addresses.local_path(os.fspath(argument)) for argument in inputs]
    if sum(argument in STANDARD_INPUT for argument in arguments) > 1:
        raise InputError("-: standard input can be read once: name it once")
    for argument in arguments:
        _check(argument, column)
    if column is not None and not any(map(names_tables, arguments)):
        raise InputError(f"`column` {column} is one of a Parquet table, and no input is such a table: leave it out")
    return (image for argument in arguments for image in _expand_one(argument, passed_over, column))


def _check(argument: str, column: str | None) -> None:
    if not argument:
        raise InputError("an input is empty: name a file, a folder, a list or a pattern; the working directory is '.'")
    if is_stream(argument):
        if argument in STANDARD_INPUT and (sys.stdin is None or sys.stdin.isatty()):
            raise InputError(f"{argument}: a list of paths is read from standard input: pipe one into the command")
        return
    if addresses.is_address(argument):
        _check_address(argument, column)
        return
    path = Path(argument)
    if path.is_fifo():
        raise InputError(f"{argument} is a named pipe, which may never be written to: pipe its list into '-'")
    if not (path.exists() or glob.has_magic(argument)):
        raise InputError(f"{argument}: no such file or folder")
    passed_over = PassedOver()
    images = _expand_one(argument, passed_over, column)
    first = next(images, None)
    if names_tables(argument):
        if first is None:
            raise InputError(f"{argument}: no .parquet file {'is there' if path.is_dir() else 'matches this pattern'}")
        return
    if path.is_dir():
        if first is not None and first.error is not None and Path(first.path) == path:
            raise InputError(f"{argument}: {first.error}")
        nothing = "no image in this folder or below it"
    elif _is_list(path):
        if first is None:
            raise InputError(f"{argument}: this list names no images")
        for _ in images:  # to its end, so that damage is found now
            pass
    else:
        nothing = "no image matches this pattern"
    if first is None:
        found = f"; passed over are {describe_kinds(passed_over.kinds)}" if passed_over.kinds else ""
        raise InputError(f"{argument}: {nothing} (images are {', '.join(IMAGE_SUFFIXES)}){found}")


def elsewhere(inputs: Sequence[str | Path]) -> str | None:
    """What `inputs` name that is no image file of this machine: an address, also one in a list, or a table; or None.

    Lists on standard input are not looked into.
    """
    for given in inputs:
        argument = os.fspath(given)
        if addresses.is_address(argument) or names_tables(argument):
            return addresses.shown(argument)
        if _is_list(Path(argument)):
            found = next(filter(addresses.is_address, read_paths(Path(argument))), None)
            if found is not None:
                return f"{addresses.shown(found)} in {argument}"
    return None


def is_stream(argument: str) -> bool:
    """Whether an argument is a list that can be read once: standard input or a pipe."""
    return argument in STANDARD_INPUT or (argument.startswith(_DESCRIPTORS) and Path(argument).is_fifo())


def _is_list(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() == LIST_SUFFIX


def _expand_one(argument: str, passed_over: Callable[[str], None], column: str | None) -> Iterator[ImageFile]:
    if is_stream(argument):
        return _from_stream(argument)
    if addresses.is_address(argument):
        return expand_address(argument, passed_over, column)
    path = Path(argument)
    if _is_list(path):
        return (named(name, path.parent) for name in read_paths(path))
    if names_tables(argument):
        return _in_tables(argument, column)
    if path.is_dir():
        return _in_folder(argument, passed_over)
    if path.exists() or not glob.has_magic(argument):
        return iter([ImageFile(argument)])
    return (ImageFile(name) for name in _images(_match(argument), passed_over))


def _in_tables(argument: str, column: str | None) -> Iterator[ImageFile]:
    """The images of a table, a folder of tables, or the tables that match a pattern."""
    tables: Iterator[str]
    if Path(argument).is_dir():
        tables = (name for name in walk(argument) if not Path(name).name.startswith((".", "_")))
    else:
        tables = iter([argument]) if Path(argument).exists() else _match(argument)
    return (image for table in tables if has_suffix(table, TABLE_SUFFIX) for image in images_in_table(table, column))


def _from_stream(argument: str) -> Iterator[ImageFile]:
    name = "standard input" if argument in STANDARD_INPUT else argument
    nothing = True
    with nullcontext(sys.stdin.buffer) if argument in STANDARD_INPUT else Path(argument).open("rb") as file:
        for path in paths_of(file, name):
            nothing = False
            yield named_in_stream(path, None)
    if nothing:
        raise InputError(f"{name} names no images: write a path a line")


def _images(names: Iterator[str], passed_over: Callable[[str], None], *, hidden: bool = True) -> Iterator[str]:
    for name in names:
        if is_image(name) and (hidden or not is_hidden(name)):
            yield name
        else:
            passed_over(name)


def _in_folder(top: str, passed_over: Callable[[str], None]) -> Iterator[ImageFile]:
    closed: list[ImageFile] = []

    def note(folder: str, why: str) -> None:
        closed.append(ImageFile(folder, error=f"can't list this folder: {why}"))

    def skip(folder: str) -> None:
        passed_over(folder + os.sep)

    for name in _images(walk(top, skipped=skip, unlisted=note), passed_over, hidden=False):
        yield from closed
        closed.clear()
        yield ImageFile(name)
    yield from closed


def _check_address(address: str, column: str | None) -> None:
    addresses.check_protocol(address)
    passed_over = PassedOver()
    images = expand_address(address, passed_over, column)
    first = next(images, None)
    shown = addresses.shown(address)
    if first is None:
        if has_suffix(address, LIST_SUFFIX):
            raise InputError(f"{shown}: this list names no images")
        found = f"; passed over are {describe_kinds(passed_over.kinds)}" if passed_over.kinds else ""
        raise InputError(f"{shown}: no image is here (images are {', '.join(IMAGE_SUFFIXES)}){found}")
    if first.error is not None and first.path == shown:
        raise InputError(f"{shown}: {first.error}")
    if has_suffix(address, LIST_SUFFIX):
        for _ in images:  # to its end, so that damage is found now
            pass


# --- patterns


def _match(pattern: str) -> Iterator[str]:
    real_folder = functools.cache(os.path.realpath)
    spelled: dict[str, str] = {}
    for name in in_order(_glob(pattern)):
        folder = os.path.dirname(name)  # noqa: PTH120
        if spelled.setdefault(real_folder(folder), folder) == folder and os.path.isfile(name):  # noqa: PTH113
            yield name


def _glob(pattern: str) -> Iterator[str]:
    """What a pattern matches; `**` looks into each real folder once, where glob goes along two links in a ring forever.

    Files may come more than once where `**` stands more than once.
    """
    head, *tail = _ANY_FOLDERS.split(pattern, maxsplit=1)
    if not tail:
        yield from glob.iglob(pattern)  # noqa: PTH207 - pathlib's has other rules for hidden files
        return
    for top in glob.iglob(head) if glob.has_magic(head) else [head]:  # noqa: PTH207
        for folder in folders(top):
            yield from _glob(os.path.join(glob.escape(folder), tail[0] or "*"))  # noqa: PTH118
