"""JSON that other programs may have written or damaged: read strictly, and checked against a type."""

from __future__ import annotations

import json
import os
from collections import abc
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from math import isfinite
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints, is_typeddict

from autodial.errors import InputError
from autodial.wording import printable

T = TypeVar("T")
Check = Callable[[Any], None]
"""Raises WrongValueError unless a value is what it should be."""

_SHOWN = 40
"""Characters of a wrong value that a message shows."""
_INTEGERS = range(-(2**63), 2**63)


class NotJsonError(ValueError):
    """Text that is no JSON, or JSON that is not written by this package."""


class WrongValueError(ValueError):
    """A value that is not what it should be.

    Args:
        wanted: a description of valid values.
        value: the value.

    Attributes:
        place: the value's place inside a larger value, such as `.starts[0].seed`.
    """

    def __init__(self, wanted: str, value: Any) -> None:
        super().__init__(wanted, value)
        self.place = ""

    def inside(self, step: str) -> WrongValueError:
        """This error with the place in a larger value, in which `step` leads to the value."""
        self.place = _short(step) + self.place
        return self

    def __str__(self) -> str:
        wanted, value = self.args
        place = f'"{self.place.removeprefix(".")}"' if self.place else "the whole"
        return f"{place} must be {wanted}, not {_shown(value)}"


def parse(text: str | bytes) -> Any:
    """The value of a JSON text, which is in UTF-8 if it is bytes.

    Raises:
        NotJsonError: it is not JSON, holds NaN or Infinity, which JSON does not have, or is nested more deeply than
            Python can follow.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8-sig")
        return _DECODER.decode(text)
    except RecursionError:
        raise NotJsonError("its lists and objects are nested too deeply") from None
    except NotJsonError:
        raise
    except UnicodeDecodeError:
        raise NotJsonError("it is not in UTF-8") from None
    except json.JSONDecodeError as error:
        raise NotJsonError(f"it is not JSON: {error}") from None
    except ValueError:  # Python's limit is 4300
        raise NotJsonError("it holds a number of thousands of digits") from None


def check(value: Any, schema: type[T]) -> T:
    """`value`, if it has the type `schema`.

    Args:
        value: as `parse` gives it.
        schema: a TypedDict, of which an object may have more keys; list[...]; Mapping[str, ...]; str, int, float, bool
            or None, and unions of these; Annotated[..., ...] with a range of integers or a Check. A whole number is
            also a float; True and False are no numbers.

    Raises:
        InputError: the value has another type; the message names the place. A float that is not finite, such as 1e999,
            is no number.
    """
    try:
        _check_of(cast(Hashable, schema))(value)
    except WrongValueError as error:
        raise InputError(str(error)) from None
    return cast(T, value)


def read(path: Path, schema: type[T], *, remedy: str) -> T:
    """The checked value of a JSON file.

    Args:
        path: the file.
        schema: as for `check`.
        remedy: what to do about a damaged file; it ends the message.

    Raises:
        InputError: the file can't be read, is no JSON, or does not have the type; the message names the file.
    """
    return cast(T, _read(path, schema, remedy))


def read_dataclass(path: Path, kind: type[T], *, remedy: str) -> T:
    """The dataclass whose `asdict` a JSON file holds, with strings for paths and lists for tuples.

    Args:
        path: the file.
        kind: the dataclass. Its fields have types as for `check`, Path, tuple[..., ...] or another such dataclass, or a
            union of one of these and None.
        remedy: what to do about a damaged file; it ends the message.

    Raises:
        InputError: as for `read`.
    """
    return cast(T, _restored(kind, _read(path, kind, remedy)))


def _read(path: Path, schema: Any, remedy: str) -> Any:
    from autodial.system.files import read_bytes  # late: it loads protobuf, which `check` does not need

    if path.exists() and not path.is_file():
        raise InputError(f"{path} is not a regular file: {remedy}")
    try:
        return check(parse(read_bytes(path, "JSON")), schema)
    except NotJsonError as error:
        raise InputError(f"{path} is damaged, {error}: {remedy}") from None
    except InputError as error:
        raise InputError(f"{path} is damaged, or of another program, {error}: {remedy}") from None


def finite(value: Any) -> Any:
    """A copy of a JSON value with None in place of NaN and infinity, which JSON lacks; tuples become lists."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


def _file_path(value: str) -> None:
    try:
        possible = b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:
        possible = False
    if not possible:
        raise WrongValueError("a path", value)


def _restored(kind: Any, value: Any) -> Any:
    """A checked JSON value as the type from which it was written."""
    arguments = get_args(kind)
    if value is not None and type(None) in arguments:
        return _restored(arguments[0], value)
    if kind is Path:
        return Path(value)
    if get_origin(kind) is tuple:
        return tuple(_restored(arguments[0], item) for item in value)
    if isinstance(kind, type) and is_dataclass(kind):
        return kind(**{name: _restored(hint, value[name]) for name, hint in _field_types(kind).items()})
    return value


def _field_types(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in fields(kind)}


FilePath = Annotated[str, _file_path]
"""A string that can be the path of a file: without NUL, and in the file system's encoding."""


def _refuse_constant(name: str) -> float:
    raise NotJsonError(f"it holds {name}, which is no number in JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


@cache
def _check_of(schema: Any) -> Check:
    """The check that a type stands for."""
    if is_typeddict(schema):
        return _object_check(get_type_hints(schema, include_extras=True), schema.__required_keys__)
    if is_dataclass(schema):
        types = _field_types(schema)
        return _object_check(types, types)
    if schema is Path:
        return _check_of(cast(Hashable, FilePath))
    origin, arguments = get_origin(schema), get_args(schema)
    if origin is Annotated:
        return _narrowed(_check_of(arguments[0]), arguments[1:])
    if origin in (Union, UnionType):
        return _union_check([_check_of(argument) for argument in arguments])
    if origin in (list, tuple):
        return _list_check(_check_of(arguments[0]))
    if origin is not None and issubclass(origin, abc.Mapping):
        return _mapping_check(_check_of(arguments[1]))
    return _SCALARS[schema]


def _scalar(wanted: str, fits: Callable[[Any], bool]) -> Check:
    def check_scalar(value: Any) -> None:
        if not fits(value):
            raise WrongValueError(wanted, value)

    return check_scalar


def _is_integer(value: Any) -> bool:
    return type(value) is int and value in _INTEGERS


_SCALARS: Mapping[Any, Check] = {
    Any: lambda value: None,
    type(None): _scalar("null", lambda value: value is None),
    str: _scalar("a string", lambda value: type(value) is str),
    bool: _scalar("true or false", lambda value: type(value) is bool),
    int: _scalar("a whole number", _is_integer),
    float: _scalar("a number", lambda value: isfinite(value) if type(value) is float else _is_integer(value)),
}


def _object_check(types: Mapping[str, Any], required: Iterable[str]) -> Check:
    checks = {name: _check_of(hint) for name, hint in types.items()}

    def check_object(value: Any) -> None:
        if type(value) is not dict:
            raise WrongValueError("an object", value)
        for name in required:
            if name not in value:
                raise WrongValueError(f'an object with "{name}"', value)
        name = ""
        try:
            for name, check_item in checks.items():
                if name in value:
                    check_item(value[name])
        except WrongValueError as error:
            raise error.inside(f".{name}") from None

    return check_object


def _list_check(check_item: Check) -> Check:
    def check_list(value: Any) -> None:
        if type(value) is not list:
            raise WrongValueError("a list", value)
        index = 0
        try:
            for index, item in enumerate(value):  # noqa: B007 - the handler's
                check_item(item)
        except WrongValueError as error:
            raise error.inside(f"[{index}]") from None

    return check_list


def _mapping_check(check_item: Check) -> Check:
    def check_mapping(value: Any) -> None:
        if type(value) is not dict:
            raise WrongValueError("an object", value)
        name = ""
        try:
            for name, item in value.items():  # noqa: B007 - the handler's
                check_item(item)
        except WrongValueError as error:
            raise error.inside(f".{name}") from None

    return check_mapping


def _union_check(checks: Sequence[Check]) -> Check:
    def check_union(value: Any) -> None:
        first: WrongValueError | None = None
        for check_item in checks:
            try:
                check_item(value)
                return
            except WrongValueError as error:
                first = first or error  # the first member is the intended type
        assert first is not None
        raise first

    return check_union


def _narrowed(check_type: Check, rules: Sequence[Any]) -> Check:
    def check_narrowed(value: Any) -> None:
        check_type(value)
        for rule in rules:
            if not isinstance(rule, range):
                rule(value)
            elif value not in rule:
                raise WrongValueError(f"from {rule.start} to {rule.stop - 1}", value)

    return check_narrowed


def _shown(value: Any) -> str:
    """A wrong value, short."""
    if isinstance(value, dict | list):
        return "this object" if isinstance(value, dict) else "a list"
    if isinstance(value, int) and value not in _INTEGERS:
        return "a number of that size"
    return _short(json.dumps(value))


def _short(text: str) -> str:
    """The beginning of a text, with control characters shown."""
    return printable(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
