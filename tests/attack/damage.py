"""Damage of all kinds to bytes, texts and JSON, each the same for the same random numbers."""

from __future__ import annotations

import copy
import json
import random
import re
from typing import Any

NUMBERS = (
    *("-1", "0", "1", "2147483647", "2147483648", "4294967296", "4611686018427387904", "18446744073709551616"),
    *("1e38", "-1e308", "1e999", "nan", "inf", "5.5", "1e-45", "-0.0", "0x10", "1" * 400),
)
SNIPPETS = (
    "\0",
    "\x1b[31m",
    "\ufeff",
    "{",
    "}",
    '"',
    "\\",
    "'",
    ":",
    "#",
    "\r",
    "\u202e",
    "é",
    "猫",
    " ",
    "=",
    ",",
    "..",
)
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1.5, 2**31, 2**63, 10**400, 1e308, float("nan"), float("inf")),
    *("", "x" * 10_000, "\0", "\ud800", "\x1b[31m", "../../x", "/dev/zero", [], {}, [[]], {"a": {}}, [1, "a", None]),
)
DEPTHS = (50, 1_000, 100_000)


def damaged_bytes(rng: random.Random, data: bytes) -> bytes:
    """Some bits, bytes or parts of a file are changed, lost, doubled or put elsewhere."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        size = len(changed)
        if not size:
            break
        # what matters most stands at the start of most files
        place = rng.randrange(min(size, 512)) if rng.random() < 0.5 else rng.randrange(size)
        length = rng.choice((1, 4, 8, 64, size))
        match rng.randrange(7):
            case 0:
                changed[place] ^= 1 << rng.randrange(8)
            case 1:
                changed[place : place + length] = rng.randbytes(min(length, 64))
            case 2:
                del changed[place : place + length]
            case 3:
                del changed[place:]
            case 4:
                changed[place:place] = changed[place : place + min(length, 64)]
            case 5:
                extreme = rng.choice((b"\xff" * 8, b"\0" * 8, b"\xff" * 7 + b"\x7f", b"\xff\xff\xff\x7f"))
                changed[place : place + len(extreme)] = extreme
            case _:
                other = rng.randrange(size)
                changed[place : place + 8], changed[other : other + 8] = (
                    changed[other : other + 8],
                    changed[place : place + 8],
                )
    return bytes(changed)


def damaged_text(rng: random.Random, text: str) -> bytes:
    """Numbers get extreme, words and lines change places, characters that nobody expects are put in."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        lines = text.split("\n")
        line = rng.randrange(len(lines))
        place = rng.randrange(len(text) + 1)
        match rng.randrange(9):
            case 0 | 1:
                text = _replaced(rng, r"-?\d+\.?\d*", text, rng.choice(NUMBERS))
            case 2:
                words = re.findall(r"\w+", text) or ["x"]
                text = _replaced(rng, r"\w+", text, rng.choice(words))
            case 3:
                text = "\n".join(lines[:line] + lines[line + 1 :])
            case 4:
                text = "\n".join(lines[:line] + [lines[line]] * rng.choice((2, 1_000)) + lines[line:])
            case 5:
                text = text[:place] + rng.choice(SNIPPETS) + text[place:]
            case 6:
                text = text[:place]
            case 7:
                text = text[:place] + rng.choice(('"', "{", '\\"', "a.", "a: {", "[", "(")) * 20_000 + text[place:]
            case _:
                return damaged_bytes(rng, text.encode("utf-8", "surrogatepass"))
    return text.encode("utf-8", "surrogatepass")


def damaged_json(rng: random.Random, value: Any) -> bytes:
    """A value of another type or depth at a random place, a key that is missing, or text that is no JSON."""
    if rng.random() < 0.15:
        depth = rng.choice(DEPTHS)
        opening, closing = rng.choice((("[", "]"), ('{"a":', "}")))
        nested = opening * depth + "1" + closing * depth
        text = json.dumps(value)
        return (nested if rng.random() < 0.5 else _replaced(rng, r"\d+", text, nested)).encode()
    if rng.random() < 0.15:
        return damaged_bytes(rng, json.dumps(value).encode())
    changed = json.loads(json.dumps(value))
    for _ in range(rng.choice((1, 1, 2))):
        places = list(_places(changed))
        if not places:
            break
        owner, key = rng.choice(places)
        if rng.random() < 0.2:
            del owner[key]
        else:
            owner[key] = copy.deepcopy(rng.choice(VALUES))  # which the next change may go into
    return json.dumps(rng.choice(VALUES) if rng.random() < 0.03 else changed).encode()


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every object or list inside of a value with every key or index of it."""
    found = []
    for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
        found.append((value, key))
        if isinstance(item, (dict, list)):
            found += _places(item)
    return found


def _replaced(rng: random.Random, pattern: str, text: str, new: str) -> str:
    """One of the places that a pattern fits, replaced."""
    found = list(re.finditer(pattern, text))
    if not found:
        return text + new
    match = rng.choice(found)
    return text[: match.start()] + new + text[match.end() :]
