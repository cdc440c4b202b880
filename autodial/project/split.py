"""The numbers of source and target images in a batch."""

from __future__ import annotations

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


def split_batch(total: int, source: int, target: int) -> Split:
    """Split a batch in proportion to the domains' sizes (paper, section 4.1); the source's share is rounded down.

    Each domain gets at least MINIMUM images. If the domains have fewer images than a batch, the batch takes them all.

    Args:
        total: images in a batch, at least 2 * MINIMUM.
        source, target: images in the domains, at least MINIMUM each.
    """
    total = min(total, source + target)
    share = total * source // (source + target)
    share = min(max(share, MINIMUM), total - MINIMUM)
    return Split(share, total - share)


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
