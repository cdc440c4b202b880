"""pycaffe's Classifier."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autodial.caffe import io
from autodial.caffe.net import Net
from autodial.data.sequences import check_images
from autodial.errors import InputError
from autodial.proto.messages import TEST


class Classifier(Net):
    """A net that labels images.

    Args:
        model_file: prototxt with one Input layer, run in the TEST phase.
        pretrained_file: caffemodel.
        image_dims: (height, width) to which images are resized before crops are taken; None means the input's size.
        mean, input_scale, raw_scale, channel_swap: as in io.Transformer, for images (H, W, K) in RGB and [0, 1], as
            io.load_image returns them.

    Raises:
        InputError: as Net.
    """

    def __init__(
        self,
        model_file: str | os.PathLike[str],
        pretrained_file: str | os.PathLike[str],
        image_dims: Sequence[int] | None = None,
        mean: NDArray[Any] | None = None,
        input_scale: float | None = None,
        raw_scale: float | None = None,
        channel_swap: Sequence[int] | None = None,
    ) -> None:
        super().__init__(model_file, TEST, weights=pretrained_file)
        name = self.inputs[0]
        self.transformer = io.Transformer({name: self.blobs[name].shape})
        self.transformer.set_transpose(name, (2, 0, 1))
        if mean is not None:
            self.transformer.set_mean(name, mean)
        if input_scale is not None:
            self.transformer.set_input_scale(name, input_scale)
        if raw_scale is not None:
            self.transformer.set_raw_scale(name, raw_scale)
        if channel_swap is not None:
            self.transformer.set_channel_swap(name, channel_swap)
        self.crop_dims = np.array(self.blobs[name].shape[2:])
        self.image_dims = self.crop_dims if image_dims is None else np.array(image_dims)

    def predict(self, inputs: Sequence[NDArray[Any]], oversample: bool = True) -> NDArray[np.float32]:
        """Label images.

        Args:
            inputs: images (H, W, K).
            oversample: average over the crops at the four corners and the centre, and these mirrored; otherwise use the
                centre only.

        Returns:
            float32 (N, classes), the net's first output.

        Raises:
            TypeError: `inputs` is one image.
        """
        check_images(inputs, "predict")
        images = [io.resize_image(image, self.image_dims) for image in inputs]
        if oversample:
            crops = list(io.oversample(images, self.crop_dims))
        else:
            top, left = (self.image_dims - self.crop_dims) // 2
            height, width = self.crop_dims
            crops = [image[top : top + height, left : left + width] for image in images]
        name = self.inputs[0]
        rows: dict[str, Any] = {name: np.stack([self.transformer.preprocess(name, crop) for crop in crops])}
        scores = self.forward_all(**rows)[self.outputs[0]]
        if oversample:
            averaged: NDArray[np.float32] = scores.reshape(len(images), 10, -1).mean(1)
            return averaged
        return scores


class Detector:
    """pycaffe's Detector, which is not offered: use Classifier on the windows."""

    def __init__(self, *arguments: object, **options: object) -> None:
        raise InputError("Detector is not offered: cut the windows out with numpy and label them with Classifier")
