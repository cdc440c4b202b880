"""The image lists of a net's domains, opened for statistics: the net's own lists, or other images instead."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import torch

from autodial.data.image_list import ImageList
from autodial.data.paths import find
from autodial.deploy.inputs import elsewhere, expand
from autodial.errors import InputError
from autodial.evaluation.domains import (
    DataTop,
    DomainBatches,
    data_in_test,
    data_in_train,
    reading,
    sources_of,
    without_augmentation,
)
from autodial.layers.dial import DomainName, domain_names
from autodial.proto import messages as pb


class DomainLists:
    """Opens the lists of a net's domains.

    It is a context manager, which holds temporary lists of images in folders, and removes their names from messages.
    What `open` returns can be used inside the context.

    Args:
        net: a NetParameter with Dial layers; both phases are read.
        base_dir: folder of the net's file; relative paths are looked for in the working directory first.
        device: the batches' device.
        batch_size: images per batch; None: as in the TEST phase.
        workers: processes that read images ahead.

    Attributes:
        test: the data top that the Dial layers depend on in the TEST phase.
        domains: the names of the domains, the target's last (`autodial.layers.dial.domain_names`).
        names: what was opened for each domain, as users know it.

    Raises:
        InputError: no Dial layer in the TEST phase, or one that depends on more than one blob of a data layer.
    """

    def __init__(
        self,
        net: pb.NetParameter,
        *,
        base_dir: Path,
        device: torch.device,
        batch_size: int | None = None,
        workers: int = 0,
    ) -> None:
        self._base_dir, self._device, self._batch_size, self._workers = base_dir, device, batch_size, workers
        self.test = data_in_test(net)
        self.domains: tuple[DomainName, ...] = domain_names(sources_of(net))
        trained = data_in_train(net)
        tops = () if trained is None else (*trained.sources, trained.target)
        self._trained = dict(zip(self.domains, tops, strict=False))
        self.names: dict[DomainName, str] = {}
        self._listed: dict[str, Path] = {}
        """What the temporary lists were made of, by their file names."""

    def __enter__(self) -> DomainLists:
        self._folder = tempfile.TemporaryDirectory(prefix="autodial-")
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._folder.cleanup()
        if isinstance(error, InputError):
            line = re.escape(self._folder.name + os.sep) + r"(\w+\.txt):\d+: "
            message, found = re.sub(line, "", str(error)), re.search(line, str(error))
            raise InputError(message if found is None else message + _without(self._listed[found[1]])) from error

    def open(
        self, domain: DomainName, given: Path | None = None, *, size: tuple[int, int] | None = None
    ) -> DomainBatches:
        """A domain's images, prepared as the TEST phase prepares images.

        Args:
            domain: one of `domains`.
            given: a folder, an image, or a list of images with or without labels; for a net that reads a database or an
                HDF5 list, another one. None: what the TRAIN phase reads.
            size: height and width to resize the images of `given` to; None: no resizing.

        Raises:
            InputError: images that can't be listed, fewer than two images, or a TRAIN phase that does not name the
                domain's images.
        """
        data = self._trained.get(domain, self.test)
        if given is not None:
            data = reading(data, self._list(domain, given, data), size)
        elif not self._trained:
            raise InputError(
                "the TRAIN phase does not say which images are the source's and which the target's, by a data layer "
                f"for each and a Concat layer along axis 0 behind all: name the {domain}'s images with "
                f"`{_option(domain)}`"
            )
        data = without_augmentation(data, self.test, self._batch_size)
        try:
            images = DomainBatches(
                data, self.test.blob, device=self._device, workers=self._workers, base_dir=self._base_dir
            )
        except InputError as error:
            hint = "" if given is not None else f"; `{_option(domain)}` names other images"
            raise InputError(f"{error}{hint}") from error
        self.names[domain] = images.path if given is None else str(given)
        if images.rows < 2:
            raise InputError(f"{self.names[domain]}: a single image has no statistics to align: name more images")
        return images

    def _list(self, domain: DomainName, given: Path, data: DataTop) -> Path:
        """`given`, or a list of its images if it is a folder or a list without labels."""
        if data.layer.type != "ImageData":
            return given
        if given.is_file():
            try:
                return ImageList.read(given).path
            except InputError:
                pass  # without labels, or an image
        if (other := elsewhere([given])) is not None:
            raise InputError(f"{other}: images are read from files of this machine: copy them here")
        path = Path(self._folder.name) / f"{domain.replace(' ', '_')}.txt"
        self._listed[path.name] = given
        with path.open("wb") as file:
            for image in expand([given]):
                if image.error is not None:
                    raise InputError(f"{image.path}: {image.error}{_without(given)}")
                try:
                    name = os.fsencode(find(image.path, image.base_dir).absolute())
                except InputError as error:
                    raise InputError(f"{given}: {error}{_without(given)}") from error
                if not _stands_in_a_list(name):
                    raise InputError(f"{name!r}: the name is not in UTF-8, or has a line break: rename the file")
                file.write(name + b" 0\n")
        return path


def _without(given: Path) -> str:
    """What to do about an image that can't be used, as the end of a sentence."""
    return f"; repair such images, or take them out of {given}"


def _option(domain: DomainName) -> str:
    """The parameter that names a domain's images."""
    return domain.partition(" ")[0]


def check_same_size(source: DomainBatches, target: DomainBatches) -> None:
    """Raise InputError unless the images of both domains reach the net in the same shape."""
    if source.shape[1:] != target.shape[1:]:
        sizes = (" x ".join(map(str, images.shape[1:])) for images in (source, target))
        raise InputError(
            "the net gets the source's images as {} (channels x height x width) and the target's as {}: state one "
            "new_height and new_width for both in their data layers".format(*sizes)
        )


def _stands_in_a_list(name: bytes) -> bool:
    try:
        return "\n" not in name.decode()
    except UnicodeDecodeError:
        return False
