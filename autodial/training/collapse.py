"""The alarm for the failure that an entropy loss invites: every target image gets the same class.

A net that answers one class, whatever it sees, has an entropy loss of zero. The mean of the target's predictions tells
this failure from success: predictions should be confident, while their mean is spread over the classes. A mean that is
itself confident is a collapse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from autodial.layers.base import canonical_axis
from autodial.layers.shares import Shares
from autodial.net.net import Net
from autodial.proto import messages as pb
from autodial.training.monitor import CollapseRow

SHARE = 1 / 3
"""A mean prediction with less than this share of the entropy of the source's labels counts as collapsed.

Balanced labels have an entropy of log(classes). A third of that means that the number of classes in use is the cube
root: 2.2 of 10, 3.1 of 31, 10 of 1,000; with 2 classes, one holds 94%. Real targets stay above it: 90% in one of two
classes gives 0.47. Frequencies that fall to a hundredth from the first class to the last give 0.71 for 10 classes, and
more for more classes. The threshold is relative to the source, so that a class that is rare in both domains, with 3%,
is no collapse either. The mean can't distinguish a target in which a class is even rarer from one in which the class
got lost: someone who knows the images must judge such an alarm.
"""
_REARMED = 1.2 * SHARE
"""The diversity above which a collapse is over: values near the threshold then raise no repeated alarms."""
_SAMPLES, _PER_CLASS = 1000, 20
"""The number of samples in an average: a thousand, or 20 per class.

A relative frequency of 0.1 then has an error of 0.01, so that two classes at 90 to 10 stay four deviations from the
alarm. The expected entropy is (classes - 1) / (2 * samples) < 0.03 too low.
"""


class CollapseWatch:
    """Follows the mean prediction in front of every EntropyLoss layer that takes part in a train net's loss.

    It keeps exponential averages of the target's predictions and of the source's labels, which are those that a
    SoftmaxWithLoss layer with the same number of classes reads. They stay on the net's device, and only `read` waits.

    Args:
        net: a train net, on the device where it stays. Processes that share out its batch call `read` together.
    """

    def __init__(self, net: Net) -> None:
        self._means = [_MeanPrediction(net, message) for message in net.param.layer if _takes_part(net, message)]
        self._alarmed: set[str] = set()

    def read(self) -> dict[str, float]:
        """Diversity by layer: the entropy of the mean prediction as a share of that of the source's labels.

        A layer is missing until enough samples were seen, and where all labels of the source are the same. This call
        waits for the device.
        """
        return {mean.layer: mean.diversity for mean in self._means if mean.read()}

    def alarms(self, iteration: int) -> list[CollapseRow]:
        """A row for each layer that has newly collapsed, by the values last `read`."""
        rows = []
        for mean in self._means:
            if mean.diversity < SHARE and mean.layer not in self._alarmed:
                self._alarmed.add(mean.layer)
                rows.append(CollapseRow(iteration, mean.layer, mean.classes, *mean.in_use))
            elif mean.diversity > _REARMED:
                self._alarmed.discard(mean.layer)
        return rows


class _MeanPrediction:
    """The running means of one EntropyLoss layer's predictions and of the source's labels.

    Attributes:
        layer: its name.
        classes: their number.
        in_use: exp(entropy) of the mean prediction and of the labels, as last read.
        diversity: as last read; infinite before.
    """

    def __init__(self, net: Net, message: pb.LayerParameter) -> None:
        self.layer: str = message.name
        shape = net.blob_shapes[message.bottom[0]]
        axis = _class_axis(message, shape)
        self.classes = shape[axis]
        self.in_use = math.nan, math.nan
        self.diversity = math.inf
        samples = max(_SAMPLES, _PER_CLASS * self.classes)
        device = next((param.tensor.device for param in net.params), torch.device("cpu"))
        self._passes = samples * self.classes / math.prod(shape)
        self._seen = torch.zeros((), device=device)
        # an exponential average with this share of the newest batch varies as the plain mean of `_passes` batches
        newest = min(1.0, 2 / (self._passes + 1))
        shares = net.layer(message.name).shares
        self._target = _RunningMean(self.classes, newest, device, shares)
        net.layer(message.name).register_forward_pre_hook(partial(self._see_target, axis))
        labelled = next((loss for loss in net.param.layer if _reads_labels(net, loss, self.classes)), None)
        shares = None if labelled is None else net.layer(labelled.name).shares
        self._source = _RunningMean(self.classes, newest, device, shares)
        if labelled is not None:
            net.layer(labelled.name).register_forward_pre_hook(self._see_source)

    @torch.no_grad()
    def _see_target(self, axis: int, layer: nn.Module, bottoms: tuple[Tensor, ...]) -> None:
        self._target.add(bottoms[0].softmax(axis).movedim(axis, -1).reshape(-1, self.classes))
        self._seen.add_(1)

    @torch.no_grad()
    def _see_source(self, layer: nn.Module, bottoms: tuple[Tensor, ...]) -> None:
        self._source.add(bottoms[1].reshape(-1, 1) == self._source.classes)

    def read(self) -> bool:
        """Update `in_use` and `diversity`; False if there are too few samples yet, or only one class in the source."""
        if float(self._seen) < self._passes:
            return False
        target, source = self._target.entropy(), self._source.entropy()
        if source == 0:
            return False
        self.in_use = math.exp(target), math.exp(source)
        self.diversity = target / source
        return True


class _RunningMean:
    """An exponential average of rows of class probabilities; all classes are equal before the first row.

    With `shares`, this process holds its part of the whole batch's average.
    """

    def __init__(self, classes: int, newest: float, device: torch.device, shares: Shares | None) -> None:
        self.classes = torch.arange(classes, device=device)
        self._newest = newest
        self._sums = torch.zeros(classes, device=device)
        self._shares = shares

    def add(self, rows: Tensor) -> None:
        self._sums.lerp_(rows.mean(0, dtype=torch.float32), self._newest)

    def entropy(self) -> float:
        """The entropy of the average, in nats."""
        sums = self._sums
        if self._shares is not None:
            sums = self._shares.whole(sums * (self._shares.here / self._shares.rows))
        sums = sums.double().cpu()
        p = sums / sums.sum() if sums.any() else torch.full_like(sums, 1 / len(sums))
        return float(torch.special.entr(p).sum())


def _takes_part(net: Net, message: pb.LayerParameter) -> bool:
    return message.type == "EntropyLoss" and any(top in net.loss_weights for top in message.top)


def _reads_labels(net: Net, message: pb.LayerParameter, classes: int) -> bool:
    """Whether a layer is a SoftmaxWithLoss of that many classes."""
    if message.type != "SoftmaxWithLoss":
        return False
    shape = net.blob_shapes[message.bottom[0]]
    return shape[_class_axis(message, shape)] == classes


def _class_axis(message: pb.LayerParameter, shape: Sequence[int]) -> int:
    return canonical_axis(message.softmax_param.axis, len(shape))
