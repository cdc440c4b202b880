"""What can be chosen for a run over many images; `autodial predict` has an option for each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autodial.deploy.addresses import shown
from autodial.deploy.predictor import BATCH_SIZE
from autodial.deploy.rows import Columns
from autodial.errors import InputError
from autodial.wording import counted

WHOLE = (1, 1)
"""The only shard of a run that is not divided."""


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """How images get labels, and what a table says of them.

    Attributes:
        top_k: labels per image, from 1 to the model's number of classes.
        logits: a column, or in CSV a column per class, of logits.
        entropy: a column of the probabilities' entropy, in nats.
        spreadsheet_safe: put ' in front of CSV's texts that a spreadsheet would run as formulas.
        batch_size: images that the model sees at once.
        device: "auto", "cpu", "cuda" or "cuda:N".
        workers: threads that decode images; None for one per CPU that this process may use, and for at least 16 if an
            input is an address, which threads mostly wait for. With `ray`, processes that decode images and run the
            model; None for as many as the cluster has room for. The table is the same for any number.
        threads: CPUs that a run of the model on the CPU keeps busy; None for all that this process may use. With `ray`,
            CPUs of each of the workers; None for 1.
        max_failures: the number of images without labels up to which the run goes on; None for any number.
        label_damaged: label damaged images; if false, they are rows without labels.
        sort_into: a folder that gets a folder per label, with links to the images that got it (see
            `autodial.deploy.sorting.Sorter`).
        copy: copies in there, not links.
        shard: (i, n), 1 <= i <= n: only every n-th image, starting with the i-th; the table's name gets "-i-of-n" in
            front of its suffix.
        resume: go on with what an interrupted run left, if it left something.
        drift: a .json file for a comparison of the images, and the model's answers, with those of the list that it was
            trained on (see `autodial.deploy.drift`); with `shard` its name changes as the table's.
        column: the column of Parquet tables that has the images, or their paths; None for "bytes", "image" or "path".
        ray: the address of a Ray cluster whose workers label the images (see `autodial.deploy.ray_cluster`); None for
            this process. The table is the same.
    """

    top_k: int = 1
    logits: bool = False
    entropy: bool = False
    spreadsheet_safe: bool = False
    batch_size: int = BATCH_SIZE
    device: str = "auto"
    workers: int | None = None
    threads: int | None = None
    max_failures: int | None = None
    label_damaged: bool = True
    sort_into: str | Path | None = None
    copy: bool = False
    shard: tuple[int, int] = WHOLE
    resume: bool = False
    drift: str | Path | None = None
    column: str | None = None
    ray: str | None = None

    def columns(self, classes: tuple[str, ...], model: str) -> Columns:
        """The table's columns for a model.

        Args:
            classes: names of the model's classes.
            model: the model's file or address.

        Raises:
            InputError: the model has too few classes for `top_k`.
        """
        if not 1 <= self.top_k <= len(classes):
            held = counted(len(classes), "class", "classes")
            raise InputError(f"`top_k` is {self.top_k}, and {shown(model)} has {held}: choose from 1 to {len(classes)}")
        return Columns(classes, self.top_k, self.entropy, self.logits, self.spreadsheet_safe)


DEFAULTS = PredictOptions()
