"""Checks of the domains' images, and of one domain against another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from autodial.data.folders import identity
from autodial.errors import InputError
from autodial.project.data import Data
from autodial.project.inspection import Inspection, same_bytes
from autodial.project.scan import DomainImages
from autodial.wording import counted

_NAMED = 3
"""The number of bad images that an error names."""


def check_apart(source: DomainImages, others: Sequence[DomainImages]) -> None:
    """Refuse another source, a target or a test set that contains files of the source, under any name.

    Raises:
        InputError: there is such a file; the message names the first one.
    """
    own = _files(source)
    for other in others:
        if source.origin.exists() and other.origin.exists() and identity(source.origin) == identity(other.origin):
            raise InputError(f"{source.named} and {other.named} are the same, {source.origin}: name two different ones")
        common = [path for key, path in _files(other).items() if key in own]
        if common:
            raise InputError(
                f"{len(common)} of the {len(other.images)} images in {other.named} ({other.origin}) are also in "
                f"{source.named} ({source.origin}), such as {common[0]}: name folders or lists without common images"
            )


def without_bad(domain: DomainImages, inspections: Mapping[str, Inspection], *, skip: bool) -> DomainImages:
    """Remove the images that can't be decoded from a domain.

    Raises:
        InputError: there are such images, and `skip` is false.
    """
    problems = [inspections[image.path].problem for image in domain.images if inspections[image.path].problem]
    if problems and not skip:
        more = f"; and {len(problems) - _NAMED} more" if len(problems) > _NAMED else ""
        raise InputError(
            f"{len(problems)} of the {len(domain.images)} images in {domain.named} ({domain.origin}) can't be used: "
            f"{'; '.join(problems[:_NAMED])}{more}: repair or delete them, or leave them out with `skip`"
        )
    return replace(domain, images=tuple(image for image in domain.images if not inspections[image.path].problem))


def check_enough(data: Data) -> None:
    """Refuse domains that have too few usable images.

    Raises:
        InputError: a source class or the test set has no image, or the target or one of several sources has fewer than
            two.
    """
    for name, count in zip(data.classes, data.source.counts(len(data.classes)), strict=True):
        if not count:
            raise InputError(f'class "{name}" has no usable image ({data.source.origin}): repair or add some')
    for domain in (*data.sources, data.target):
        if len(domain.images) < 2:
            raise InputError(
                f"{domain.named} ({domain.origin}) has {counted(len(domain.images), 'usable image')}, and alignment "
                "needs the statistics of at least two: add some"
            )
    if data.test is not None and not data.test.images:
        raise InputError(f"the test set ({data.test.origin}) has no usable image: add some")
    if data.labelled_target is not None and not data.labelled_target.images:
        raise InputError(f"the labelled target ({data.labelled_target.origin}) has no usable image: add some")


def without_trained(data: Data) -> tuple[Data, list[str]]:
    """Leave the labelled target's images, and copies of them, out of the test set, so that it measures what is new.

    Returns:
        the data, and a note if images were left out.

    Raises:
        InputError: no image of the test set is left.
    """
    if data.labelled_target is None or data.test is None:
        return data, []
    trained = {identity(image.path) for image in data.labelled_target.images}
    paths = [image.path for image in data.test.images]
    copies = same_bytes(paths, [image.path for image in data.labelled_target.images], data.inspections)
    copied = {path for path, _ in copies}
    kept = tuple(
        image for image in data.test.images if image.path not in copied and identity(image.path) not in trained
    )
    lost = len(paths) - len(kept)
    if not lost:
        return data, []
    if not kept:
        raise InputError(
            f"every image with which accuracy is measured ({data.test.origin}) is also in the labelled target "
            f"({data.labelled_target.origin}): name other labelled images with `test`"
        )
    note = f"{counted(lost, 'labelled target image')} that the net learns from {'is' if lost == 1 else 'are'} left out "
    test = replace(data.test, role="test", images=kept)
    return replace(data, test=test), [f"{note}of the test set, which has {counted(len(kept), 'image')}"]


def notes_on_strays(data: Data) -> list[str]:
    """A note on images of the labelled target that are not in the target, nor copies of images that are."""
    if data.labelled_target is None:
        return []
    target = {identity(image.path) for image in data.target.images}
    apart = [image.path for image in data.labelled_target.images if identity(image.path) not in target]
    copies = {path for path, _ in same_bytes(apart, [image.path for image in data.target.images], data.inspections)}
    strays = [path for path in apart if path not in copies]
    if not strays:
        return []
    one = len(strays) == 1
    return [
        f"{len(strays)} of the {counted(len(data.labelled_target.images), 'labelled target image')} "
        f"{'is' if one else 'are'} not in the target ({data.target.origin}), such as {strays[0]}: training aligns "
        f"{'it' if one else 'them'} as target, and statistics over the whole target leave {'it' if one else 'them'} "
        "out; check that the domain is the same, and add the images to the target if it is"
    ]


def notes_on_copies(data: Data) -> list[str]:
    """Notes on images of another domain that are copies of source images, and on source images in two classes."""
    notes = []
    paths = [image.path for image in data.source.images]
    for other in data.domains[len(data.sources) :]:
        pairs = same_bytes([image.path for image in other.images], paths, data.inspections)
        if pairs:
            copy, original = pairs[0]
            notes.append(f"The {other.role} has {len(pairs)} copies of source images, such as {copy} of {original}")
    keys = [identity(image.path) for image in data.source.images]
    labels: dict[tuple[int, int], set[int | None]] = {}
    for key, image in zip(keys, data.source.images, strict=True):
        labels.setdefault(key, set()).add(image.label)
    torn = [image.path for key, image in zip(keys, data.source.images, strict=True) if len(labels[key]) > 1]
    if torn:
        notes.append(f"The source has {len(torn)} paths of files that are also in another class, such as {torn[0]}")
    return notes


def _files(domain: DomainImages) -> dict[tuple[int, int], str]:
    """The domain's files by identity; missing ones are left out, as decoding reports them."""
    files: dict[tuple[int, int], str] = {}
    for image in domain.images:
        try:
            files.setdefault(identity(image.path), image.path)
        except OSError:
            continue
    return files
