"""Caffe's HDF5Output."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, register
from autodial.layers.shares import Rows


@register("HDF5Output")
class HDF5Output(Layer):
    """Writes its bottoms to an HDF5 file as the float32 datasets `data` and `label` (hdf5_output_layer.cpp).

    Both have 4 axes, as in Caffe: axes of length 1 stand behind those of a bottom of fewer. The first pass replaces the
    file, later ones, at which Caffe stops, append their rows; it is closed in between. It needs h5py.

    Args:
        path: the file, in the working directory if relative.
    """

    bottoms = (2, 2)
    tops = (0, 0)
    full_precision = True  # numpy has no bfloat16
    no_gradient = (0, 1)
    rows = Rows.ALL_IN_ONE_PROCESS

    def __init__(self, path: Path) -> None:
        super().__init__()
        try:
            import h5py  # type: ignore[import-untyped]
        except ImportError:
            raise LayerError("HDF5Output needs h5py: pip install h5py") from None
        self._open = h5py.File
        self.path = path
        self._mode = "w"

    @classmethod
    def from_caffe(cls, context: LayerContext) -> HDF5Output:
        name = context.param.hdf5_output_param.file_name
        if not name:
            raise LayerError("hdf5_output_param needs file_name")
        return cls(Path(name))

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        data, label = bottom_shapes
        for shape in bottom_shapes:
            if not 1 <= len(shape) <= 4:
                raise LayerError(f"HDF5Output needs bottoms of 1 to 4 axes, not {shape}")
        if data[0] != label[0]:
            raise LayerError(f"data {data} and label {label} must have the same number of rows")
        return []

    def forward(self, data: Tensor, label: Tensor) -> tuple[()]:
        try:
            with self._open(self.path, self._mode) as file:
                for name, blob in (("data", data), ("label", label)):
                    rows = blob.detach().reshape(*blob.shape, *(1,) * (4 - blob.ndim)).float().cpu().numpy()
                    if self._mode == "w":
                        file.create_dataset(name, data=rows, maxshape=(None, *rows.shape[1:]))
                    else:
                        file[name].resize(len(file[name]) + len(rows), axis=0)
                        file[name][-len(rows) :] = rows
        except OSError as error:
            raise LayerError(f"can't write {self.path}: {error}") from error
        self._mode = "a"
        return ()
