from __future__ import annotations

import pytest

from autodial.wording import alternatives, counted


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
