"""Request bodies, read and unpacked within limits, and answers packed."""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any

from autodial.deploy.serve.limits import MIB
from autodial.deploy.serve.refusal import RefusalError, busy, invalid, too_large

_WINDOW = {"gzip": 31, "deflate": 15}
"""zlib's `wbits` for the encodings of HTTP; deflate is zlib's format, RFC 1950."""
_ASIDE = 2**14
"""Bytes from which on packing and unpacking would keep other requests waiting."""
_WORTH_PACKING = 2**9
"""Bytes of an answer."""
_QUALITY = re.compile(r"(?:0(?:\.\d{0,3})?|1(?:\.0{0,3})?)")


class DisconnectedError(Exception):
    """The client went away before its request was complete."""


class Memory:
    """Bytes that all requests' bodies take at a time.

    Args:
        limit: how many there may be.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0

    def share(self) -> Share:
        """A part of it that grows, and is given back when its `with` block ends."""
        return Share(self)


class Share:
    """One request's bytes."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._taken = 0

    def __enter__(self) -> Share:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._memory.taken -= self._taken

    def grow_to(self, size: int) -> None:
        """Take as many bytes as are missing to `size`; raises a RefusalError if there aren't so many."""
        more = size - self._taken
        if more <= 0:
            return
        if self._memory.taken + more > self._memory.limit:
            raise busy("the service holds as many bytes of requests as it may: send this one again later")
        self._memory.taken += more
        self._taken = size


async def read(
    headers: Mapping[str, str], receive: Callable[[], Awaitable[Mapping[str, Any]]], limit: int, share: Share
) -> bytes:
    """The body of a request, unpacked.

    Args:
        headers: the request's, with names in lower case.
        receive: ASGI's.
        limit: bytes, of the body as it comes and unpacked.
        share: of the memory for all bodies; it holds the body's size afterwards.

    Raises:
        RefusalError: the body is too large, packed in an unknown way, or damaged.
        DisconnectedError: it doesn't come to its end.
    """
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding not in (*_WINDOW, "identity"):
        raise RefusalError(415, "Content-Encoding has to be gzip or deflate (zlib's format), or to be left out")
    length = headers.get("content-length", "")
    if length.isascii() and length.isdigit():
        if int(length[:20]) > limit:
            raise _too_long(limit)
        share.grow_to(int(length))
    data = await _whole(receive, limit, share)
    if encoding == "identity":
        return data
    if len(data) < _ASIDE:
        unpacked = unpack(data, encoding, limit)
    else:
        unpacked = await asyncio.get_running_loop().run_in_executor(None, unpack, data, encoding, limit)
    share.grow_to(len(data) + len(unpacked))
    return unpacked


async def _whole(receive: Callable[[], Awaitable[Mapping[str, Any]]], limit: int, share: Share) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise DisconnectedError
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise _too_long(limit)
        share.grow_to(size)
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def unpack(packed: bytes, encoding: str, limit: int) -> bytes:
    """What was packed with gzip or deflate; raises a RefusalError if it is more than `limit` bytes, or damaged."""
    unpacker = zlib.decompressobj(_WINDOW[encoding])
    try:
        data = unpacker.decompress(packed, limit + 1)
    except zlib.error:
        raise invalid(f"the body is not {encoding}, as Content-Encoding says it is, or it is damaged") from None
    if len(data) > limit:
        raise _too_long(limit)
    if not unpacker.eof:
        raise invalid(f"the body is cut short: its {encoding} data has no end")
    if unpacker.unused_data:
        raise invalid(f"the body has bytes behind its {encoding} data")
    return data


def _too_long(limit: int) -> RefusalError:
    return too_large(f"the body is larger than {limit / MIB:g} MiB, which is the most that this service takes")


async def pack(data: bytes, accepted: str) -> tuple[bytes, str | None]:
    """An answer packed as Accept-Encoding asks for, and the encoding; None where it stays as it is."""
    encoding = chosen_encoding(accepted) if accepted and len(data) >= _WORTH_PACKING else None
    if encoding is None:
        return data, None
    if len(data) < _ASIDE:
        return _packed(data, encoding), encoding
    return await asyncio.get_running_loop().run_in_executor(None, _packed, data, encoding), encoding


def _packed(data: bytes, encoding: str) -> bytes:
    packer = zlib.compressobj(1, zlib.DEFLATED, _WINDOW[encoding])
    return packer.compress(data) + packer.flush()


def chosen_encoding(accepted: str) -> str | None:
    """The encoding of gzip and deflate that an Accept-Encoding header likes best (RFC 9110, 12.5.3), None for none."""
    qualities: dict[str, float] = {}
    for entry in accepted.split(","):
        name, *parameters = (part.strip().lower() for part in entry.split(";"))
        quality = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                quality = float(parameter[2:]) if _QUALITY.fullmatch(parameter[2:]) else 0.0
        qualities[name] = quality
    best = max(_WINDOW, key=lambda name: qualities.get(name, qualities.get("*", 0.0)))
    quality = qualities.get(best, qualities.get("*", 0.0))
    return best if quality > 0 and quality >= qualities.get("identity", 0.0) else None
