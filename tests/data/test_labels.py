from __future__ import annotations

from pathlib import Path

import pytest

from autodial.data.labels import read_labels, tell_apart
from autodial.errors import InputError


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["a", "b"], ("a", "b")),
        (["crane", "owl", "crane"], ("crane_0", "owl", "crane_2")),
        (["a", "a", "a_0"], ("a_0_0", "a_1", "a_0")),
        (["a_1", "a", "a_1", "a"], ("a_1_0", "a_1_1", "a_1_2", "a_3")),
        ([], ()),
    ],
)
def test_names_that_repeat_get_their_numbers(names: list[str], told: tuple[str, ...]) -> None:
    assert tell_apart(names) == told
    assert len(set(told)) == len(names) and tell_apart(told) == told


@pytest.mark.parametrize("name", ["a\x1b[31mb", "a\x9bb", "a\x7fb", "a\x0bb", "a\x85b"])
def test_control_characters_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "labels.txt").write_text(f"one\n{name}\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"labels.txt: the name of class 1, '.*', has a control character: rename it"):
        read_labels(tmp_path / "labels.txt")


def test_what_names_may_hold(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_bytes("n01440764\ttench\r\n\u202b\u05e9\u05dc\u05d5\u05dd\r\n\n".encode())
    assert read_labels(tmp_path / "labels.txt") == ["n01440764\ttench", "\u202b\u05e9\u05dc\u05d5\u05dd"]
    (tmp_path / "labels.txt").write_bytes(b" \n\n")
    with pytest.raises(InputError, match="names no classes"):
        read_labels(tmp_path / "labels.txt")


def test_a_name_with_nul_is_refused(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("one\na\0b\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"labels.txt is not a list of class names: it is binary"):
        read_labels(tmp_path / "labels.txt")
