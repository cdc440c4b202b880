"""Exact statistics for a torch module's alignment and batch normalization layers, over all images of its domains.

The input of a layer depends on the statistics of the layers before it, so they are computed one layer after the other
(paper, section 3.2), with the layers before it final. If the activations of all images fit in memory, all images run as
one batch, and each layer's statistics are computed when that batch reaches it. Otherwise one pass per layer runs the
images in the loaders' batches, each only as far as that layer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.lazy import LazyModuleMixin
from torch.optim.swa_utils import AveragedModel
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader

from autodial.converters.torch_modules import is_batch_norm, join_batches
from autodial.errors import InputError, WorkError
from autodial.evaluation.recalibrate import MEMORY, Recalibration
from autodial.evaluation.statistics import LayerChange, Moments, check_without_source, store_statistics
from autodial.layers import DomainAlignment
from autodial.layers.dial import DomainName, domain_names

_log = logging.getLogger(__name__)

_WORKSPACE = 2
"""Memory for all that is alive at once, in units of the largest input and output of one layer: a guess."""
_RECALIBRATED = "_autodial_recalibrated"
"""The attribute of an AveragedModel that holds `n_averaged` as it was at the last recalibration."""


@dataclass(frozen=True)
class ModuleRecalibration(Recalibration):
    """What a recalibration of a torch module did.

    Attributes:
        layers: every DomainAlignment layer that eval mode runs, in the order in which they run.
        changed: None.
        batch_norms: names of the BatchNorm layers whose statistics were computed.
    """

    batch_norms: tuple[str, ...]


@torch.no_grad()
def recalibrate(
    net: nn.Module,
    source: Iterable[Any] | Sequence[Iterable[Any]] | None,
    target: Iterable[Any],
    *,
    memory: int = MEMORY,
) -> ModuleRecalibration:
    """Compute the statistics of a module's normalization layers exactly, over all images, with fixed weights.

    This is the paper's inference step for a trained module, and what averaged weights (SWA, EMA) need:
    torch.optim.swa_utils.update_bn knows only one domain, and averages the statistics of batches. Each image counts
    once, in eval mode, whatever the loaders' batches and order.

    Per DomainAlignment layer, source and target get the mixed statistics of both domains (the formula is that of
    `autodial.evaluation.recalibrate.recalibrate`). A BatchNorm layer gets the mean and the biased variance of all
    images of all domains. Afterwards stored statistics weigh as much as one batch of further training. Nothing else
    changes, and nothing at all after an exception.

        averaged = torch.optim.swa_utils.AveragedModel(net)
        ...
        recalibrate(averaged, source_loader, target_loader)

    Args:
        net: an `AutoDIAL`, the module inside, an AveragedModel of either, or any module with batch normalization; it is
            called with one argument. Its mode does not matter, and stays.
        source: batches of the source's images, such as a DataLoader. A list or tuple holds the images first, and maybe
            labels; anything else is the net's input. Use no random augmentation, and no drop_last. None: no images,
            which requires that every alpha is 1; the source's statistics stay. For layers with statistics of several
            sources, a list of such batches, one for each source.
        target: batches of the target's images, likewise.
        memory: bytes for the images and activations of one pass over everything; beyond that, there is one pass per
            layer, with the images kept if they fit.

    Returns:
        what changed.

    Raises:
        InputError: no normalization layer with stored statistics, a layer that runs twice for a batch or not for each
            batch, loaders that are empty or can't be iterated again, loaders for another number of sources than the
            layers have statistics of, or an alpha below 1 without a source.
        WorkError: values that are not finite reach a layer.
    """
    layers = _layers(net)
    if source is None:
        check_without_source({name: layer for name, layer in layers.items() if isinstance(layer, DomainAlignment)})
    domains = [*_source_images(source, layers), _Images("target", target)]
    modes = {module: module.training for module in net.modules()}
    saved = [(buffer, buffer.clone()) for layer in layers.values() for buffer in layer.buffers(recurse=False)]
    chosen = {layer: layer.test_stats for layer in layers.values() if isinstance(layer, DomainAlignment)}
    net.eval()
    try:
        with torch.compiler.set_stance("force_eager"):
            result = _Run(net, layers, domains, memory, saved).run()
    except BaseException:
        _restore(saved)
        raise
    finally:
        for layer, domain in chosen.items():
            layer.test_stats = domain
        for module, training in modes.items():
            module.training = training
    for module in net.modules():
        if isinstance(module, AveragedModel):
            setattr(module, _RECALIBRATED, int(module.n_averaged))
    return result


def warn_of_averaged(net: nn.Module) -> None:
    """Warn if a module has averaged weights (torch's AveragedModel) without statistics of their own."""
    for module in net.modules():
        if not isinstance(module, AveragedModel) or module.n_averaged <= 1:
            continue
        if getattr(module, _RECALIBRATED, None) != int(module.n_averaged) and _tracked(module):
            whose = "averaged, too" if module.use_buffers else "those of the last weights that were averaged"
            _log.warning(
                "The weights are averages, but the normalization statistics are %s: call "
                "autodial.converters.recalibrate(net, source, target) before evaluating or exporting the net",
                whose,
            )


@dataclass
class _Images:
    """A domain's images.

    Attributes:
        domain: the domain.
        loader: what the user gave.
        kept: its batches, if they are kept in memory.
        count: number of images.
    """

    domain: DomainName
    loader: Iterable[Any]
    kept: list[Any] | None = None
    count: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.loader, Iterator):
            raise InputError(f"`{self.domain}` can be iterated only once: give a DataLoader, or a list of batches")
        if isinstance(self.loader, DataLoader) and self.loader.drop_last:
            _log.warning("`%s` has drop_last=True, which leaves out some images", self.domain)

    def batches(self, device: torch.device) -> Iterator[Any]:
        """The net's inputs, on a device."""
        for batch in self.loader if self.kept is None else self.kept:
            images = batch[0] if isinstance(batch, (list, tuple)) and self.kept is None else batch
            # copies, because a net may change its input in place, and these batches are run again
            yield pytree.tree_map(lambda leaf: leaf.to(device, copy=True) if isinstance(leaf, Tensor) else leaf, images)


class _Reached(BaseException):
    """Ends a forward pass at the layer whose input is wanted; user code must not catch it as an Exception."""


class _NotOneBatch(BaseException):
    """All images can't run as one batch: their shapes differ, or a layer does not have them along the first axis."""


@dataclass
class _Run:
    """One recalibration of a net in eval mode."""

    net: nn.Module
    layers: Mapping[str, nn.Module]
    domains: Sequence[_Images]
    memory: int
    saved: Sequence[tuple[Tensor, Tensor]]
    changes: list[LayerChange] = field(default_factory=list)
    batch_norms: list[str] = field(default_factory=list)

    def run(self) -> ModuleRecalibration:
        self.device = next(iter(next(iter(self.layers.values())).buffers())).device
        order, bytes_per_image = self._try_out()
        input_bytes = self._keep_inputs()
        passes = 1
        total = sum(images.count for images in self.domains)
        if input_bytes is None or 2 * input_bytes + _WORKSPACE * bytes_per_image * total > self.memory:
            passes = self._layer_by_layer(order)
        else:
            try:
                self._all_at_once(order)
            except (_NotOneBatch, InputError, torch.OutOfMemoryError):
                _restore(self.saved)
                passes = self._layer_by_layer(order)
        counts = {images.domain: images.count for images in self.domains}
        return ModuleRecalibration(
            layers=tuple(self.changes),
            source_samples=sum(counts.values()) - counts["target"] if len(counts) > 1 else None,
            target_samples=counts["target"],
            changed=None,
            passes=passes,
            batch_norms=tuple(self.batch_norms),
        )

    def _try_out(self) -> tuple[list[str], float]:
        """The layers in the order in which they run, and bytes per image of the largest input and output of a layer.

        Runs the first batch of each domain.
        """
        orders: list[list[str]] = []
        largest = 0.0
        for images in self.domains:
            order: list[str] = []
            sizes: list[int] = []
            batch = next(images.batches(self.device), None)
            if batch is None:
                raise InputError(f"`{images.domain}` has no images to compute statistics of")
            count = _count(batch, images.domain)
            with ExitStack() as stack:
                for name, layer in self.layers.items():
                    stack.callback(layer.register_forward_pre_hook(_noting(order, name)).remove)
                for module in self.net.modules():
                    stack.callback(module.register_forward_hook(partial(_measure, sizes)).remove)
                self.net(batch)
            largest = max(largest, max(sizes, default=0) / count)
            orders.append(order)
        if any(order != orders[0] for order in orders):
            raise InputError("source and target run through different normalization layers in eval mode")
        repeated = next((name for name in orders[0] if orders[0].count(name) > 1), None)
        if repeated is not None:
            raise InputError(
                f'layer "{repeated}" runs more than once in a forward pass, and can hold the statistics of only one of '
                "its inputs: use a layer for each place"
            )
        if unused := [name for name in self.layers if name not in orders[0]]:
            _log.warning("Eval mode does not run %s, whose statistics stay as they were", ", ".join(unused))
        if not orders[0]:
            raise InputError("eval mode runs no layer whose statistics could be computed")
        return orders[0], largest

    def _keep_inputs(self) -> int | None:
        """Keep all batches and return their bytes; None, with nothing kept, if they don't fit in memory."""
        size = 0
        kept: list[list[Any]] = []
        for images in self.domains:
            kept.append([])
            images.count = 0
            for batch in images.batches(torch.device("cpu")):
                images.count += _count(batch, images.domain)
                size += sum(leaf.nbytes for leaf in _leaves(batch))
                if size > self.memory:
                    return None
                kept[-1].append(batch)
        for images, batches in zip(self.domains, kept, strict=True):
            images.kept = batches
        return size

    def _all_at_once(self, order: Sequence[str]) -> None:
        """One pass of all images as one batch, the source's first."""
        whole = join_batches([batch for images in self.domains for batch in images.batches(self.device)])
        sizes = [images.count for images in self.domains]
        rows = max(1, max(sizes) // len(self.domains[0].kept or [None]))
        self.changes.clear()
        self.batch_norms.clear()
        with ExitStack() as stack:
            for name in order:
                layer = self.layers[name]

                def compute(layer: nn.Module, inputs: tuple[Tensor, ...], name: str = name) -> None:
                    if len(inputs[0]) != sum(sizes):
                        raise _NotOneBatch
                    moments = {}
                    for images, part in zip(self.domains, torch.split(inputs[0], sizes), strict=True):
                        moments[images.domain] = Moments()
                        for some in torch.split(part, rows):  # in float64, of which there should not be much at a time
                            moments[images.domain].add(some)
                    self._store(name, moments)

                stack.callback(layer.register_forward_pre_hook(compute).remove)
                if isinstance(layer, DomainAlignment):
                    stack.enter_context(
                        _by_domain(layer, dict(zip([i.domain for i in self.domains], sizes, strict=True)))
                    )
            self.net(whole)

    def _layer_by_layer(self, order: Sequence[str]) -> int:
        """A pass over the images for each layer, as far as the layer; returns the number of passes."""
        self.changes.clear()
        self.batch_norms.clear()
        for name in order:
            moments: dict[DomainName, Moments] = {}
            for images in self.domains:
                moments[images.domain] = Moments()
                images.count = 0
                for other in self.layers.values():
                    if isinstance(other, DomainAlignment):
                        other.test_stats = images.domain
                for batch in images.batches(self.device):
                    images.count += _count(batch, images.domain)
                    moments[images.domain].add(self._input_of(name, batch))
            self._store(name, moments)
        return len(order)

    def _input_of(self, name: str, batch: Any) -> Tensor:
        """The input of a layer for a batch; later layers don't run."""
        found: list[Tensor] = []

        def stop(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            found.append(inputs[0])
            raise _Reached

        hook = self.layers[name].register_forward_pre_hook(stop)
        try:
            self.net(batch)
        except _Reached:
            return found[0]
        finally:
            hook.remove()
        raise InputError(f'layer "{name}" does not run for every batch, so that it has no statistics of all images')

    def _store(self, name: str, moments: Mapping[DomainName, Moments]) -> None:
        """Store statistics in a layer, and note what changed."""
        layer = self.layers[name]
        if isinstance(layer, DomainAlignment):
            self.changes.append(store_statistics(name, layer, moments))
            return
        assert isinstance(layer, _BatchNorm)
        assert layer.running_mean is not None and layer.running_var is not None
        pooled = Moments()
        for part in moments.values():
            pooled.merge(part)
        statistics = pooled.statistics()
        mean, variance = (torch.from_numpy(values) for values in statistics)
        if not (mean.isfinite().all() and variance.isfinite().all()):
            raise WorkError(
                f'values that are not finite reach layer "{name}": the weights are from a training that diverged'
            )
        layer.running_mean.copy_(mean)
        layer.running_var.copy_(variance)
        if layer.num_batches_tracked is not None:
            layer.num_batches_tracked.fill_(1)
        self.batch_norms.append(name)


def _source_images(
    source: Iterable[Any] | Sequence[Iterable[Any]] | None, layers: Mapping[str, nn.Module]
) -> list[_Images]:
    """The images of each source that the layers have statistics of."""
    if source is None:
        return []
    number = max((layer.sources for layer in layers.values() if isinstance(layer, DomainAlignment)), default=1)
    if number == 1:
        return [_Images("source", source)]
    if not isinstance(source, Sequence) or len(source) != number:
        found = f"{len(source)} batches or loaders" if isinstance(source, Sequence) else "one loader"
        raise InputError(f"`source` is a list of loaders, one for each of the net's {number} sources, not {found}")
    return [_Images(domain, loader) for domain, loader in zip(domain_names(number)[:-1], source, strict=True)]


def _restore(saved: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Give buffers their values back."""
    for buffer, value in saved:
        buffer.copy_(value)


def _tracked(net: nn.Module) -> dict[str, nn.Module]:
    """The layers with stored statistics, by name."""
    return {
        name: layer
        for name, layer in net.named_modules()
        if (isinstance(layer, DomainAlignment) and getattr(layer, "track_running_stats", True))
        or (is_batch_norm(layer) and layer.running_mean is not None)
    }


def _layers(net: nn.Module) -> dict[str, nn.Module]:
    """The layers whose statistics are to be computed; InputError if there are none, or one can't use them."""
    layers = _tracked(net)
    if not layers:
        raise InputError(f"{type(net).__name__} has no normalization layer with stored statistics")
    for name, layer in layers.items():
        if isinstance(layer, LazyModuleMixin):
            raise InputError(f'layer "{name}" does not know its number of channels yet: run the net on one batch first')
        if isinstance(layer, DomainAlignment) and layer.use_global_stats is False:
            raise InputError(f'layer "{name}" has use_global_stats=False, so that it never uses stored statistics')
    return layers


@contextmanager
def _by_domain(layer: DomainAlignment, sizes: Mapping[DomainName, int]) -> Iterator[None]:
    """Let a layer in eval mode normalize the first rows with one domain's statistics, and the next with another's."""
    forward: Callable[[Tensor], Tensor] = layer.forward

    def normalize(x: Tensor) -> Tensor:
        parts = []
        for domain, part in zip(sizes, torch.split(x, list(sizes.values())), strict=True):
            layer.test_stats = domain
            parts.append(forward(part))
        return torch.cat(parts)

    layer.forward = normalize  # type: ignore[method-assign]
    try:
        yield
    finally:
        del layer.forward


def _noting(order: list[str], name: str) -> Callable[..., None]:
    return lambda layer, inputs: order.append(name)


def _measure(sizes: list[int], module: nn.Module, inputs: Any, output: Any) -> None:
    """Note the bytes of a module's inputs and outputs."""
    sizes.append(sum(leaf.nbytes for leaf in (*_leaves(inputs), *_leaves(output))))


def _leaves(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def _count(batch: Any, domain: DomainName) -> int:
    """The number of images in a batch."""
    counts = {len(leaf) for leaf in _leaves(batch) if leaf.dim()}
    if len(counts) != 1:
        raise InputError(f"a batch of `{domain}` must hold tensors with equally many samples along the first axis")
    return counts.pop()
