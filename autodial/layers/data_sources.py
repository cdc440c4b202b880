"""Caffe's layers that read data, as layers around the readers of autodial.data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from autodial.data.datum_data import DatumData
from autodial.data.hdf5_data import HDF5Data
from autodial.data.image_data import ImageData
from autodial.data.memory_data import MemoryData
from autodial.data.source import Source
from autodial.layers.base import Layer, LayerContext, Shape, register
from autodial.layers.shares import Rows


class SourceLayer(Layer):
    """A layer whose batches come from files. `source` makes them, and whoever runs the net feeds them to it."""

    bottoms = (0, 0)
    is_data = True
    options = ("transform_param",)
    rows = Rows.MADE
    reader: ClassVar[Any]
    """Class of the source."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.source = source

    @classmethod
    def from_caffe(cls, context: LayerContext) -> SourceLayer:
        return cls(cls.reader(context.param, phase=context.phase, seed=context.seed, base_dir=context.base_dir))

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        return list(self.source.top_shapes)


@register("ImageData")
class ImageDataLayer(SourceLayer):
    """Images (N, C, H, W) and labels (N,) from a list of image files (image_data_layer.cpp), both float32."""

    tops = (2, 2)
    reader = ImageData


@register("Data")
class DataLayer(SourceLayer):
    """Images (N, C, H, W) and, with two tops, labels (N,) from an LMDB or LevelDB (data_layer.cpp), both float32."""

    tops = (1, 2)
    fork_fields = ("data_param.cursor",)
    reader = DatumData


@register("HDF5Data")
class HDF5DataLayer(SourceLayer):
    """For each top, rows (N, ...) of the dataset of its name in HDF5 files (hdf5_data_layer.cpp), float32."""

    tops = (1, None)
    reader = HDF5Data


@register("MemoryData")
class MemoryDataLayer(Layer):
    """Data (N, C, H, W) and labels (N,) that a program sets with `source.set` (memory_data_layer.cpp), both float32."""

    bottoms = (0, 0)
    tops = (2, 2)
    is_data = True
    options = ("transform_param",)
    rows = Rows.MADE

    def __init__(self, source: MemoryData) -> None:
        super().__init__()
        self.source = source

    @classmethod
    def from_caffe(cls, context: LayerContext) -> MemoryDataLayer:
        return cls(MemoryData(context.param))

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        return list(self.source.top_shapes)
