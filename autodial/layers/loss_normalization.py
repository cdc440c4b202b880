"""What Caffe's losses divide their sum by (LossParameter, LossLayer::GetNormalizer)."""

from __future__ import annotations

from torch import Tensor

from autodial.layers.base import Layer, LayerError
from autodial.proto import messages as pb


def normalization_mode(param: pb.LossParameter, default: str = "VALID") -> str:
    """The normalization that a LossParameter names, in the new or the old form; `default` where it names none.

    Returns:
        "VALID": labels that are not ignored; "FULL": all labels; "BATCH_SIZE": the rows of the batch; "NONE": 1.

    Raises:
        LayerError: both forms are set.
    """
    if param.HasField("normalize"):
        if param.HasField("normalization"):
            raise LayerError("loss_param sets both normalization and the old normalize: keep normalization")
        return "VALID" if param.normalize else "BATCH_SIZE"
    if not param.HasField("normalization"):
        return default
    name: str = pb.LossParameter.NormalizationMode.Name(param.normalization)
    return name


def normalizer(layer: Layer, mode: str, valid: Tensor, batch_size: int) -> Tensor | int:
    """The divisor, at least 1, for the whole batch.

    Args:
        layer: the loss.
        mode: as `normalization_mode` gives it.
        valid: says of each label here whether it counts.
        batch_size: how many rows are here.
    """
    if mode == "VALID":
        return layer.whole(valid.sum()).clamp(min=1)
    if mode == "FULL":
        return layer.whole(valid.numel())
    return layer.whole(batch_size) if mode == "BATCH_SIZE" else 1


def refuse_loss_param(param: pb.LayerParameter) -> None:
    """LayerError if a LayerParameter sets loss_param for a loss that always divides by the rows of the batch."""
    for field, _ in param.loss_param.ListFields():
        raise LayerError(f"loss_param.{field.name} does nothing in a {param.type} layer: remove it")
