"""The file of a model that may lie at an address."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autodial.deploy.addresses import beside, fetched, is_address
from autodial.deploy.weights_file import weights_file


@contextmanager
def local_model(model: str) -> Iterator[Path]:
    """The file `model`, or, if that is an address, a copy of it that is there until the block ends.

    A second file with the model's weights is copied, too.

    Errors of the block name the address.

    Raises:
        InputError: it can't be read.
        WorkError: what its protocol needs is not installed.
    """
    if not is_address(model):
        yield Path(model)
        return
    with tempfile.TemporaryDirectory(prefix="autodial-") as folder, fetched(model, Path(folder)) as file:
        second = weights_file(file)
        if second is None:
            yield file
        else:
            with fetched(beside(model, second.name), Path(folder)):
                yield file
