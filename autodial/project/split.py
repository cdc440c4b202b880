"""The numbers of source and target images in a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MINIMUM = 2
"""The fewest images of each domain in a batch: behind an InnerProduct layer, a single image has no variance."""


class Split(NamedTuple):
    """The numbers of source images in a batch, which come first, and of target images."""

    source: int
    target: int

    @property
    def total(self) -> int:
        """The number of images in a batch."""
        return self.source + self.target


def split_batch(total: int, source: int, target: int, sources: int = 1) -> Split:
    """Split a batch in proportion to the domains' sizes (paper, section 4.1); the source's share is rounded down.

    Each domain gets at least MINIMUM images. If the domains have fewer images than a batch, the batch takes them all.

    Args:
        total: images in a batch, at least MINIMUM for each domain.
        source, target: images in the domains, at least MINIMUM each, of all sources together.
        sources: number of sources, each of which is a domain.
    """
    total = min(total, source + target)
    share = total * source // (source + target)
    share = min(max(share, MINIMUM * sources), total - MINIMUM)
    return Split(share, total - share)


def split_sources(rows: int, images: Sequence[int]) -> tuple[int, ...]:
    """Share the source's rows in a batch out to several sources, in proportion to their images.

    Shares are rounded down, and what is left goes to those that lost most. Each source gets at least MINIMUM rows.

    Args:
        rows: at least MINIMUM for each source.
        images: the images of each source, at least MINIMUM.
    """
    spare = rows - MINIMUM * len(images)
    wanted = [rows * each / sum(images) - MINIMUM for each in images]
    positive = [max(each, 0.0) for each in wanted]
    exact = [spare * each / (sum(positive) or 1) for each in positive]
    shares = [int(each) for each in exact]
    lost = sorted(range(len(images)), key=lambda i: shares[i] - exact[i])
    for i in lost[: spare - sum(shares)]:
        shares[i] += 1
    return tuple(MINIMUM + share for share in shares)


def halved_batch(total: int, source: int, target: int) -> Split:
    """Give both domains half of a batch, or as many images as the smaller domain has.

    Args:
        total: images in a batch, at least 2 * MINIMUM.
        source, target: images in the domains, at least MINIMUM each.
    """
    half = min(total // 2, source, target)
    return Split(half, half)


def labelled_rows(target_rows: int, labelled: int) -> int:
    """Choose how many of the target's rows in a batch are images with labels.

    A quarter of the target's rows, rounded down, but at least one and at most as many as there are images, so that no
    image is twice in a batch.

    Args:
        target_rows: the target's images in a batch, at least MINIMUM.
        labelled: the images with labels, at least one.
    """
    return min(max(target_rows // 4, 1), labelled)


def even_batches(images: int, batch: int) -> tuple[int, int]:
    """Choose equal batches for one pass over a list.

    Caffe tests whole batches: if the last batch is not full, images from the list's start count twice. The result has
    as few such images as the fewest possible batches allow.

    Args:
        images: the number of images in the list.
        batch: the largest batch.

    Returns:
        The images per batch and the number of batches.
    """
    number = -(-images // batch)
    return -(-images // number), number
