"""A trained net's weights with statistics over all images of both domains: what `autodial recalibrate` writes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from autodial.errors import InputError
from autodial.evaluation.domain_lists import DomainLists, check_same_size
from autodial.evaluation.domains import fed_net
from autodial.evaluation.recalibrate import Progress, Recalibration, recalibrate, with_statistics
from autodial.layers.dial import DomainName
from autodial.net.net import Net, of_another_net
from autodial.proto import Weights
from autodial.proto import messages as pb
from autodial.system.devices import full_memory_errors
from autodial.wording import counted

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RecalibratedWeights:
    """Weights with new statistics.

    Attributes:
        weights: the weights given, in which only the Dial layers' statistics changed.
        result: what changed.
        names: the images used for each domain, as users know them; without the source if it was not needed.
        seconds: how long it took.
    """

    weights: Weights
    result: Recalibration
    names: Mapping[DomainName, str]
    seconds: float

    @property
    def sources(self) -> list[str]:
        """The images used for each source."""
        return [name for domain, name in self.names.items() if domain != "target"]


def recalibrate_weights(
    net: pb.NetParameter,
    weights: Weights,
    *,
    net_name: str,
    weights_name: str,
    base_dir: Path,
    device: torch.device,
    source: Path | Sequence[Path] | None = None,
    target: Path | None = None,
    size: tuple[int, int] | None = None,
    batch_size: int | None = None,
    workers: int = 0,
    begun: Callable[[], object] | None = None,
    report: Callable[[Progress], None] | None = None,
) -> RecalibratedWeights:
    """Compute a net's Dial statistics over whole image lists (paper, section 3.2; see `recalibrate`).

    A warning names layers without stored statistics, for which nothing can be compared.

    Args:
        net: a NetParameter with all phases.
        weights: the net's trained weights.
        net_name, weights_name: their names in messages.
        base_dir: folder of the net's file; relative paths are looked for in the working directory first.
        device: where to compute.
        source, target: images for the domains, as `DomainLists.open` takes them; None: those of the TRAIN phase. If
            `source` is None, `target` is given and every alpha is 1, the source is not read. For a net that aligns
            several sources, `source` has images for each.
        size: height and width to resize the images of `source` and `target` to; None: no resizing.
        batch_size: images per batch; None: as in the TEST phase.
        workers: processes that read images ahead.
        begun: called when everything is checked, before the first batch.
        report: called after each batch.

    Raises:
        InputError: a net without Dial layers, images that can't be used, or weights that lack layers.
        WorkError: values that are not finite, or full memory.
    """
    started = time.perf_counter()
    try:
        lists = DomainLists(net, base_dir=base_dir, device=device, batch_size=batch_size, workers=workers)
    except InputError as error:
        raise InputError(f"{net_name}: {error}") from error
    with lists:
        target_images = lists.open("target", target, size=size)
        pruned, logits = fed_net(net, lists.test.blob, target_images.shape)
        try:
            built = Net(pruned, pb.TEST, base_dir=base_dir).to(device)
        except InputError as error:
            raise InputError(f"{net_name}, TEST phase: {error}") from error
        if missing := built.load_weights(weights, weights_name, advice=of_another_net(net_name)):
            raise InputError(
                f"{weights_name} has nothing for {', '.join(missing)}, on which the statistics depend: name the "
                "weights from this net's training"
            )
        source_images = None
        if source is not None or target is None or min(built.alphas().values()) < 1:
            source_images = []
            for domain, given in _of_sources(lists.domains[:-1], source).items():
                source_images.append(lists.open(domain, given, size=size))
                source_images[-1].check()
                check_same_size(source_images[-1], target_images)
        target_images.check()
        if unstored := built.without_statistics():
            _log.warning("%s had no statistics stored: there is nothing to compare with", ", ".join(unstored))
        if begun is not None:
            begun()
        with full_memory_errors():
            sources = source_images if source_images is None or len(source_images) > 1 else source_images[0]
            result = recalibrate(built, sources, target_images, logits=logits, report=report)
    return RecalibratedWeights(with_statistics(weights, built), result, lists.names, time.perf_counter() - started)


def _of_sources(domains: Sequence[DomainName], given: Path | Sequence[Path] | None) -> dict[DomainName, Path | None]:
    """The images that the user names for each source; InputError where these are of another number."""
    if given is None:
        return dict.fromkeys(domains)
    paths = [given] if isinstance(given, Path) else list(given)
    if len(paths) != len(domains):
        raise InputError(
            f"the net aligns {counted(len(domains), 'source')}, and `source` names images for {len(paths)}: name those "
            "of each source, in the order in which the TRAIN phase joins them"
        )
    return dict(zip(domains, paths, strict=True))
