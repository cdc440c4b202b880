"""The alarm for the failure that an entropy loss invites: every target image gets the same class.

A net that answers one class, whatever it sees, has no entropy left to pay for. The mean of the target's predictions
tells this from success: decided predictions whose mean is spread over the classes are what is wanted, and a mean that
is itself decided is the collapse.
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
"""Collapsed is a mean prediction with less than this share of the entropy of the source's labels.

Of balanced labels, whose entropy is log(classes), a third means that no more classes are in use than a cube root: 2.2
of 10, 3.1 of 31, 10 of 1,000, and of 2 classes that one holds 94%. Real targets stay above it: 90% in one of two
classes are 0.47, and frequencies that fall off to a hundredth from the first class to the last are 0.71 for 10 classes
and more for more. As it is a share of the source's entropy, a rare class, 3% of both domains, is no collapse either.
The mean can't tell a target in which a class is rarer than that from one whose class got lost: such an alarm is to be
judged by whoever knows the images.
"""
_REARMED = 1.2 * SHARE
"""Where a collapse counts as over, so that a value about the threshold does not raise the alarm again and again."""
_SAMPLES, _PER_CLASS = 1000, 20
"""Samples that are averaged over: a thousand, or 20 per class.

They leave a relative frequency of 0.1 an error of 0.01, so that two classes at 90 to 10 stay four deviations from the
alarm, and take (classes - 1) / (2 * samples) < 0.03 off the expected entropy.
"""


class CollapseWatch:
    """Follows the mean prediction in front of every EntropyLoss layer that takes part in a train net's loss.

    Exponential averages of the target's predictions and of the source's labels, as the SoftmaxWithLoss layer of as many
    classes reads them, are kept on the net's device: nothing waits for it but `read`.

    Args:
        net: a train net, on the device where it stays. Where its batch is shared out, all processes `read` together.
    """

    def __init__(self, net: Net) -> None:
        self._means = [_MeanPrediction(net, message) for message in net.param.layer if _takes_part(net, message)]
        self._alarmed: set[str] = set()

    def read(self) -> dict[str, float]:
        """Diversity by layer: the entropy of the mean prediction as a share of that of the source's labels.

        A layer is left out until there were enough samples, or where the source's labels are all the same. Waits for
        the device.
        """
        return {mean.layer: mean.diversity for mean in self._means if mean.read()}

    def alarms(self, iteration: int) -> list[CollapseRow]:
        """The layers that, as last `read`, have collapsed since they were last found in order."""
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
        """Bring `in_use` and `diversity` up to date; False where there is nothing to tell yet."""
        if float(self._seen) < self._passes:
            return False
        target, source = self._target.entropy(), self._source.entropy()
        if source == 0:
            return False
        self.in_use = math.exp(target), math.exp(source)
        self.diversity = target / source
        return True


class _RunningMean:
    """An exponential average of rows of class probabilities; before the first, all classes are equal.

    With `shares` it is this process's part of the whole batch's.
    """

    def __init__(self, classes: int, newest: float, device: torch.device, shares: Shares | None) -> None:
        self.classes = torch.arange(classes, device=device)
        self._newest = newest
        self._sums = torch.zeros(classes, device=device)
        self._shares = shares

    def add(self, rows: Tensor) -> None:
        self._sums.lerp_(rows.mean(0, dtype=torch.float32), self._newest)

    def entropy(self) -> float:
        """Of the average, in nats."""
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
