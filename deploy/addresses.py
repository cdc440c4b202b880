"""Files at addresses such as `s3://bucket/a.png`, by fsspec, which is imported where an address is used."""

from __future__ import annotations

import functools
import glob
import hashlib
import posixpath
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from autodial.errors import AutodialError, InputError, WorkError
from autodial.wording import shortened

_PROTOCOL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_LOCAL = re.compile(r"\Afile://(?:localhost(?=/))?(?=/)", re.IGNORECASE)
_USER = re.compile(r"(?<=://)[^/\s@]*:[^/\s]*@|(?<=http://)[^/\s]+@|(?<=https://)[^/\s]+@")
"""A user's name and password before a host. A name alone is no secret, but for HTTP, where it may be a token."""
_QUERY = re.compile(r"(?<=[^\s?])\?[^\s?'\"]*=[^\s'\"]*")
"""What stands behind a path, such as the signature of a link that lets its holder in."""
_NAMES_ONLY = frozenset({"s3", "s3a", "gs", "gcs", "memory", "local"})
"""Protocols where a question mark is a part of a name."""
_READ_ONLY = frozenset({"http", "https"})
_BUCKETS = frozenset({"s3", "s3a", "gs", "gcs"})
"""Protocols whose addresses begin with a bucket, which writing a file does not make."""
_STAMPS = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "updated", "created")
"""What file systems call that by which a change is seen, the most certain first."""


class Entry(NamedTuple):
    """A file or a folder at an address."""

    address: str
    is_folder: bool
    state: tuple[int, int]
    """The size in bytes, and the time of modification in nanoseconds or a digest of what else tells of a change."""


def is_address(text: str) -> bool:
    """Whether `text` is an address, which a protocol begins: `s3://...`, but not `C:\\...` or `file:///...`."""
    return _PROTOCOL.match(text) is not None and not _LOCAL.match(text)


def local_path(text: str) -> str:
    """The path that `file:///photos/a.png` names, without undoing escapes; any other text as it is."""
    return _LOCAL.sub("", text, count=1)


def shown(text: str) -> str:
    """An address, or a sentence with addresses, without the credentials that they hold, as messages and rows have it.

    `https://user:password@host/a.png?signature=x` is shown as `https://***@host/a.png?***`. Of protocols where a name
    may have a question mark, such as S3's, the whole path is shown.
    """
    text = _USER.sub("***@", text)
    return _without_query(text, instead="?***")


def join(folder: str, name: str) -> str:
    """The address that `name` means in a list that lies in the folder with the address `folder`."""
    return name if is_address(name) else f"{folder.rstrip('/')}/{name}"


def parent(address: str) -> str:
    """The address of the folder that holds a file."""
    return _without_query(address).rpartition("/")[0]


def beside(address: str, name: str) -> str:
    """The address of another file in the folder of the file at `address`."""
    return f"{parent(address)}/{name}"


def name_of(address: str) -> str:
    """The last part of an address: a file's name."""
    return posixpath.basename(_without_query(address).rstrip("/"))


def has_pattern(address: str) -> bool:
    """Whether an address has `*`, `?` or `[...]` in it, elsewhere than in a query."""
    return glob.has_magic(_without_query(address))


def _without_query(text: str, instead: str = "") -> str:
    """An address, or a sentence with addresses, with `instead` for each query."""
    match = _PROTOCOL.match(text)
    return text if match and match[1].lower() in _NAMES_ONLY else _QUERY.sub(instead, text)


# --- reading


def check_protocol(address: str) -> None:
    """Raise unless addresses of this kind can be used here.

    Raises:
        InputError: fsspec knows no such protocol, or the address is a chain of several.
        WorkError: fsspec, or the package that the protocol needs, is not installed.
    """
    match = _PROTOCOL.match(address)
    assert match is not None
    if "::" in address:
        raise InputError(f"{shown(address)}: addresses chained by :: can't be used: name the file itself")
    if error := _missing(match[1].lower()):
        raise type(error)(f"{shown(address)}: {error}")


@functools.cache
def _missing(protocol: str) -> AutodialError | None:
    """Why addresses with this protocol can't be used; None if they can."""
    try:
        from fsspec.registry import get_filesystem_class
    except ModuleNotFoundError:
        return WorkError(
            "an address needs fsspec, which is not installed: pip install fsspec, and the package for its protocol "
            "(s3fs for s3://, gcsfs for gs://)"
        )
    try:
        get_filesystem_class(protocol)
    except ValueError:
        return InputError(f"fsspec knows no protocol {protocol}: check the address")
    except ImportError as error:
        package = getattr(error.__cause__, "name", None) or f"the package for {protocol}://"
        return WorkError(f"{protocol}:// needs {package}, which is not installed: pip install {package}")
    return None


def look_at(address: str) -> Entry | None:
    """What is at an address; None if nothing is.

    Raises:
        InputError, WorkError: as `check_protocol`.
        OSError: it can't be looked at; the message has no credentials.
    """
    with _failing_as_oserror(address):
        system, path = _open_system(address)
        try:
            return _entry(address, system.info(path))
        except (FileNotFoundError, NotADirectoryError):
            return None


def read(address: str, most: int | None = None) -> bytes:
    """The whole file, or its first `most` bytes if it has more; raises as `look_at`, and FileNotFoundError."""
    with _failing_as_oserror(address):
        system, path = _open_system(address)
        if most is None:
            return cast(bytes, system.cat_file(path))
        data = bytearray()
        with system.open(path, "rb") as file:
            while len(data) < most and (part := file.read(min(2**20, most - len(data)))):
                data += part
        return bytes(data)


@contextmanager
def opened(address: str) -> Iterator[BinaryIO]:
    """The file, open for reading bytes; raises as `look_at`, and FileNotFoundError."""
    with _failing_as_oserror(address):
        system, path = _open_system(address)
        file = system.open(path, "rb")
    with file:
        yield file


def entries(folder: str) -> list[Entry]:
    """What a folder holds, sorted as paths are, without what is in folders below; raises as `look_at`."""
    with _failing_as_oserror(folder):
        system, path = _open_system(folder)
        found = system.ls(path, detail=True)
        system.invalidate_cache(path)  # else every listing would stay in memory
    base = path.rstrip("/") + "/"
    within = [
        _entry(f"{folder.rstrip('/')}/{str(info['name']).rstrip('/')[len(base) :]}", info)
        for info in found
        # S3 has empty objects that stand for folders
        if str(info["name"]).startswith(base) and str(info["name"]).rstrip("/") != path.rstrip("/")
    ]
    return sorted(within, key=lambda entry: entry.address + "/" * entry.is_folder)


def matching(pattern: str) -> list[Entry]:
    """Files that match a pattern with `*`, `?`, `[...]` or `**`, sorted; raises as `look_at`."""
    with _failing_as_oserror(pattern):
        system, path = _open_system(pattern)
        found = system.glob(path, detail=True)
    start = pattern[: len(pattern) - len(path)] if pattern.endswith(path) else None
    made = (_entry(system.unstrip_protocol(name) if start is None else start + name, found[name]) for name in found)
    return sorted(entry for entry in made if not entry.is_folder)


def _entry(address: str, info: dict[str, Any]) -> Entry:
    size = info.get("size")
    return Entry(address, info["type"] == "directory", (0 if size is None else int(size), _stamp(info)))


def _stamp(info: dict[str, Any]) -> int:
    for name in _STAMPS:
        value = info.get(name)
        value = value.timestamp() if isinstance(value, datetime) else value
        if isinstance(value, float | int):
            return int(value * 1e9)
        if value is not None:
            return int.from_bytes(hashlib.blake2b(str(value).encode(), digest_size=8).digest(), "little", signed=True)
    return 0


def _open_system(address: str) -> tuple[Any, str]:
    check_protocol(address)
    import fsspec

    system, path = fsspec.core.url_to_fs(address)
    return system, path


@contextmanager
def _failing_as_oserror(address: str) -> Iterator[None]:
    """Turn what libraries raise, each its own kind, into OSErrors whose `strerror` has no credentials."""
    try:
        yield
    except AutodialError:
        raise
    except FileNotFoundError:
        raise FileNotFoundError(2, "No such file or folder", shown(address)) from None
    except Exception as error:
        words = error.strerror if isinstance(error, OSError) and error.strerror else f"{error}" or type(error).__name__
        why = shortened(_without(" ".join(words.split()), address), 300)
        raise OSError(5, why, shown(address)) from None


def _without(words: str, address: str) -> str:
    """What a library says, without the credentials of an address."""
    words = words.replace(address, shown(address))
    for secret in _USER.findall(address):
        for part in re.split("[:@]", secret):
            words = words.replace(part, "***") if part else words
    return shown(words)


# --- writing


def check_writable(address: str) -> None:
    """Raise InputError if it is known beforehand that a file can't be written at `address`; WorkError as elsewhere."""
    if address.endswith("/"):
        raise InputError(f"{shown(address)} is a folder: name a file to write")
    protocol, _, place = address.partition("://")
    if protocol.lower() in _READ_ONLY:
        raise InputError(f"{shown(address)}: {protocol} has no way to write files: write it elsewhere")
    try:
        there = look_at(address)
        if there is not None and there.is_folder:
            raise InputError(f"{shown(address)} is a folder: name a file to write")
        if protocol.lower() in _BUCKETS and there is None:
            bucket = f"{protocol}://{place.partition('/')[0]}"
            with suppress(OSError):  # no right to look at it says nothing about writing
                if look_at(bucket) is None:
                    raise InputError(f"{shown(address)}: there is no bucket {shown(bucket)}: make it first")
    except OSError as error:
        raise InputError(f"{shown(address)}: can't write here: {error.strerror}") from error


def upload(file: Path, address: str) -> None:
    """Put a file at an address, where it replaces what is there, all or nothing as far as the file system can do that.

    fsspec's transactions do so: an object store shows the object once it is complete, and others rename a file that
    lies aside.

    Raises:
        WorkError: that fails, or what is there afterwards has another size.
    """
    try:
        with _failing_as_oserror(address):
            system, path = _open_system(address)
            with system.transaction, file.open("rb") as source, system.open(path, "wb") as target:
                shutil.copyfileobj(source, target, 2**20)
            system.invalidate_cache()
            size = system.info(path)["size"]
    except OSError as error:
        raise WorkError(f"{shown(address)}: can't write: {error.strerror}") from error
    if size != file.stat().st_size:
        raise WorkError(f"{shown(address)}: {size} of {file.stat().st_size} bytes arrived: write it again")


@contextmanager
def fetched(address: str, folder: Path) -> Iterator[Path]:
    """A copy of the file at `address`, under its name in `folder`, until the block ends.

    Errors of the block name the address instead of the copy.

    Raises:
        InputError: it can't be read.
    """
    copy = folder / (name_of(address) or "file")
    try:
        with opened(address) as source, copy.open("wb") as target:
            shutil.copyfileobj(source, target, 2**20)
    except FileNotFoundError as error:
        raise InputError(f"{shown(address)}: no such file") from error
    except OSError as error:
        raise InputError(f"{shown(address)} can't be read: {error.strerror}") from error
    try:
        yield copy
    except AutodialError as error:
        error.args = (str(error).replace(str(copy), shown(address)),)
        raise
    finally:
        copy.unlink(missing_ok=True)
