"""Caffe's HDF5Data layer as a function from the index of a batch to its tops."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from autodial.data.epochs import Epochs, Streams
from autodial.data.paths import find
from autodial.data.source import ALL
from autodial.data.text import check_regular, read_text
from autodial.errors import InputError
from autodial.proto.hdf5_file import Hdf5File, import_h5py, reading
from autodial.wording import counted

if TYPE_CHECKING:
    from autodial.proto import messages as pb

_SEARCHED = 2**16
"""The first bytes of a file, in which heaps are checked whenever it is opened: the root group's and those near it."""


class HDF5Data:
    """The batches of an HDF5Data layer: for each top, rows of the dataset with its name, file after file.

    With `shuffle`, each epoch has the files in random order, and the rows within each file, so that one file at a time
    is in memory, as in Caffe. Otherwise only the batch's rows are read.

    Attributes:
        name: the layer's name.
        list_path: the text file that lists the HDF5 files.
        files: the HDF5 files, in the list's order.
        batch_size: rows per batch.
        top_shapes: shapes of the tops, (N, ...) with the axes of the datasets after the first.
    """

    def __init__(self, param: pb.LayerParameter, *, phase: pb.Phase, seed: int, base_dir: Path | None = None) -> None:
        """Read the options and the list, and check the datasets of all files.

        Args:
            param: the layer; its tops name the datasets.
            phase: not used: both phases are the same.
            seed: key of everything random, any integer.
            base_dir: folder of the prototxt, tried second for a relative source.

        Raises:
            InputError: an option that can't be honoured, or a list or file that can't be read, lacks a dataset or has
                one that does not fit; it names the layer, the file and the dataset.
        """
        self.name: str = param.name
        options = param.hdf5_data_param
        try:
            if param.HasField("transform_param"):
                raise InputError("HDF5Data does not transform its data; remove transform_param and transform the files")
            if not options.source:
                raise InputError("hdf5_data_param.source, the list of HDF5 files, is missing")
            if not options.batch_size:
                raise InputError("hdf5_data_param.batch_size is missing or 0; it must be at least 1")
            self.batch_size: int = options.batch_size
            self.list_path = find(options.source, base_dir)
            self.files = _listed(self.list_path)
            self._datasets: list[str] = list(param.top)
            shapes = [self._shapes(path) for path in self.files]
            for path, theirs in zip(self.files, shapes, strict=True):
                for dataset, ours, shape in zip(self._datasets, shapes[0], theirs, strict=True):
                    if shape[1:] != ours[1:]:
                        raise InputError(
                            f'{path}: dataset "{dataset}" has shape {shape}, which does not fit {ours} in '
                            f"{self.files[0]}: all axes but the first must agree"
                        )
            rows = [theirs[0][0] for theirs in shapes]
            if not sum(rows):
                raise InputError(f"the files in {self.list_path} have no rows")
            self._ends = list(accumulate(rows))
            self._shuffle: bool = options.shuffle
            self._epochs = Epochs(rows, Streams(seed, self.name), shuffle=self._shuffle)
            self._loaded: tuple[int, list[NDArray[np.float32]]] = (-1, [])
            self.top_shapes = tuple((self.batch_size, *shape[1:]) for shape in shapes[0])
        except InputError as error:
            raise InputError(f'layer "{self.name}" (HDF5Data): {error}') from None

    def __len__(self) -> int:
        return self._ends[-1]

    def batch(self, index: int, rows: slice = ALL) -> tuple[NDArray[np.float32], ...]:
        """The tops of batch `index` (from 0); they depend only on the seed, the layer's name and `index`.

        Args:
            rows: the rows of the batch to read.

        Returns:
            float32 arrays of `top_shapes`, but only the rows asked for.

        Raises:
            InputError: a file can't be read; it names the file.
        """
        wanted = self._epochs.rows(index, self.batch_size)[rows]
        tops = tuple(np.empty((len(wanted), *shape[1:]), dtype=np.float32) for shape in self.top_shapes)
        for _, group in groupby(enumerate(map(self._locate, wanted)), lambda item: (item[1][0], item[1][1] - item[0])):
            run = list(group)  # rows that follow one another in a file
            start, (file, row) = run[0]
            for top, values in zip(tops, self._read(file, row, row + len(run)), strict=True):
                top[start : start + len(run)] = values
        return tops

    def names(self, index: int) -> list[str]:
        """File and row, from 0, of each row of batch `index`."""
        rows = map(self._locate, self._epochs.rows(index, self.batch_size))
        return [f"{self.files[file]}:{row}" for file, row in rows]

    def labels(self, top: int) -> Iterator[tuple[str, float]]:
        """File, row and value of every label, for a top with one value per row."""
        if np.prod(self.top_shapes[top][1:]) == 1:
            for path in self.files:
                with _opened(path) as file:
                    labels = np.ravel(file.dataset(self._datasets[top])[()])
                for row, label in enumerate(labels):
                    yield f'{path}: dataset "{self._datasets[top]}", row {row}', label

    def check(self) -> None:
        """Do nothing: the constructor has checked all files."""

    def _shapes(self, path: Path) -> list[tuple[int, ...]]:
        """The shapes of a file's datasets; InputError if one is missing or can't be a top."""
        shapes: list[tuple[int, ...]] = []
        with _opened(path) as file:
            for name in self._datasets:
                dataset = file.dataset(name)
                if dataset is None:
                    held = ", ".join(file.names()) or "nothing"
                    raise InputError(f'{path} has no dataset "{name}", as a top is named; it holds {held}')
                if dataset.dtype.kind not in "fiu":
                    raise InputError(f'{path}: dataset "{name}" holds {dataset.dtype}, neither floats nor integers')
                if not dataset.shape:
                    raise InputError(f'{path}: dataset "{name}" has no axes; its first must count the rows')
                if shapes and dataset.shape[0] != shapes[0][0]:
                    raise InputError(
                        f'{path}: dataset "{name}" has {counted(dataset.shape[0], "row")} and '
                        f'"{self._datasets[0]}" has {shapes[0][0]}'
                    )
                shapes.append(dataset.shape)
        return shapes

    def _locate(self, row: int) -> tuple[int, int]:
        """The file of a row of the epoch, and the row in that file."""
        file = bisect_right(self._ends, row)
        return file, row - (self._ends[file - 1] if file else 0)

    def _read(self, file: int, start: int, stop: int) -> list[NDArray[Any]]:
        """Rows of a file's datasets."""
        if not self._shuffle:
            with _opened(self.files[file]) as opened:
                return [opened.dataset(name)[start:stop] for name in self._datasets]
        if self._loaded[0] != file:
            with _opened(self.files[file]) as opened:
                self._loaded = (file, [opened.dataset(name).astype(np.float32)[()] for name in self._datasets])
        return [values[start:stop] for values in self._loaded[1]]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": (-1, [])}


@contextmanager
def _opened(path: Path) -> Iterator[Hdf5File]:
    """An HDF5 file, open for reading for a moment: open files must not be carried into another process."""
    with reading(path, "HDF5", searched=_SEARCHED) as file:
        yield file


def _listed(path: Path) -> list[Path]:
    """The files that a list names, one per line; relative paths are looked up in the list's folder second."""
    check_regular(path, "a list of HDF5 files")
    if import_h5py(path).is_hdf5(path):
        raise InputError(f"{path} is itself an HDF5 file; hdf5_data_param.source is a text file that lists HDF5 files")
    text = read_text(path, "a list of HDF5 files")
    files = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                # Absolute, so that a later change of the working directory does not move it.
                files.append(find(line.strip(), path.parent).absolute())
            except InputError as error:
                raise InputError(f"{path}:{number}: {error}") from None
    if not files:
        raise InputError(f"{path} lists no files")
    return files
