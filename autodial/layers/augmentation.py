"""DataAugmentation in the TEST phase, and Mean, of FlowNet 2.0: what is done to images before a net sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from autodial.data.paths import find
from autodial.layers.base import TRAIN, Layer, LayerContext, LayerError, Shape, Stored, check_size, register
from autodial.layers.resample import Matrices, Pair, along_both_axes, check_weights
from autodial.layers.shares import Rows
from autodial.proto import messages as pb
from autodial.proto import read_blob
from autodial.wording import counted


@register("DataAugmentation")
class DataAugmentation(Layer):
    """A crop from the middle, less a mean, as in the TEST phase (data_augmentation_layer.cu of FlowNet 2.0).

    (N, C, H, W) -> (N, C, H', W'). A crop begins at ((H - H') / 2, (W - W') / 2), which may lie between pixels, and is
    interpolated linearly; no place lies beyond H - 1.05 and W - 1.05, so that the last pixel is never met exactly.

    With `recompute_mean`, the mean is what training has stored: blobs 0, how many batches it has met, (1, 1, 1, 1); 1,
    the mean image (1, C, H', W'), used with `mean_per_pixel`; and 2, its mean of each channel (1, C, 1, 1), used
    without. A mean image of another size counts as its mean of each channel. Until `recompute_mean` batches were met,
    the fork changes the mean with each batch it sees, in the TEST phase, too, which is refused here. Without
    `recompute_mean`, `mean` is subtracted, three numbers. Blob 0 is there in any case.

    Random augmentation is not computed, neither in the TRAIN phase nor with `augment_during_test`, which does nothing
    without a crop. No gradient flows through the layer, as in the fork.

    Args:
        shape: of the bottom when the net is built, (N, C, H, W).
        crop: (H', W'); None for no crop.
        recompute_mean: batches after which the stored mean stays as it is; 0 for none stored.
        mean_per_pixel: whether the stored mean is an image.
        mean: three numbers to subtract, without a stored mean; None for none.
    """

    bottoms = (1, 2)
    tops = (1, 2)
    no_gradient = (0, 1)
    in_place = False
    options = ("augmentation_param", "coeff_schedule_param")
    rows = Rows.INDEPENDENT

    count: Tensor
    mean_image: Tensor
    channel_mean: Tensor
    fixed_mean: Tensor

    def __init__(
        self,
        shape: Shape,
        *,
        crop: Pair | None = None,
        recompute_mean: int = 0,
        mean_per_pixel: bool = True,
        mean: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        if len(shape) != 4:
            raise LayerError(f"needs a bottom of 4 axes (N, C, H, W), not {shape}")
        channels, size = shape[1], crop or (shape[2], shape[3])
        self.channels, self.crop = channels, crop
        self.recompute_mean, self.mean_per_pixel = recompute_mean, mean_per_pixel
        self.has_fixed_mean = mean is not None
        self.register_buffer("count", torch.zeros(1, 1, 1, 1))
        if recompute_mean:
            check_size("the mean image", (1, channels, *size))
            self.register_buffer("mean_image", torch.zeros(1, channels, *size))
            self.register_buffer("channel_mean", torch.zeros(1, channels, 1, 1))
        if mean is not None:
            if len(mean) != channels:
                raise LayerError(
                    f"augmentation_param.mean has 3 values for bottom {shape}, which has {channels} channels"
                )
            self.register_buffer("fixed_mean", torch.tensor(list(mean)).view(1, channels, 1, 1), persistent=False)

    @classmethod
    def from_caffe(cls, context: LayerContext) -> DataAugmentation:
        param = context.param.augmentation_param
        if context.phase == TRAIN:
            raise LayerError("its random augmentation in the TRAIN phase is not supported: take the net's TEST phase")
        if len(context.bottom_shapes) > 1 or context.num_tops > 1:
            raise LayerError("a second bottom or top, which holds random augmentation, is not supported: remove it")
        crop = _crop(param)
        if crop is not None and param.augment_during_test:
            random = [field.name for field, _ in param.ListFields() if field.message_type is not None]
            if random:
                raise LayerError(
                    f"augmentation_param.augment_during_test with {random[0]}, which augments at random in the TEST "
                    "phase, is not supported: remove one of them"
                )
        mean = list(param.mean) or None
        if mean and (len(mean) != 3 or param.mean_per_pixel or param.recompute_mean):
            raise LayerError(
                "augmentation_param.mean needs 3 values, mean_per_pixel: false and no recompute_mean: otherwise the "
                "fork ignores it"
            )
        return cls(
            context.bottom_shapes[0],
            crop=crop,
            recompute_mean=param.recompute_mean,
            mean_per_pixel=param.mean_per_pixel,
            mean=mean,
        )

    @property
    def blobs(self) -> tuple[Tensor, ...]:
        return (self.count, self.mean_image, self.channel_mean) if self.recompute_mean else (self.count,)

    def taken(self, arrays: Sequence[Stored | None]) -> Sequence[Stored | None]:
        """The blobs of a caffemodel in the shapes that they have here (DataAugmentationLayer::adjust_blobs)."""
        if not self.recompute_mean:
            return arrays[:1]
        if len(arrays) != 3 or any(each is None for each in arrays):
            return arrays
        count, image, mean = (np.asarray(each, np.float32) for each in arrays)
        if image.ndim != 4 or mean.size != self.channels or image.shape[:2] != (1, self.channels) or not image.size:
            return arrays
        shape = tuple(self.mean_image.shape)
        if not self.mean_per_pixel:
            image = np.broadcast_to(mean.reshape(1, -1, 1, 1), shape).copy()
        elif image.shape != shape:
            of_channels = image.mean((2, 3), dtype=np.float64, keepdims=True).astype(np.float32)
            image = np.broadcast_to(of_channels, shape).copy()
        return [count, image, mean]

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        shape = bottom_shapes[0]
        if len(shape) != 4 or shape[1] != self.channels:
            raise LayerError(f"needs a bottom of 4 axes (N, {self.channels}, H, W), not {shape}")
        size = (shape[2], shape[3])
        if self.crop is not None:
            if self.crop[0] > size[0] or self.crop[1] > size[1]:
                raise LayerError(
                    f"augmentation_param.crop_height {self.crop[0]} and crop_width {self.crop[1]} are more than bottom "
                    f"{shape} has"
                )
            size = self.crop
            check_weights(shape, size)
        if self.recompute_mean and self.mean_per_pixel and tuple(self.mean_image.shape[2:]) != size:
            height, width = self.mean_image.shape[2:]
            raise LayerError(f"the mean image has {height} x {width} pixels, and does not fit bottom {shape}")
        return [(*shape[:2], *size)]

    def weights(self, size: Pair) -> Matrices:
        """What of each row and column of a bottom (H, W) is in those of the crop, (H', H) and (W', W)."""
        assert self.crop is not None
        made = []
        for length, wanted in zip(size, self.crop, strict=True):
            half = np.float32(0.5)
            start = -half * np.float32(wanted) + half * np.float32(length)
            last = np.float32(length) - np.float32(1.05)
            place = np.clip(np.arange(wanted, dtype=np.float32) + start, np.float32(0), np.maximum(last, np.float32(0)))
            distance = np.abs(np.arange(length, dtype=np.float32) - place[:, None])
            made.append(np.maximum(1 - distance, np.float32(0)))
        return made[0], made[1]

    def mean(self) -> Tensor | None:
        """What is subtracted, (1, C, 1, 1) or (1, C, H', W'); None for nothing.

        Raises:
            LayerError: the mean is not yet settled.
        """
        if not self.recompute_mean:
            return self.fixed_mean if self.has_fixed_mean else None
        met = float(self.count)
        if not met >= self.recompute_mean:
            raise LayerError(
                f"its mean is of {met:g} batches, and below {self.recompute_mean}, augmentation_param.recompute_mean, "
                "the fork changes it with each batch it sees, which is not supported: give weights of a trained net"
            )
        return self.mean_image if self.mean_per_pixel else self.channel_mean

    @torch.no_grad()
    def forward(self, bottom: Tensor) -> Tensor:
        mean = self.mean()
        if self.crop is not None:
            bottom = along_both_axes(bottom, self.weights((bottom.shape[2], bottom.shape[3])))
        return bottom if mean is None else bottom - mean


@register("Mean")
class Mean(Layer):
    """A mean added or subtracted (mean_layer.cpp of FlowNet 2.0): tops of the bottoms' shapes (N, C, H, W).

    output_scale * (input_scale * x + mean_scale * mean), or - with SUBTRACT. The mean is that of `file`, whose channels
    take turns, as do the numbers of `value` without a file. No gradient flows through the layer, as in the fork.

    Args:
        mean: (channels, height, width), or (channels, 1, 1) for numbers.
        subtract: whether it is subtracted.
        input_scale, mean_scale, output_scale: factors.
    """

    bottoms = (1, None)
    tops = (1, None)
    options = ("mean_param",)
    rows = Rows.INDEPENDENT

    average: Tensor

    def __init__(
        self,
        mean: NDArray[np.float32],
        *,
        subtract: bool = False,
        input_scale: float = 1.0,
        mean_scale: float = 1.0,
        output_scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.register_buffer("average", torch.from_numpy(np.array(mean, np.float32)), persistent=False)
        self.subtract = subtract
        self.input_scale, self.mean_scale, self.output_scale = input_scale, mean_scale, output_scale

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Mean:
        param = context.param.mean_param
        if not param.HasField("operation"):
            raise LayerError("mean_param needs operation, ADD or SUBTRACT")
        if context.num_tops != len(context.bottom_shapes):
            raise LayerError(
                f"{counted(len(context.bottom_shapes), 'bottom')} must have as many tops, not {context.num_tops}"
            )
        if param.HasField("file"):
            if param.value:
                raise LayerError("mean_param states both file and value: keep one of them")
            path = find(param.file, context.base_dir)
            mean = read_blob(path)
            if mean.ndim < 3 or mean.shape[:-3] not in ((), (1,)) or 0 in mean.shape:
                raise LayerError(f"mean_param.file: {path} holds a blob of shape {mean.shape}, not one mean image")
            mean = mean.reshape(mean.shape[-3:])
        elif param.value:
            mean = np.array(param.value, np.float32).reshape(-1, 1, 1)
        else:
            raise LayerError("mean_param needs file or value")
        return cls(
            mean,
            subtract=param.operation == pb.MeanParameter.SUBTRACT,
            input_scale=param.input_scale,
            mean_scale=param.mean_scale,
            output_scale=param.output_scale,
        )

    @classmethod
    def without_gradient(cls, bottoms: int) -> set[int]:
        return set(range(bottoms))

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        channels, *size = self.average.shape
        for shape in bottom_shapes:
            if len(shape) != 4 or shape[1] % channels:
                raise LayerError(f"the mean's channels, {channels}, do not divide those of bottom {shape}")
            if size != [1, 1] and list(shape[2:]) != size:
                raise LayerError(f"the mean has {size[0]} x {size[1]} pixels, and does not fit bottom {shape}")
        return list(bottom_shapes)

    def scaled_mean(self, channels: int) -> Tensor:
        """What is added before the last factor, (channels, height, width) or (channels, 1, 1)."""
        mean = self.average.repeat(channels // len(self.average), 1, 1) * self.mean_scale
        return -mean if self.subtract else mean

    @torch.no_grad()
    def forward(self, *bottoms: Tensor) -> tuple[Tensor, ...]:
        return tuple(
            self.output_scale * (self.input_scale * bottom + self.scaled_mean(bottom.shape[1])) for bottom in bottoms
        )


def _crop(param: Any) -> Pair | None:
    """(height, width), if they are given."""
    stated = [field for field in ("crop_height", "crop_width") if param.HasField(field)]
    if len(stated) == 1:
        raise LayerError(
            f"augmentation_param.{stated[0]} alone does nothing: give crop_height and crop_width, or neither"
        )
    if not stated:
        return None
    if min(param.crop_height, param.crop_width) < 1:
        raise LayerError(
            f"augmentation_param.crop_height and crop_width must be positive, not {param.crop_height} and "
            f"{param.crop_width}"
        )
    return param.crop_height, param.crop_width
