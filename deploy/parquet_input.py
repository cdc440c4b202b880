"""Images from Parquet tables: a column with whole image files, or with their paths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from autodial.deploy import addresses
from autodial.deploy.arrow import load_pyarrow
from autodial.deploy.sources import ImageFile, TableImage, named_in_stream
from autodial.errors import InputError

TABLE_SUFFIX = ".parquet"
COLUMNS = ("bytes", "image", "path")
"""Where images are looked for, in this order."""

_ROWS = 32
"""Rows that are read at a time."""
_BUFFER = 2**20
"""Bytes of a column that are read at a time, where a group of rows may have gigabytes."""


def images_in_table(table: str, column: str | None = None) -> Iterator[ImageFile]:
    """The images of a table, a row each, in its order; few of them are in memory at a time.

    A column of binary values has whole image files. A column of structs with `bytes` and `path`, as Hugging Face's
    datasets have it, does too, or says where the file is. A column of texts has paths and addresses; relative ones
    start from the working directory, and then from the table's folder. Where files are values, the row's path is the
    text in the struct or in the table's own column `path`, or else `TABLE[N]`, counted from 0.

    Args:
        table: a file, or an address.
        column: the column's name; None for the first of `COLUMNS` that is there.

    Raises:
        InputError: the table can't be read, has no rows, or has no such column.
        WorkError: pyarrow is not installed.
    """
    pa = load_pyarrow()
    name = addresses.shown(table)
    base: Path | str = addresses.parent(table) if addresses.is_address(table) else Path(table).parent
    with _table_errors(name, pa), _opened(table) as source:
        file = pa.parquet.ParquetFile(source, buffer_size=_BUFFER)
        schema = file.schema_arrow
        chosen = _choose(schema, column, name, pa)
        has_paths = _is_binary(_type_of(schema, chosen, pa), pa) and _is_text(_type_of(schema, "path", pa), pa)
        row = 0
        for batch in file.iter_batches(_ROWS, columns=[chosen, "path"] if has_paths else [chosen]):
            values = batch.column(chosen).to_pylist()
            paths = batch.column("path").to_pylist() if has_paths else [None] * len(values)
            for value, path in zip(values, paths, strict=True):
                yield _image(value, path, f"{name}[{row}]", base)
                row += 1
        if row == 0:
            raise InputError(f"{name}: this table has no rows")


def _image(value: Any, path: str | None, place: str, base: Path | str) -> ImageFile:
    if isinstance(value, dict):
        path, value = value.get("path"), value["bytes"]
        path = path if isinstance(path, str) else None
        if value is None and path:
            value = path
    if isinstance(value, str):
        return named_in_stream(value, base)
    return TableImage(addresses.shown(path) if path else place, data=value)


def _choose(schema: Any, column: str | None, name: str, pa: Any) -> str:
    """The column with the images."""
    columns: Sequence[str] = schema.names
    if column is not None and column not in columns:
        raise InputError(f"{name} has no column {column}: `column` is one of {', '.join(columns)}")
    for found in COLUMNS if column is None else [column]:
        kind = _type_of(schema, found, pa)
        if kind is None:
            continue
        if _is_binary(kind, pa) or _is_text(kind, pa):
            return found
        if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0 and _is_binary(kind.field("bytes").type, pa):
            return found
        if column is not None:
            raise InputError(f"{name}: column {column} has values of type {kind}, not image files or paths")
    raise InputError(
        f"{name} has no column {', '.join(COLUMNS[:-1])} or {COLUMNS[-1]} with image files or paths: name the column "
        f"that has them with `column` (there are {', '.join(columns)})"
    )


def _type_of(schema: Any, column: str, pa: Any) -> Any:
    """The type of a column's values; None if there is not one such column."""
    index = schema.get_field_index(column)
    if index < 0:
        return None
    kind = schema.field(index).type
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_binary(kind: Any, pa: Any) -> bool:
    types = pa.types
    tests = (types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary)
    return any(test(kind) for test in tests)


def _is_text(kind: Any, pa: Any) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return kind is not None and any(test(kind) for test in tests)


def _opened(table: str) -> AbstractContextManager[Any]:
    return addresses.opened(table) if addresses.is_address(table) else nullcontext(table)


@contextmanager
def _table_errors(name: str, pa: Any) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise InputError(f"{name}: no such file") from error
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        why = " ".join(addresses.shown(getattr(error, "strerror", None) or str(error)).split())
        raise InputError(f"{name} can't be read as a Parquet table: {why}") from error
