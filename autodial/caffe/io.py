"""pycaffe's io: images as float arrays (H, W, K) in RGB, and arrays as protobuf messages and back."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from autodial.caffe.proto import caffe_pb2 as caffe_pb2  # scripts ask for it as io.caffe_pb2
from autodial.data.sequences import check_images
from autodial.errors import InputError
from autodial.proto import messages as pb

Array = NDArray[Any]
Image = NDArray[np.float32]

_LUMA = np.array([0.2125, 0.7154, 0.0721], np.float32)
"""The weights of R, G and B in scikit-image's grey value, which pycaffe uses."""
_AS_STORED = cv2.IMREAD_COLOR | cv2.IMREAD_ANYDEPTH | cv2.IMREAD_IGNORE_ORIENTATION


# --- messages


def blobproto_to_array(blob: pb.BlobProto, return_diff: bool = False) -> Array:
    """The values (or gradients) of a BlobProto, in its shape, or (num, channels, height, width) for an old file.

    Raises:
        ValueError: the shape is missing, or does not fit the number of values.
    """
    values = np.array(blob.diff if return_diff else blob.data)
    legacy = ("num", "channels", "height", "width")
    if any(blob.HasField(field) for field in legacy):
        return values.reshape([getattr(blob, field) for field in legacy])
    return values.reshape(list(blob.shape.dim))


def array_to_blobproto(arr: ArrayLike, diff: ArrayLike | None = None) -> pb.BlobProto:
    """A BlobProto with the values, and gradients if given, of an array of any shape."""
    values = np.asarray(arr)
    blob = pb.BlobProto()
    blob.shape.dim.extend(values.shape)
    blob.data.extend(values.astype(float).ravel().tolist())
    if diff is not None:
        blob.diff.extend(np.asarray(diff, float).ravel().tolist())
    return blob


def arraylist_to_blobprotovector_str(arraylist: Iterable[ArrayLike]) -> bytes:
    """A serialized BlobProtoVector of arrays."""
    blobs = [array_to_blobproto(array) for array in arraylist]
    data: bytes = pb.BlobProtoVector(blobs=blobs).SerializeToString()
    return data


arraylist_to_blobprotovecor_str = arraylist_to_blobprotovector_str
"""pycaffe's spelling."""


def blobprotovector_str_to_arraylist(data: bytes) -> list[Array]:
    """The arrays in a serialized BlobProtoVector."""
    return [blobproto_to_array(blob) for blob in pb.BlobProtoVector.FromString(data).blobs]


def array_to_datum(arr: Array, label: int | None = None) -> pb.Datum:
    """A Datum with an image (C, H, W): as bytes if the array is uint8, else as floats.

    Raises:
        ValueError: the array doesn't have three axes.
    """
    if arr.ndim != 3:
        raise ValueError(f"a datum holds an array of shape (channels, height, width), not {arr.shape}")
    datum = pb.Datum(channels=arr.shape[0], height=arr.shape[1], width=arr.shape[2])
    if arr.dtype == np.uint8:
        datum.data = arr.tobytes()
    else:
        datum.float_data.extend(arr.astype(float).ravel().tolist())
    if label is not None:
        datum.label = int(label)
    return datum


def datum_to_array(datum: pb.Datum) -> Array:
    """The image (C, H, W) in a Datum, without the label: uint8, or float64 where the Datum holds floats.

    Raises:
        ValueError: the Datum holds an encoded image, or its shape does not fit the number of values.
    """
    if datum.encoded:
        raise ValueError("the datum holds an encoded image: decode datum.data with cv2.imdecode")
    values = np.frombuffer(datum.data, np.uint8) if datum.data else np.array(datum.float_data, float)
    return values.reshape(datum.channels, datum.height, datum.width)


# --- images


def load_image(filename: str | os.PathLike[str], color: bool = True) -> Image:
    """Read an image file; the EXIF orientation is ignored.

    Args:
        filename: an image in any format that OpenCV reads.
        color: whether to return three channels, RGB, or one, whatever the file holds.

    Returns:
        float32 (H, W, 3) or (H, W, 1) in [0, 1].

    Raises:
        InputError: the file can't be read.
    """
    try:
        data = np.fromfile(filename, np.uint8)
    except OSError as error:
        raise InputError(f"{filename} can't be read: {error.strerror}") from None
    image: Any = cv2.imdecode(data, _AS_STORED) if data.size else None
    if image is None:
        raise InputError(f"{filename} is not an image that OpenCV can read, or it is damaged")
    largest = np.iinfo(image.dtype).max if np.issubdtype(image.dtype, np.integer) else 1
    rgb: Image = image[:, :, ::-1].astype(np.float32) / np.float32(largest)
    return rgb if color else (rgb @ _LUMA)[:, :, np.newaxis]


def resize_image(im: Array, new_dims: Iterable[int], interp_order: int = 1) -> Image:
    """Resize an image as pycaffe does, without antialiasing.

    Images with 1 or 3 channels are resized as by scikit-image: pixels are areas, and values beyond the border are the
    image's least value, so that enlarged images are darker at their borders. Other images are resized as by
    `scipy.ndimage.zoom`: pixels are points, the corners stay in place, and integers are rounded.

    Args:
        im: (H, W, K).
        new_dims: (height, width).
        interp_order: 0 nearest, 1 bilinear; for K other than 1 and 3 also 2 to 5, splines of this order.

    Returns:
        float32 (height, width, K).

    Raises:
        ValueError: any other interp_order; also one whose result depends on the version of scikit-image.
    """
    if interp_order not in range(6):
        raise ValueError(f"interp_order must be one of 0 to 5, not {interp_order}")
    height, width = (int(length) for length in new_dims)
    image = np.asarray(im)
    if image.shape[2] not in (1, 3):
        return _zoomed(image, height, width, interp_order)
    if interp_order > 1:
        raise ValueError(
            f"interp_order {interp_order} of an image with 1 or 3 channels gives other values from one version of "
            "scikit-image to the next: use 0 or 1, or call skimage.transform.resize yourself"
        )
    image = image.astype(np.float32)
    if interp_order == 1 and height <= image.shape[0] and width <= image.shape[1]:
        # This never reads beyond the border, and is much faster. OpenCV drops the axis of a single channel.
        resized = cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)
        return np.reshape(resized, (height, width, image.shape[2]))
    # The least value becomes 0, which zoom uses beyond the border.
    least = image.min()
    enlarged: Image = _zoomed(image - least, height, width, interp_order, mode="grid-constant", grid_mode=True) + least
    return enlarged


def _zoomed(image: Array, height: int, width: int, order: int, **options: Any) -> Image:
    from scipy.ndimage import zoom  # type: ignore[import-untyped]

    factors = (height / image.shape[0], width / image.shape[1], 1)
    zoomed: Image = zoom(image, factors, order=order, **options).astype(np.float32)
    return zoomed


def oversample(images: Iterable[Array], crop_dims: Iterable[int]) -> Image:
    """Crops at the four corners and the centre of each image, and these five mirrored.

    Args:
        images: (H, W, K) each, all of one size.
        crop_dims: (height, width).

    Returns:
        float32 (10 N, height, width, K), the ten crops of the first image first.

    Raises:
        TypeError: `images` is one image.
    """
    check_images(images, "oversample")
    crops: list[Array] = []
    crop_height, crop_width = (int(length) for length in crop_dims)
    for image in images:
        height, width = image.shape[:2]
        bottom, right = height - crop_height, width - crop_width
        places = [(0, 0), (0, right), (bottom, 0), (bottom, right), (bottom // 2, right // 2)]
        five = [image[y : y + crop_height, x : x + crop_width] for y, x in places]
        crops += five + [crop[:, ::-1] for crop in five]
    return np.stack(crops).astype(np.float32)


class Transformer:
    """Turns images into arrays for a net's inputs, and back.

    `preprocess` converts to float32 and resizes to the input; then it transposes, swaps channels, multiplies by
    raw_scale, subtracts the mean and multiplies by input_scale, as far as each is set.

    Args:
        inputs: shapes of the net's inputs, (N, C, H, W), by name.
    """

    def __init__(self, inputs: Mapping[str, Sequence[int]]) -> None:
        self.inputs = {name: tuple(shape) for name, shape in inputs.items()}
        self.transpose: dict[str, tuple[int, ...]] = {}
        self.channel_swap: dict[str, tuple[int, ...]] = {}
        self.raw_scale: dict[str, float] = {}
        self.mean: dict[str, Array] = {}
        self.input_scale: dict[str, float] = {}

    def preprocess(self, in_: str, data: Array) -> Image:
        """Turn an image into an array for a net's input.

        Args:
            in_: the input's name.
            data: (H, W, K); the array is not changed.

        Returns:
            float32 (C, H, W), or the order of axes that `set_transpose` sets.

        Raises:
            ValueError: the net has no such input.
        """
        shape = self._shape(in_)
        image = np.asarray(data, np.float32)
        if image.shape[:2] != shape[2:]:
            image = resize_image(image, shape[2:])
        if in_ in self.transpose:
            image = image.transpose(self.transpose[in_])
        if in_ in self.channel_swap:
            image = image[list(self.channel_swap[in_])]
        if in_ in self.raw_scale:
            image = image * np.float32(self.raw_scale[in_])
        if in_ in self.mean:
            image = image - self.mean[in_].astype(np.float32)
        if in_ in self.input_scale:
            image = image * np.float32(self.input_scale[in_])
        return image

    def deprocess(self, in_: str, data: Array) -> Array:
        """Undo `preprocess`, except for the resizing; takes and raises the same."""
        self._shape(in_)
        image = np.array(data).squeeze()
        if in_ in self.input_scale:
            image = image / self.input_scale[in_]
        if in_ in self.mean:
            image = image + self.mean[in_]
        if in_ in self.raw_scale:
            image = image / self.raw_scale[in_]
        if in_ in self.channel_swap:
            image = image[np.argsort(self.channel_swap[in_])]
        if in_ in self.transpose:
            image = image.transpose(np.argsort(self.transpose[in_]))
        return image

    def set_transpose(self, in_: str, order: Sequence[int]) -> None:
        """Set the order of the axes: (2, 0, 1) makes (C, H, W) of (H, W, C).

        Raises:
            ValueError: the length is not the number of the input's axes without the first.
        """
        if len(order) != len(self._shape(in_)) - 1:
            raise ValueError(f'{len(order)} axes are given for "{in_}", whose images have {len(self.inputs[in_]) - 1}')
        self.transpose[in_] = tuple(order)

    def set_channel_swap(self, in_: str, order: Sequence[int]) -> None:
        """Set the order of the channels, the first axis after `set_transpose`: (2, 1, 0) turns RGB into BGR.

        Raises:
            ValueError: the length is not the number of the input's channels.
        """
        if len(order) != self._shape(in_)[1]:
            raise ValueError(f'{len(order)} channels are given for "{in_}", which has {self.inputs[in_][1]}')
        self.channel_swap[in_] = tuple(order)

    def set_raw_scale(self, in_: str, scale: float) -> None:
        """Set a factor that is applied before the mean: 255 turns [0, 1] into [0, 255]."""
        self._shape(in_)
        self.raw_scale[in_] = scale

    def set_mean(self, in_: str, mean: Array) -> None:
        """Set the mean to subtract: one value per channel, (C,), or an image (C, H, W), resized to the input's size.

        Raises:
            ValueError: another number of channels or axes.
        """
        channels, *size = self._shape(in_)[1:]
        mean = np.asarray(mean)
        if mean.ndim == 1:
            mean = mean[:, np.newaxis, np.newaxis]
        elif mean.ndim == 2:
            mean = mean[np.newaxis]
        if mean.ndim != 3 or mean.shape[0] != channels:
            raise ValueError(f'a mean of shape {mean.shape} does not fit "{in_}" of shape {self.inputs[in_]}')
        if mean.shape[1:] not in ((1, 1), tuple(size)):
            mean = resize_image(mean.transpose(1, 2, 0), size).transpose(2, 0, 1)
        self.mean[in_] = mean

    def set_input_scale(self, in_: str, scale: float) -> None:
        """Set a factor that is applied after the mean."""
        self._shape(in_)
        self.input_scale[in_] = scale

    def _shape(self, name: str) -> tuple[int, ...]:
        if name not in self.inputs:
            raise ValueError(f'"{name}" is not an input of the net; the inputs are {list(self.inputs)}')
        return self.inputs[name]
