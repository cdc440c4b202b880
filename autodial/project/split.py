"""How many images of each domain make a batch."""

from __future__ import annotations

from typing import NamedTuple

MINIMUM = 2
"""Images of each domain in a batch: after an InnerProduct layer one image alone has no variance."""


class Split(NamedTuple):
    """Images in a batch: the source's, which come first, and the target's."""

    source: int
    target: int

    @property
    def total(self) -> int:
        """All images of a batch."""
        return self.source + self.target


def split_batch(total: int, source: int, target: int) -> Split:
    """A batch split in proportion to the domains' sizes (paper, section 4.1), the source's share rounded down.

    Each domain gets at least MINIMUM images. Of data sets smaller than a batch, all images make a batch.

    Args:
        total: images in a batch, at least 2 * MINIMUM.
        source, target: images in the domains, at least MINIMUM each.
    """
    total = min(total, source + target)
    share = total * source // (source + target)
    share = min(max(share, MINIMUM), total - MINIMUM)
    return Split(share, total - share)


def even_batches(images: int, batch: int) -> tuple[int, int]:
    """Size and number of the fewest batches, of at most `batch` images, that hold a list with the least left over.

    Caffe tests whole batches, so that images at the list's start count twice if the last one is not full.
    """
    number = -(-images // batch)
    return -(-images // number), number
