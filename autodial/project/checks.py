"""What is wrong with domains beside each other, and with their images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from autodial.data.folders import identity
from autodial.errors import InputError
from autodial.project.data import Data
from autodial.project.look import Look, same_bytes
from autodial.project.scan import Domain

_NAMED = 3
"""Bad images that an error names."""


def check_apart(source: Domain, others: Sequence[Domain]) -> None:
    """Refuse a target or test set that holds files of the source, under whatever name.

    Raises:
        InputError: it names the first such file.
    """
    own = _files(source)
    for other in others:
        if source.origin.exists() and other.origin.exists() and identity(source.origin) == identity(other.origin):
            raise InputError(f"the source and the {other.role} are the same, {source.origin}: name two domains")
        common = [path for key, path in _files(other).items() if key in own]
        if common:
            raise InputError(
                f"{len(common)} of the {len(other.images)} images of the {other.role} ({other.origin}) are images of "
                f"the source ({source.origin}), such as {common[0]}: name folders or lists that have none in common"
            )


def without_bad(domain: Domain, looks: Mapping[str, Look], *, skip: bool) -> Domain:
    """A domain without the images that can't be decoded.

    Raises:
        InputError: there are such images, unless they are to be skipped.
    """
    problems = [looks[image.path].problem for image in domain.images if looks[image.path].problem]
    if problems and not skip:
        more = f"; and {len(problems) - _NAMED} more" if len(problems) > _NAMED else ""
        raise InputError(
            f"{len(problems)} of the {len(domain.images)} images of the {domain.role} ({domain.origin}) can't be used: "
            f"{'; '.join(problems[:_NAMED])}{more}: repair or delete them, or leave them out with --skip-bad"
        )
    return replace(domain, images=tuple(image for image in domain.images if not looks[image.path].problem))


def check_enough(data: Data) -> None:
    """Refuse domains of which too little is left.

    Raises:
        InputError: a class of the source without images, a target with less than two, or a test set without any.
    """
    for name, count in zip(data.classes, data.source.counts(len(data.classes)), strict=True):
        if not count:
            raise InputError(f'class "{name}" has no image that can be used ({data.source.origin}): repair or add some')
    if len(data.target.images) < 2:
        raise InputError(
            f"the target ({data.target.origin}) has {len(data.target.images)} images that can be used, and one alone "
            "has no statistics to align: add some"
        )
    if data.test is not None and not data.test.images:
        raise InputError(f"the test set ({data.test.origin}) has no image that can be used: add some")


def notes_on_copies(data: Data) -> list[str]:
    """Notes on images of the source that are in another domain too, byte by byte, or in two classes."""
    notes = []
    paths = [image.path for image in data.source.images]
    for other in data.domains[1:]:
        pairs = same_bytes([image.path for image in other.images], paths, data.looks)
        if pairs:
            notes.append(
                f"{len(pairs)} images of the {other.role} are copies of images of the source, such as {pairs[0][0]} of "
                f"{pairs[0][1]}."
            )
    keys = [identity(image.path) for image in data.source.images]
    labels: dict[tuple[int, int], set[int | None]] = {}
    for key, image in zip(keys, data.source.images, strict=True):
        labels.setdefault(key, set()).add(image.label)
    torn = [image.path for key, image in zip(keys, data.source.images, strict=True) if len(labels[key]) > 1]
    if torn:
        notes.append(f"{len(torn)} paths in the source name files that are in another class too, such as {torn[0]}.")
    return notes


def _files(domain: Domain) -> dict[tuple[int, int], str]:
    """The domain's files; those that are not there are left to decoding."""
    files: dict[tuple[int, int], str] = {}
    for image in domain.images:
        try:
            files.setdefault(identity(image.path), image.path)
        except OSError:
            continue
    return files
