"""Caffe's losses with class labels: SoftmaxWithLoss, InfogainLoss, MultinomialLogisticLoss, HingeLoss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from autodial.data.paths import find
from autodial.errors import InputError
from autodial.layers.base import Layer, LayerContext, LayerError, Shape, register
from autodial.layers.labels import check_label_shape, class_labels
from autodial.layers.loss_normalization import normalization_mode, normalizer, refuse_loss_param
from autodial.layers.shares import Rows
from autodial.proto import messages as pb
from autodial.proto import read_blob

LOG_FLT_MIN = math.log(torch.finfo(torch.float32).tiny)
LOG_THRESHOLD = 1e-20
"""Caffe's kLOG_THRESHOLD, the least probability that InfogainLoss and MultinomialLogisticLoss take a logarithm of."""


@register("SoftmaxWithLoss")
class SoftmaxWithLoss(Layer):
    """Cross-entropy of softmax scores with class labels (softmax_loss_layer.cpp).

    Bottoms: scores (N, classes, ...) and labels, one per position: (N,), (N, 1), (N, H, W) or (N, 1, H, W). Tops: the
    loss, a scalar, and the probabilities (no gradient flows through them) if asked for.

    -log(max(p, FLT_MIN)) of each label's probability is summed and divided, by at least 1. As in Caffe the gradient
    ignores the floor under p.

    Args:
        axis: the class axis.
        ignore_label: a label that adds nothing; None if all count.
        normalization: what the sum is divided by: "VALID", labels not ignored; "FULL", all labels; "BATCH_SIZE", N;
            "NONE", 1.
        probabilities: whether there is a second top.
    """

    bottoms = (2, 2)
    tops = (1, 2)
    is_loss = True
    no_gradient = (1,)
    options = ("loss_param", "softmax_param")
    rows = Rows.SUMMED_FIRST
    reads_scores = True
    reads_labels = True

    def __init__(
        self,
        *,
        axis: int = 1,
        ignore_label: int | None = None,
        normalization: str = "VALID",
        probabilities: bool = False,
    ) -> None:
        super().__init__()
        self.axis, self.ignore_label, self.normalization = axis, ignore_label, normalization
        self.probabilities = probabilities

    @classmethod
    def from_caffe(cls, context: LayerContext) -> SoftmaxWithLoss:
        param = context.param.loss_param
        return cls(
            axis=context.param.softmax_param.axis,
            ignore_label=param.ignore_label if param.HasField("ignore_label") else None,
            normalization=normalization_mode(param),
            probabilities=context.num_tops > 1,
        )

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        scores, labels = bottom_shapes
        check_label_shape(scores, labels, self.axis)
        return [(), scores] if self.probabilities else [()]

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        target, valid = class_labels(labels, scores, self.axis, self.ignore_label)
        log_softmax = F.log_softmax(scores, self.axis)
        log_p = log_softmax.gather(self.axis, target.unsqueeze(self.axis)).squeeze(self.axis)
        loss = 0 - _floored(log_p, LOG_FLT_MIN).where(valid, 0).sum()  # like Caffe's, never -0
        loss = loss / normalizer(self, self.normalization, valid, _outer_size(scores, self.axis))
        return (loss, log_softmax.detach().exp()) if self.probabilities else loss


@register("InfogainLoss")
class InfogainLoss(Layer):
    """Cross-entropy of softmax scores with a row of weights for each label (infogain_loss_layer.cpp).

    Bottoms: scores (N, classes, ...); labels as in SoftmaxWithLoss; and the infogain matrix H, classes x classes values
    of any shape, if it does not come from a file. Tops: as in SoftmaxWithLoss.

    -sum over k of H[label, k] log(max(p_k, 1e-20)) is summed and divided, by at least 1. With the unit matrix this is
    SoftmaxWithLoss. As in Caffe the gradient ignores the floor under p.

    Args:
        infogain: H, of classes * classes values; None if it is the third bottom.
        axis, ignore_label, normalization, probabilities: as in SoftmaxWithLoss.
    """

    bottoms = (2, 3)
    tops = (1, 2)
    is_loss = True
    no_gradient = (1, 2)
    options = ("loss_param", "softmax_param")
    rows = Rows.SUMMED_FIRST
    reads_scores = True
    reads_labels = True
    infogain: Tensor | None

    def __init__(
        self,
        infogain: Tensor | None = None,
        *,
        axis: int = 1,
        ignore_label: int | None = None,
        normalization: str = "VALID",
        probabilities: bool = False,
    ) -> None:
        super().__init__()
        self.axis, self.ignore_label, self.normalization = axis, ignore_label, normalization
        self.probabilities = probabilities
        self.register_buffer("infogain", infogain, persistent=False)

    @classmethod
    def from_caffe(cls, context: LayerContext) -> InfogainLoss:
        param, loss_param = context.param.infogain_loss_param, context.param.loss_param
        if context.param.softmax_param.HasField("axis"):
            raise LayerError("softmax_param.axis does nothing here: set infogain_loss_param.axis")
        if loss_param.HasField("normalize"):
            raise LayerError("loss_param.normalize is the old name: use normalization")
        if (len(context.bottom_shapes) > 2) == param.HasField("source"):
            raise LayerError("the infogain matrix is either the file infogain_loss_param.source or the third bottom")
        return cls(
            _read_matrix(param.source, context.base_dir) if param.HasField("source") else None,
            axis=param.axis,
            ignore_label=loss_param.ignore_label if loss_param.HasField("ignore_label") else None,
            normalization=normalization_mode(loss_param),
            probabilities=context.num_tops > 1,
        )

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        scores, labels, *third = bottom_shapes
        check_label_shape(scores, labels, self.axis)
        classes = scores[self.axis]
        infogain = third[0] if self.infogain is None else tuple(self.infogain.shape)
        if math.prod(infogain) != classes**2:
            raise LayerError(f"the infogain matrix of shape {infogain} must have {classes} x {classes} values")
        return [(), scores] if self.probabilities else [()]

    def forward(self, scores: Tensor, labels: Tensor, infogain: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        infogain = self.infogain if infogain is None else infogain.detach()
        assert infogain is not None, "an InfogainLoss without a matrix takes it as a third bottom"
        classes = scores.shape[self.axis]
        target, valid = class_labels(labels, scores, self.axis, self.ignore_label)
        log_softmax = F.log_softmax(scores, self.axis)
        weights = infogain.reshape(classes, classes)[target].movedim(-1, self.axis)
        log_p = _floored(log_softmax, math.log(LOG_THRESHOLD))
        loss = 0 - (weights * log_p).sum(self.axis).where(valid, 0).sum()
        loss = loss / normalizer(self, self.normalization, valid, _outer_size(scores, self.axis))
        return (loss, log_softmax.detach().exp()) if self.probabilities else loss


@register("MultinomialLogisticLoss")
class MultinomialLogisticLoss(Layer):
    """-log(max(p, 1e-20)) of each label's probability p, averaged over the rows (multinomial_logistic_loss_layer.cpp).

    Bottoms: probabilities (N, ...), all axes but the first together are the classes; labels, one per row. Top: a
    scalar. As in Caffe the floor under p stands in the gradient too, -1 / max(p, 1e-20), instead of making it 0.
    """

    bottoms = (2, 2)
    is_loss = True
    no_gradient = (1,)
    rows = Rows.SUMMED
    reads_scores = True
    backward_reads_bottoms = True

    @classmethod
    def from_caffe(cls, context: LayerContext) -> MultinomialLogisticLoss:
        refuse_loss_param(context.param)
        return cls()

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        _check_row_labels(*bottom_shapes)
        return [()]

    def forward(self, probabilities: Tensor, labels: Tensor) -> Tensor:
        rows = probabilities.reshape(probabilities.shape[0], -1)
        target, _ = class_labels(labels, rows, 1, None)
        p = rows.gather(1, target.unsqueeze(1))
        floored = p.detach().clamp(min=LOG_THRESHOLD)
        # The last term is 0, and has the gradient.
        return (0 - (floored.log() + (p - p.detach()) / floored).sum()) / self.whole(rows.shape[0])


@register("HingeLoss")
class HingeLoss(Layer):
    """Hinge loss of one against all (hinge_loss_layer.cpp).

    Bottoms: scores (N, ...), all axes but the first together are the classes; labels, one per row. Top: a scalar, the
    sum of max(0, 1 - t x) ("L1") or of its square ("L2") over rows and classes, divided by N; t is 1 for the label's
    class and -1 for the others.

    Args:
        norm: "L1" or "L2".
    """

    bottoms = (2, 2)
    is_loss = True
    no_gradient = (1,)
    rows = Rows.SUMMED
    reads_scores = True

    def __init__(self, norm: str = "L1") -> None:
        super().__init__()
        self.norm = norm

    @classmethod
    def from_caffe(cls, context: LayerContext) -> HingeLoss:
        refuse_loss_param(context.param)
        return cls(pb.HingeLossParameter.Norm.Name(context.param.hinge_loss_param.norm))

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        _check_row_labels(*bottom_shapes)
        return [()]

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        rows = scores.reshape(scores.shape[0], -1)
        target, _ = class_labels(labels, rows, 1, None)
        sign = torch.ones_like(rows).scatter(1, target.unsqueeze(1), -1)
        margins = F.relu(1 + sign * rows)
        return (margins if self.norm == "L1" else margins.square()).sum() / self.whole(rows.shape[0])


def _read_matrix(source: str, base_dir: Path | None) -> Tensor:
    try:
        return torch.from_numpy(read_blob(find(source, base_dir)))
    except InputError as error:
        raise LayerError(f"infogain_loss_param.source: {error}") from error


def _check_row_labels(scores: Shape, labels: Shape) -> None:
    """LayerError unless there is one label for each row of the scores."""
    if not scores:
        raise LayerError("the scores must have at least 1 axis, not be a scalar")
    check_label_shape((scores[0], math.prod(scores[1:])), labels, 1)


def _floored(log_p: Tensor, floor: float) -> Tensor:
    """max(log_p, floor) with the gradient of log_p."""
    return log_p + (log_p.clamp(min=floor) - log_p).detach()


def _outer_size(scores: Tensor, axis: int) -> int:
    """All that stands before the class axis is the batch: N C for axis 2 of (N, C, classes)."""
    return math.prod(scores.shape[: axis % scores.ndim])
