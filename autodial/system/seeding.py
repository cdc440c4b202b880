"""Seeds as pure functions of what they are for: nothing random depends on order, workers or interruptions."""

from __future__ import annotations

from hashlib import blake2b


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed that depends only on `parts`: equal on every machine, unrelated for different parts."""
    text = "\0".join(map(str, parts)).encode("utf-8", "surrogateescape")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little") >> 1
