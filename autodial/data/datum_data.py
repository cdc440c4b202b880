"""Caffe's Data layer as a function from the index of a batch to its images and labels: databases of Datum messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from autodial.data.decoder_messages import note_damage
from autodial.data.epochs import Epochs, Purpose, Streams
from autodial.data.leveldb import LevelDb
from autodial.data.lmdb import Lmdb
from autodial.data.paths import find
from autodial.data.source import ALL
from autodial.data.transforms import DRAWS, DataError, Transform, read_bytes
from autodial.errors import InputError
from autodial.proto import messages as pb

_SCANNED = 2**30
"""The largest size in bytes of a database whose datums are all checked before training starts, within seconds."""
_CHUNK = 256
"""The number of datums in memory at once during that check."""


class DatumData:
    """The batches of a Data layer.

    A datum holds bytes or floats in the order channel, row, column, or an encoded image. An encoded image is decoded
    with its own channels, or with force_color or force_gray to three channels or one. Caffe's `prefetch` is ignored
    here: the caller decides how to read ahead. With `cursor: SHUFFLING` (ddtm/caffe) each epoch has its own order.

    Attributes:
        name: the layer's name.
        database: keys and serialized datums, by position.
        batch_size: datums per batch.
        image_shape: (height, width, channels) of the first batch's first datum, and so of all datums; with a crop,
            height and width may differ.
        transform: applied after decoding.
        top_shapes: shapes of the data top, (N, C, H, W), and of the label top, (N,), if the layer has one.
    """

    def __init__(self, param: pb.LayerParameter, *, phase: pb.Phase, seed: int, base_dir: Path | None = None) -> None:
        """Read the options and the first datum.

        Args:
            param: the layer, with one or two tops.
            phase: caffe.Phase, which decides where crops are taken.
            seed: key of everything random, any integer.
            base_dir: folder of the prototxt, tried second for the relative paths in it.

        Raises:
            InputError: an option that can't be honoured, a database that can't be read, or a first datum that can't
                be used; it names the layer, and the datum's key where there is one.
        """
        self.name: str = param.name
        options = param.data_param
        try:
            self.database = _open(options, base_dir)
            self.batch_size: int = options.batch_size
            force_color = param.transform_param.force_color or options.force_encoded_color
            self._color = True if force_color else False if param.transform_param.force_gray else None
            self._streams = Streams(seed, self.name)
            shuffle = options.cursor == pb.DataParameter.SHUFFLING
            self._epochs = Epochs([len(self.database)], self._streams, shuffle=shuffle, rand_skip=options.rand_skip)

            first = self._image(*next(self._datums(self._epochs.rows(0, 1))))
            height, width, channels = self.image_shape = first.shape
            self.transform = Transform.from_caffe(
                param.transform_param, phase=phase, channels=channels, base_dir=base_dir
            )
            data_shape = (self.batch_size, channels, *self.transform.size(height, width))
            self.top_shapes: tuple[tuple[int, ...], ...] = (data_shape, (self.batch_size,))[: len(param.top)]
        except InputError as error:
            raise InputError(f'layer "{self.name}" (Data): {error}') from None

    def __len__(self) -> int:
        return len(self.database)

    def batch(self, index: int, rows: slice = ALL) -> tuple[NDArray[np.float32], ...]:
        """Images and, if the layer has two tops, labels of batch `index`; depends only on seed, name and `index`.

        Args:
            rows: the rows of the batch to read.

        Returns:
            float32 (N, C, H, W) and float32 (N,) as in `top_shapes`, but only the rows asked for.

        Raises:
            InputError: a datum is damaged or of a size that doesn't fit; it names the database and the key.
        """
        wanted = self._epochs.rows(index, self.batch_size)[rows]
        draws = self._streams.rng(Purpose.TRANSFORM, index).random((self.batch_size, DRAWS))[rows]
        images = np.empty((len(wanted), *self.top_shapes[0][1:]), dtype=np.float32)
        labels = np.empty(len(images), dtype=np.float32)
        for i, (key, datum) in enumerate(self._datums(wanted)):
            image = self._image(key, datum)
            try:
                if (image.shape[2], *self.transform.size(*image.shape[:2])) != images.shape[1:]:
                    raise DataError(
                        "{} x {} x {}, where the first datum has {} x {} x {} (height, width, channels): "
                        "write them all in one size".format(*image.shape, *self.image_shape)
                    )
                self.transform(image, draws[i], images[i])
            except DataError as error:
                raise InputError(f'layer "{self.name}" (Data): {self._at(key, error)}') from None
            labels[i] = datum.label
        return (images, labels)[: len(self.top_shapes)]

    def names(self, index: int) -> list[str]:
        """The keys of batch `index`."""
        return [_text(key) for key, _ in self.database.read(self._epochs.rows(index, self.batch_size))]

    def labels(self, top: int) -> Iterator[tuple[str, float]]:
        """Key and label of every datum, for top 1, unless the database is too large to read it up front."""
        if top == 1 and self.database.size <= _SCANNED:
            rows = range(len(self.database))
            for start in rows[::_CHUNK]:
                for key, datum in self._datums(rows[start : start + _CHUNK]):
                    yield f'{self.database.path}, key "{_text(key)}"', datum.label

    def check(self) -> None:
        """Parse every datum, without decoding, unless the database is too large to read it up front.

        Raises:
            InputError: a datum is damaged; it names the layer, the database and the key.
        """
        try:
            for _ in self.labels(1):
                pass
        except InputError as error:
            raise InputError(f'layer "{self.name}" (Data): {error}') from None

    def _datums(self, rows: Sequence[int]) -> Iterator[tuple[bytes, pb.Datum]]:
        """Keys and Datum messages of rows."""
        for key, value in self.database.read(rows):
            try:
                yield key, pb.Datum.FromString(value)
            except DecodeError:
                raise self._at(key, "the value is not a Datum message, or it is damaged") from None

    def _image(self, key: bytes, datum: pb.Datum) -> NDArray[np.uint8] | NDArray[np.float32]:
        """A datum's pixels, (height, width, channels)."""
        shape: tuple[int, int, int] = (datum.channels, datum.height, datum.width)
        data: NDArray[np.uint8] = np.frombuffer(datum.data, dtype=np.uint8)
        if datum.encoded:
            try:
                if not data.size:
                    raise DataError("is empty")
                pixels, damage = read_bytes(data, self._color)
            except DataError as error:
                raise self._at(key, f"the encoded image {error}") from None
            if damage:
                note_damage(f'layer "{self.name}" (Data): {self._at(key, f"the encoded image is damaged: {damage}")}')
            return pixels
        values: NDArray[Any] = data if data.size else np.array(datum.float_data, dtype=np.float32)
        if min(shape) < 1 or values.size != shape[0] * shape[1] * shape[2]:
            raise self._at(key, "{} values for {} x {} x {} (channels, height, width)".format(values.size, *shape))
        image: NDArray[Any] = values.reshape(shape).transpose(1, 2, 0)
        return image

    def _at(self, key: bytes, error: object) -> InputError:
        return InputError(f'{self.database.path}, key "{_text(key)}": {error}')


def _text(key: bytes) -> str:
    return key.decode("utf-8", "backslashreplace")


def _open(options: pb.DataParameter, base_dir: Path | None) -> Lmdb | LevelDb:
    """The database of a DataParameter; raises InputError, also for options that can't be honoured."""
    for field in ("scale", "mean_file", "crop_size", "mirror"):
        if options.HasField(field):
            raise DataError(f"data_param.{field} is out of date: move it to transform_param {{ {field} }}")
    if not options.source:
        raise DataError("data_param.source, the folder of the database, is missing")
    if not options.batch_size:
        raise DataError("data_param.batch_size is missing or 0; it must be at least 1")
    folder = find(options.source, base_dir)
    database: Lmdb | LevelDb
    if options.backend == pb.DataParameter.LMDB:
        if (folder / "CURRENT").exists():
            raise DataError(f"{folder} is a LevelDB and data_param.backend is LMDB: write backend: LEVELDB")
        database = Lmdb(folder)
    else:
        if (folder / "data.mdb").exists():
            raise DataError(f"{folder} is an LMDB and data_param.backend is LEVELDB, the default: write backend: LMDB")
        database = LevelDb(folder)
    if not len(database):
        raise DataError(f"{database.path} is a database without entries")
    return database
