"""JSON of every kind and depth: what is taken is what Python's own reader gives, and all else is refused in words."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from autodial.errors import InputError
from autodial.system.json_files import FilePath, NotJsonError, WrongValueError, check, parse, read, read_dataclass


def even(value: int) -> None:
    if value % 2:
        raise WrongValueError("even", value)


class Inner(TypedDict):
    name: str
    values: list[float | None]


class Outer(TypedDict, total=False):
    inner: Inner
    flag: bool
    count: Annotated[int, range(10), even]
    numbers: Mapping[str, float]
    path: FilePath


@pytest.mark.parametrize(
    "text", ["null", "[]", '{"a": [1, 2.5, true, null, "\\udcff"]}', '\ufeff"x"', " 1e308 ", "-0.0"]
)
def test_json_is_what_python_reads(text: str) -> None:
    assert parse(text.encode()) == json.loads(text.lstrip("\ufeff"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "it is not JSON"),
        (b"{'a': 1}", "it is not JSON"),
        (b"[1,]", "it is not JSON"),
        (b"NaN", "it holds NaN"),
        (b"[-Infinity]", "it holds -Infinity"),
        (b"9" * 100_000, "it holds a number of thousands of digits"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested too deeply"),
        (b'"\xff"', "it is not in UTF-8"),
    ],
    ids=range(9),
)
def test_what_is_no_json(text: bytes, problem: str) -> None:
    with pytest.raises(NotJsonError, match=problem):
        parse(text)


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"more": "keys"},
        {"inner": {"name": "", "values": [1, 2.5, None], "more": []}, "flag": False, "count": 8, "numbers": {"a": 1}},
        {"path": os.fsdecode(b"a \xff.png")},
    ],
)
def test_what_fits_is_given_back(value: Any) -> None:
    assert check(value, Outer) is value


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([], "the whole must be an object, not a list"),
        ({"inner": None}, '"inner" must be an object, not null'),
        ({"inner": {"name": "a"}}, '"inner" must be an object with "values", not this object'),
        ({"inner": {"name": 3, "values": []}}, '"inner.name" must be a string, not 3'),
        ({"inner": {"name": "", "values": [1, {}]}}, r'"inner.values\[1\]" must be a number, not this object'),
        ({"inner": {"name": "", "values": [True]}}, r'"inner.values\[0\]" must be a number, not true'),
        ({"inner": {"name": "", "values": [float("inf")]}}, "must be a number, not Infinity"),
        ({"inner": {"name": "", "values": [10**400]}}, "must be a number, not a number of that size"),
        ({"flag": 1}, '"flag" must be true or false, not 1'),
        ({"count": True}, '"count" must be a whole number, not true'),
        ({"count": 1.0}, '"count" must be a whole number, not 1.0'),
        ({"count": 10}, '"count" must be from 0 to 9, not 10'),
        ({"count": 3}, '"count" must be even, not 3'),
        ({"numbers": [1]}, '"numbers" must be an object, not a list'),
        ({"numbers": {"x" * 100: "y" * 100}}, r'"numbers.x{39}\.\.\." must be a number, not "y{39}\.\.\.'),
        ({"numbers": {"a\x1b[31m\u202e猫": []}}, r'"numbers.a\\x1b\[31m\\u202e猫" must be a number'),
        ({"path": "a\0b"}, '"path" must be a path'),
        ({"path": "\ud800"}, '"path" must be a path'),
    ],
)
def test_what_does_not_fit_is_named(value: Any, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        check(value, Outer)


def test_a_file_is_named_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"flag": true}')
    assert read(path, Outer, remedy="delete it") == {"flag": True}
    path.write_text("{")
    with pytest.raises(InputError, match=r"x\.json is damaged, it is not JSON: .*: delete it$"):
        read(path, Outer, remedy="delete it")
    path.write_text('{"flag": "yes"}')
    with pytest.raises(InputError, match=r'x\.json is damaged, or of another program, "flag" must be .*: delete it$'):
        read(path, Outer, remedy="delete it")
    path.unlink()
    with pytest.raises(InputError, match=r"x\.json does not exist"):
        read(path, Outer, remedy="delete it")


@dataclass(frozen=True)
class Part:
    path: Path | None
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Whole:
    folder: Path
    parts: tuple[Part, ...]
    name: str = "x"


def test_a_dataclass_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    whole = Whole(tmp_path / "a", (Part(None, ()), Part(Path("b"), (1, 2))))
    path.write_text(json.dumps(asdict(whole), default=str))
    assert read_dataclass(path, Whole, remedy="delete it") == whole


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"folder": None}, '"folder" must be a string, not null'),
        ({"folder": "a\0b"}, '"folder" must be a path'),
        ({"parts": [{"path": 3, "numbers": []}]}, r'"parts\[0\].path" must be a string, not 3'),
        ({"parts": [{"path": None, "numbers": [1.5]}]}, r'"parts\[0\].numbers\[0\]" must be a whole number, not 1.5'),
        ({"parts": [{"path": None}]}, r'"parts\[0\]" must be an object with "numbers"'),
    ],
)
def test_a_file_that_is_no_such_dataclass(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"folder": "a", "parts": [], "name": "x", **change}))
    with pytest.raises(InputError, match=rf"x\.json is damaged, or of another program, {problem}.*: delete it$"):
        read_dataclass(path, Whole, remedy="delete it")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.json")
    with pytest.raises(InputError, match="is not a regular file: delete it"):
        read(tmp_path / "x.json", Outer, remedy="delete it")
