"""The paper's inference step (section 3.2): the Dial layers' statistics over whole data sets, with fixed parameters.

The input of a Dial layer depends on the statistics of the Dial layers before it. So statistics are computed in the
net's order: those of a layer when all layers before it are final, each domain normalized by its own predictor. Layers
of equal depth, such as the branches of an inception block, don't depend on each other and share a pass.

A pass starts where the pass before it stopped, if the blobs alive there fit in memory for all samples. Otherwise it
starts at the last place where they did, or at the inputs. With K depths and everything in memory, this amounts to one
pass over the net and its inputs; with nothing in memory, to K passes over the inputs and about K / 2 over the net. The
statistics are the same either way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor

from autodial.errors import InputError, WorkError
from autodial.evaluation.statistics import LayerChange, Moments, check_without_source, store_statistics
from autodial.layers.batch_norm import BatchNorm
from autodial.layers.dial import DomainAlignment, DomainName, domain_names
from autodial.net.net import Net
from autodial.proto import Weights
from autodial.proto import messages as pb
from autodial.wording import counted

__all__ = [
    "MEMORY",
    "Batches",
    "LayerChange",
    "Progress",
    "Recalibration",
    "recalibrate",
    "with_statistics",
]

MEMORY = 2**31
"""Bytes of memory for blobs kept from one pass to the next, by default."""


class Batches(Protocol):
    """A domain's samples in batches, the same in each iteration: a list, for example.

    A batch holds a float32 tensor (n, ...) for each input that the Dial layers depend on; n may differ from the net's.
    """

    def __len__(self) -> int:
        """The number of batches."""

    def __iter__(self) -> Iterator[Mapping[str, Tensor]]:
        """Every batch, from the first one."""


@dataclass(frozen=True)
class Progress:
    """Where a recalibration is.

    Attributes:
        number: number of the pass in progress, from 1.
        passes: the number of passes.
        domain: the domain whose batches are being run.
        share: the finished share of the whole work, in multiplications, in [0, 1].
    """

    number: int
    passes: int
    domain: DomainName
    share: float


@dataclass(frozen=True)
class Recalibration:
    """What a recalibration did.

    Attributes:
        layers: every Dial layer, in the net's order.
        source_samples: number of the source's samples, of all sources together; None if the source was left as it was.
        target_samples: number of the target's samples.
        changed: share of the target's samples whose most probable class differs from that with the stored statistics,
            in [0, 1]; None without logits, or if a layer had stored nothing.
        passes: number of passes over the net or parts of it.
    """

    layers: tuple[LayerChange, ...]
    source_samples: int | None
    target_samples: int
    changed: float | None
    passes: int


@torch.no_grad()
def recalibrate(
    net: Net,
    source: Batches | Sequence[Batches] | None,
    target: Batches,
    *,
    logits: str | None = None,
    memory: int = MEMORY,
    report: Callable[[Progress], None] | None = None,
) -> Recalibration:
    """Compute the statistics of a net's Dial layers over both domains, and store them with normalizer 1.

    Per layer and channel, with mean m and variance v of all source and all target values, the source's predictor gets
    (paper, appendix A, with the whole data sets in place of the batch)

        mean_st = alpha * m_s + (1 - alpha) * m_t
        var_st = alpha * (v_s + (m_s - mean_st)^2) + (1 - alpha) * (v_t + (m_t - mean_st)^2)

    and the target's predictor the mirrored statistics. With several sources each predictor gets those of the mixture
    that its layer states (`autodial.layers.DomainAlignment`). Sums are in float64, and the order of the samples makes
    no difference. The variances lack the factor m / (m - 1) of training's moving averages: it corrects for small
    batches, and without it the target's statistics at alpha 1 do not depend on the source.

    Nothing else in the net changes, and nothing at all after an exception.

    Args:
        net: a TEST net with its weights. BatchNorm layers keep their stored statistics, Dropout does nothing.
        source: the source's samples, or a list of every source's samples for a net that aligns several; None leaves
            the statistics of the source's predictor as they are, which requires that every alpha is 1.
        target: the target's samples.
        logits: a blob of scores, (n, classes, ...), to compare the most probable classes before and after; this costs
            one more pass over the target.
        memory: bytes of main memory for blobs kept from one pass to the next, computed for batches of the net's size.
        report: called after each batch.

    Raises:
        InputError: a net without Dial layers, in TRAIN phase, that aligns another number of sources, or with layers
            that use a batch's own statistics or share stored ones; an alpha below 1, or nothing stored, without a
            source; no samples; no such logits; an input that a batch lacks.
        WorkError: values that are not finite reach a Dial layer, or the logits.
    """
    run = _Run(net, source, target, logits, memory, report or (lambda progress: None))
    saved = [(dial, dial.test_stats, [blob.clone() for blob in dial.blobs]) for dial in run.dials.values()]
    try:
        return run.run()
    except BaseException:
        for dial, _, blobs in saved:
            for blob, old in zip(dial.blobs, blobs, strict=True):
                blob.copy_(old)
        raise
    finally:
        for dial, domain, _ in saved:
            dial.test_stats = domain


def with_statistics(weights: Weights, net: Net) -> Weights:
    """A copy of weights with the statistics of a net's Dial layers; everything else is unchanged.

    Args:
        weights: weights that hold at least the net's layers.
    """
    dials = _dial_layers(net)
    return Weights(
        weights.name,
        [
            replace(
                layer,
                blobs=[layer.blobs[0], *(blob.cpu().numpy() for blob in dials[layer.name].blobs[1:])],
                legacy=layer.legacy & {0},
            )
            if layer.name in dials
            else layer
            for layer in weights.layers
        ],
    )


class _Steps:
    """The order in which a net's layers can run as the Dial layers' statistics become final.

    A Dial layer's depth is the largest number of Dial layers on a path to it. A layer's step is the number of depths
    that must be final before it can run; a Dial layer's step is its depth + 1.

    Attributes:
        depths: the depth of every Dial layer, by name.
        count: number of depths.
        inputs: blobs to feed.
    """

    def __init__(self, net: Net, logits: str | None) -> None:
        self._net, self._logits = net, logits
        messages = net.param.layer
        needed = set() if logits is None else {logits}
        order: list[int] = []
        for i in range(len(messages) - 1, -1, -1):
            if isinstance(net.layer(messages[i].name), DomainAlignment) or not needed.isdisjoint(messages[i].top):
                order.append(i)
                needed.difference_update(messages[i].top)
                needed.update(messages[i].bottom)

        self.depths: dict[str, int] = {}
        self._steps: dict[int, int] = {}
        """Steps by number of layer, in the net's order, of the layers that a Dial layer or the logits depend on."""
        self._spans: list[tuple[str, int, int]] = []
        """Each blob with the steps of the layer that makes it and of the layer that reads it."""
        made: dict[str, int] = {}
        for i in reversed(order):
            message = messages[i]
            step = max((made[bottom] for bottom in message.bottom), default=0)
            if isinstance(net.layer(message.name), DomainAlignment):
                self.depths[message.name] = step
                step += 1
            self._steps[i] = step
            self._spans += [(bottom, made[bottom], step) for bottom in message.bottom]
            made.update((top, step) for top in message.top)
        self.count = 1 + max(self.depths.values())
        if logits is not None:
            self._spans.append((logits, made[logits], self.count + 1))
        read = {name for name, _, _ in self._spans}
        self.inputs = [name for name in net.inputs if name in read]

    def kept(self, step: int) -> list[str]:
        """The blobs that layers up to `step` make and later layers read."""
        return list(dict.fromkeys(name for name, made, read in self._spans if made <= step < read))

    def batch_bytes(self, step: int) -> int:
        """Bytes of the `kept` blobs for a batch of the net's size."""
        return sum(4 * prod(self._net.blob_shapes[name]) for name in self.kept(step))

    def work(self, after: int | None, step: int) -> int:
        """The approximate number of multiplications in `run` for a batch of the net's size."""
        total = 0
        for message in (self._net.param.layer[i] for i in self._between(after, step)):
            weights = sum(blob.numel() for blob in self._net.layer(message.name).blobs)
            for shape in (self._net.blob_shapes[top] for top in message.top):
                # Convolution and InnerProduct use each weight once per row and position of the top
                total += prod(shape) + prod((*shape[:1], *shape[2:])) * weights
        return total

    def run(self, values: dict[str, Tensor], after: int | None, step: int) -> None:
        """Run the layers behind step `after`, or from the inputs on, up to `step`; `values` holds the blobs.

        Layers may run out of the net's order: Split layers make sure that every blob has only one reader.
        """
        for i in self._between(after, step):
            message = self._net.param.layer[i]
            if self._net.layer(message.name).is_data:
                continue
            self._net.run_layer(i, values)
            for bottom in message.bottom:
                if bottom not in message.top and bottom != self._logits:
                    del values[bottom]

    def _between(self, after: int | None, step: int) -> list[int]:
        return [i for i, own in self._steps.items() if own <= step and (after is None or own > after)]


class _Pass(NamedTuple):
    """A pass over the layers behind step `after` (None: from the inputs) up to `step`; `keep`: keep its last blobs."""

    after: int | None
    step: int
    keep: bool


@dataclass
class _Samples:
    """A domain's batches, and what a recalibration finds in them.

    Attributes:
        kept: for each batch, the blobs at the end of the last pass that kept them, on the CPU.
        count: number of samples.
        old_classes, classes: for each batch, the most probable classes with the stored and with the new statistics.
    """

    domain: DomainName
    batches: Batches
    kept: list[dict[str, Tensor]] = field(default_factory=list)
    count: int = 0
    old_classes: list[Tensor] = field(default_factory=list)
    classes: list[Tensor] = field(default_factory=list)


class _Run:
    """One recalibration."""

    def __init__(
        self,
        net: Net,
        source: Batches | Sequence[Batches] | None,
        target: Batches,
        logits: str | None,
        memory: int,
        report: Callable[[Progress], None],
    ) -> None:
        self.dials = _dial_layers(net)
        _check_net(net, logits)
        if source is None:
            check_without_source(self.dials)
        self._net, self._logits, self._report = net, logits, report
        self._device = next(iter(self.dials.values())).mean.device
        self._bottoms = {message.name: message.bottom[0] for message in net.param.layer if message.name in self.dials}
        self._target = _Samples("target", target)
        sources = _of_sources(source, self.dials)
        self._domains = [*(_Samples(domain, batches) for domain, batches in sources.items()), self._target]
        for samples in self._domains:
            if not len(samples.batches):
                raise InputError(f"the {samples.domain} has no samples to compute statistics of")
        self._steps = _Steps(net, logits)
        if not self._steps.inputs:
            raise InputError("the Dial layers depend on no input of the net")
        self._passes = self._plan(memory)
        self._total = sum(
            self._work(number, samples) * len(samples.batches)
            for number in range(len(self._passes))
            for samples in self._running(number)
        )
        self._done = 0

    def _plan(self, memory: int) -> list[_Pass]:
        """A pass for each depth, and one from the last depth to the logits."""
        batches = sum(len(samples.batches) for samples in self._domains)
        last = self._steps.count - (self._logits is None)
        plan: list[_Pass] = []
        after = None
        for step in range(last + 1):
            keep = step < last and self._steps.batch_bytes(step) * batches <= memory
            plan.append(_Pass(after, step, keep))
            after = step if keep else after
        return plan

    def _running(self, number: int) -> list[_Samples]:
        """The domains that a pass runs."""
        return self._domains if self._passes[number].step < self._steps.count else [self._target]

    def _work(self, number: int, samples: _Samples) -> int:
        """The number of multiplications in a pass for a batch of the net's size."""
        predicting = self._steps.work(None, self._steps.count) if self._predicts_first(number, samples) else 0
        return predicting + self._steps.work(self._passes[number].after, self._passes[number].step)

    def _predicts_first(self, number: int, samples: _Samples) -> bool:
        """Whether this pass, which has the inputs, also finds the classes with the stored statistics."""
        return number == 0 and samples is self._target and self._logits is not None

    def run(self) -> Recalibration:
        had_statistics = not self._net.without_statistics()
        changes: dict[str, LayerChange] = {}
        for number, pass_ in enumerate(self._passes):
            names = [name for name, depth in self._steps.depths.items() if depth == pass_.step]
            moments: dict[str, dict[DomainName, Moments]] = {name: {} for name in names}
            for samples in self._running(number):
                for name in names:
                    moments[name][samples.domain] = Moments()
                self._run_pass(number, samples, {name: moments[name][samples.domain] for name in names})
            changes.update((name, store_statistics(name, self.dials[name], moments[name])) for name in names)
        changed = None
        if self._logits is not None and had_statistics:
            differ = torch.cat(self._target.old_classes) != torch.cat(self._target.classes)
            changed = differ.double().mean().item()
        return Recalibration(
            layers=tuple(changes[name] for name in self.dials),
            source_samples=sum(samples.count for samples in self._domains[:-1]) if self._domains[1:] else None,
            target_samples=self._target.count,
            changed=changed,
            passes=len(self._passes),
        )

    def _run_pass(self, number: int, samples: _Samples, moments: Mapping[str, Moments]) -> None:
        """Run a pass over a domain, and add the inputs of Dial layers to their moments."""
        for dial in self.dials.values():
            dial.test_stats = samples.domain
        pass_ = self._passes[number]
        for index, batch in enumerate(samples.batches if pass_.after is None else samples.kept):
            values = self._inputs(batch) if pass_.after is None else self._on_device(batch)
            if number == 0:
                samples.count += len(values[self._steps.inputs[0]])
            if self._predicts_first(number, samples):
                samples.old_classes.append(self._classes(self._run_layers(index, values, None, self._steps.count)))
            values = self._run_layers(index, values, pass_.after, pass_.step)
            for name, so_far in moments.items():
                so_far.add(values[self._bottoms[name]])
            if pass_.step == self._steps.count:
                samples.classes.append(self._classes(values))
                self._check_finite(values)
            if pass_.keep:
                # replaces the batch's earlier blobs, so that memory never holds both for all batches
                samples.kept[index : index + 1] = [{name: values[name].cpu() for name in self._steps.kept(pass_.step)}]
            self._done += self._work(number, samples)
            self._report(Progress(number + 1, len(self._passes), samples.domain, self._done / self._total))

    def _inputs(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        for name in self._steps.inputs:
            if name not in batch:
                raise InputError(f'blob "{name}", which the Dial layers depend on, must be fed')
        return self._on_device({name: batch[name] for name in self._steps.inputs})

    def _on_device(self, blobs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: blob.to(self._device) for name, blob in blobs.items()}

    def _run_layers(self, index: int, values: Mapping[str, Tensor], after: int | None, step: int) -> dict[str, Tensor]:
        """The blobs that are left after running steps on batch `index`; `values` does not change."""
        self._net.seed_pass(index)
        values = dict(values)
        self._steps.run(values, after, step)
        return values

    def _classes(self, values: Mapping[str, Tensor]) -> Tensor:
        assert self._logits is not None
        return values[self._logits].argmax(1).cpu()

    def _check_finite(self, values: Mapping[str, Tensor]) -> None:
        assert self._logits is not None
        if not values[self._logits].amax(1).isfinite().all():
            raise WorkError(
                f'the scores in blob "{self._logits}" are not finite (NaN or infinite): the weights are damaged, or '
                "from a training that diverged"
            )


def _of_sources(
    source: Batches | Sequence[Batches] | None, dials: Mapping[str, DomainAlignment]
) -> dict[DomainName, Batches]:
    """The samples of each source, by its name."""
    if source is None:
        return {}
    number = max(dial.sources for dial in dials.values())
    name = next((name for name, dial in dials.items() if dial.sources != number), None)
    if name is not None:
        raise InputError(f'layer "{name}" aligns {counted(dials[name].sources, "source")}, and others {number}')
    given = [cast(Batches, source)] if number == 1 else list(cast(Sequence[Batches], source))
    if len(given) != number:
        raise InputError(f"the net aligns {number} sources: give the samples of each, not of {len(given)}")
    return dict(zip(domain_names(number)[:-1], given, strict=True))


def _dial_layers(net: Net) -> dict[str, DomainAlignment]:
    return {name: layer for name in net.layer_names if isinstance(layer := net.layer(name), DomainAlignment)}


def _check_net(net: Net, logits: str | None) -> None:
    """Refuse a net whose Dial layers don't each have stored statistics that hold for every batch."""
    if net.phase != pb.TEST:
        raise InputError("a net in TRAIN phase normalizes with the batch's statistics: build it for the TEST phase")
    if logits is not None and logits not in net.blob_shapes:
        raise InputError(f'the net has no blob "{logits}" to take the logits from')
    dials = _dial_layers(net)
    if not dials:
        raise InputError("the net has no Dial layer, so there are no statistics to compute")
    for name in net.layer_names:
        layer = net.layer(name)
        if isinstance(layer, DomainAlignment | BatchNorm) and layer.use_global_stats is False:
            raise InputError(
                f'layer "{name}" ({layer.type_name}) has use_global_stats: false, so that it never uses stored '
                "statistics: set it to true, or leave it out, in the TEST phase"
            )
    owners: dict[int, str] = {}
    for name, dial in dials.items():
        owner = owners.setdefault(dial.mean.data_ptr(), name)
        if owner != name:
            raise InputError(
                f'layers "{owner}" and "{name}" share their statistics, which only one of them can have: remove the '
                "names in their param fields"
            )
