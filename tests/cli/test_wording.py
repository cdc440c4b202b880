from __future__ import annotations

import pytest

from autodial.wording import alternatives, counted, described_size, every, printable


@pytest.mark.parametrize(
    ("number", "noun", "plural", "words"),
    [
        (0, "image", None, "0 images"),
        (1, "image", None, "1 image"),
        (2, "image", None, "2 images"),
        (1, "class", "classes", "1 class"),
        (3, "class", "classes", "3 classes"),
    ],
)
def test_counted(number: int, noun: str, plural: str | None, words: str) -> None:
    assert counted(number, noun, plural) == words


@pytest.mark.parametrize(("size", "words"), [(512, "0.5 KiB"), (2048, "2.0 KiB"), (3 * 2**19, "1.5 MiB")])
def test_described_size(size: int, words: str) -> None:
    assert described_size(size) == words


def test_every() -> None:
    assert every(1, "iteration") == "every iteration"
    assert every(5, "iteration") == "every 5 iterations"


@pytest.mark.parametrize(
    ("wanted", "names", "words"),
    [
        ("fc7", ["data", "fc6"], '; did you mean "fc6"?'),
        ("conv", ["conv1", "fc", "conv2"], '; did you mean "conv2" or "conv1"?'),
        ("x", ["data", "fc6"], " (there are data, fc6)"),
        ("x", list("abcdefghijklmn"), " (there are a, b, c, d, e, f, g, h, i, j, k, l, ... 14 in all)"),
        ("x", [], ""),
    ],
)
def test_alternatives(wanted: str, names: list[str], words: str) -> None:
    assert alternatives(wanted, names) == words


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Ødegård 猫 \u05e9\u05dc\u05d5\u05dd 👍🏽 a b", "Ødegård 猫 \u05e9\u05dc\u05d5\u05dd 👍🏽 a b"),
        ("a\x1b[2J\0\x7f\x9b", r"a\x1b[2J\x00\x7f\x9b"),
        ("caf\udce9", r"caf\xe9"),  # as os.fsdecode has a byte that is not UTF-8
        ("\ud800\u202egnp.exe\u2069", r"\ud800\u202egnp.exe\u2069"),
        ("a\nb\tc\rd", "a\nb\\x09c\\x0dd"),
    ],
)
def test_printable(text: str, shown: str) -> None:
    assert printable(text, but="\n") == shown
    assert printable(shown, but="\n") == shown
    shown.encode()
