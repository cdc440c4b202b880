"""Which images a person should label: those of which a model is least certain, unlike one another.

Each image stands for the gradient that a label would bring to the last layer, if the label were the predicted one
(BADGE: Ash et al., "Deep Batch Active Learning by Diverse, Uncertain Gradient Lower Bounds", ICLR 2020). Uncertain
images have long gradients, and images that are confused alike have gradients that point the same way. k-means++ then
draws images with long gradients that lie far apart.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from autodial.deploy.binding import Scores
from autodial.deploy.inputs import PassedOver, check_sequence, elsewhere, expand
from autodial.deploy.model_source import local_model
from autodial.deploy.options import DEFAULTS, PredictOptions
from autodial.deploy.predictor import Predictor
from autodial.deploy.reader import read_batches
from autodial.deploy.rows import Csv, TableRow, score
from autodial.deploy.sorting import Sorter
from autodial.deploy.sources import ImageFile
from autodial.errors import InputError, WorkError
from autodial.system.cpus import available_cpus
from autodial.system.files import replacing
from autodial.system.outputs import check_output
from autodial.wording import counted

POOL = 10_000
"""The images that take part in the choice: of more, the least certain (Zhdanov, "Diverse mini-batch Active Learning",
2019, arXiv:1901.05954)."""
MOST = 1_000
"""The most images that are chosen: a tenth of the pool, so that there is a choice."""
_OF_ALL = ("logits", "shard", "resume", "drift", "column", "ray")
"""The options for a table of all images."""


def worth_labelling(
    probabilities: npt.ArrayLike, count: int, *, features: npt.ArrayLike | None = None
) -> npt.NDArray[np.int64]:
    """The rows that a person should label: those of which a model is uncertain, unlike one another.

    A row stands for the gradient of the loss, with the predicted class as the label, by the last layer's bias: its
    probabilities, minus 1 at the predicted class. With `features` it is the gradient by the layer's weights (Ash et
    al., 2020, section 3). Rows are drawn one after the other with probabilities in proportion to the squared distance
    from the nearest of those drawn before, and of the origin, where rows lie of which the model is certain (k-means++).
    Of more than 10,000 rows, the 10,000 with the longest gradients take part. Equal arguments give equal results.

    Args:
        probabilities: (n, classes), each row sums to 1.
        count: how many rows, from 1 to 1,000.
        features: (n, D), what the last layer reads.

    Returns:
        int64 (min(count, n),), the rows in the order in which they were drawn: the first ones are a choice of fewer.

    Raises:
        InputError: another shape, values that are not finite, or `count` is out of range.
    """
    rows = np.asarray(probabilities, np.float64)
    if rows.ndim != 2 or not rows.size:
        raise InputError(f"`probabilities` has the shape {rows.shape}: give (rows, classes)")
    factor = None if features is None else np.asarray(features, np.float64)
    if factor is not None and (factor.ndim != 2 or len(factor) != len(rows)):
        raise InputError(
            f"`features` has the shape {factor.shape}: give ({len(rows)}, D), a row for each of the images"
        )
    if not np.isfinite(rows).all() or not (factor is None or np.isfinite(factor).all()):
        raise InputError("`probabilities` or `features` has values that are not finite: leave out such rows")
    _check_count(count)
    errors = _errors(rows)
    factor = np.ones((len(rows), 1)) if factor is None else factor
    pool = _longest(np.square(errors).sum(1) * np.square(factor).sum(1))
    drawn: npt.NDArray[np.int64] = pool[_spread(errors[pool], factor[pool], count)]
    return drawn


def _check_count(count: int) -> None:
    if not 1 <= count <= MOST:
        raise InputError(f"`count` is {count}: choose from 1 to {MOST:,} images, and label more in a second round")


def _errors(probabilities: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The probabilities, minus 1 at the most probable class."""
    errors: npt.NDArray[np.float64] = probabilities.copy()
    errors[np.arange(len(errors)), probabilities.argmax(1)] -= 1
    return errors


def _longest(squares: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """The rows of the `POOL` greatest values, in their order; of equal ones, the first."""
    rows: npt.NDArray[np.int64] = np.sort(np.argsort(-squares, kind="stable")[:POOL])
    return rows


def _spread(errors: npt.NDArray[np.float64], features: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.int64]:
    """Rows drawn by k-means++ among the outer products of `errors` (n, C) and `features` (n, D), which are not made."""
    random = np.random.default_rng(0)
    squares = np.square(errors).sum(1) * np.square(features).sum(1)
    nearest = squares.copy()
    drawn: list[int] = []
    for _ in range(min(count, len(errors))):
        total = np.cumsum(nearest)
        if total[-1] > 0:
            row = int(np.searchsorted(total, random.random() * total[-1], side="right"))
        else:  # all that is left equals one that was drawn, or is certain
            row = int(np.argmin(np.isin(np.arange(len(errors)), drawn)))
        drawn.append(row)
        between = squares + squares[row] - 2 * (errors @ errors[row]) * (features @ features[row])
        np.minimum(nearest, between.clip(0), out=nearest)
        nearest[row] = 0
    return np.array(drawn, np.int64)


# --- images


@dataclass(frozen=True)
class ToLabel:
    """What `choose_to_label` did."""

    table: Path
    """The file that was written."""
    chosen: int
    """Its rows."""
    images: int
    """The images that were looked at."""
    errors: int
    """How many of them have no labels."""
    first_error: str
    """The first of these, and why; empty if there is none."""
    seconds: float
    """From the first image read to the file written; loading the model isn't in it."""
    device: str
    """What ran the model: "cpu", or "cuda:N"."""
    provider: str
    """ONNX Runtime's name of it."""
    counts: dict[str, int]
    """Chosen images by their predicted label, most frequent first."""

    def record(self) -> dict[str, object]:
        """All of it as values that JSON knows."""
        return {
            "table": str(self.table),
            "chosen": self.chosen,
            "images": self.images,
            "errors": self.errors,
            "first_error": self.first_error or None,
            "seconds": self.seconds,
            "device": self.device,
            "provider": self.provider,
            "classes": self.counts,
        }


def choose_to_label(
    model: str | Path,
    inputs: Sequence[str | Path],
    output: str | Path,
    count: int,
    options: PredictOptions = DEFAULTS,
    *,
    progress: Callable[[int], None] | None = None,
) -> ToLabel:
    """Write the list of the images that a person should label (see `worth_labelling`).

    The list is CSV with the columns path, label, label_1, probability_1, ..., label_K, probability_K. Paths are
    absolute, `label` is empty, and the others are what the model says. `autodial init --labelled-target` reads the file
    once labels are filled in. The first rows are the most useful ones.

    Memory doesn't grow with the number of images: at most 20,000 images' paths and probabilities are held.

    Args:
        model, inputs, progress: as in `predict_folder`.
        output: a .csv file that doesn't exist, as it might hold labels that somebody has filled in.
        count: how many images, from 1 to 1,000.
        options: how images get labels, and what the list says of them. Those for a table of all images are refused:
            `logits`, `shard`, `resume`, `drift`, `column` and `ray`. With `sort_into`, the chosen images are sorted.

    Raises:
        InputError: something that was given can't be used.
        WorkError: the model's run or writing fails, more images than `max_failures`, or no image has a label.
    """
    check_sequence(inputs)
    _check_count(count)
    for name in _OF_ALL:
        if getattr(options, name) != getattr(DEFAULTS, name):
            raise InputError(f"`{name}` is for a table of all images, and `count` writes a few: leave out one")
    final = check_output(output, (model, *inputs))
    if not str(output).lower().endswith(".csv"):
        raise InputError(f"{output}: images to label are listed in CSV, to be filled in: name a file that ends in .csv")
    if final.exists():
        raise InputError(f"{output} exists, and may hold labels that were filled in: name another file, or delete it")
    if (other := elsewhere(inputs)) is not None:
        raise _not_here(other)
    images = expand(inputs, PassedOver([final]))
    with local_model(os.fspath(model)) as file:  # also while it runs: errors name its address
        predictor = Predictor(file, options.device, options.threads or available_cpus())
        classes = predictor.info.classes
        columns = options.columns(classes, os.fspath(model))
        sorter = None
        if options.sort_into is not None:
            sorter = Sorter(Path(options.sort_into), classes, copy=options.copy, inputs=inputs, resume=False)
        started = time.perf_counter()
        looked = _look(predictor, images, options, progress)

    chosen, probabilities = looked.pool.draw(count)
    rows = score([_lasting(image) for image in chosen], probabilities, probabilities, columns)
    if sorter is not None:
        for number, row in enumerate(rows):
            try:
                sorter.place(Path(row.path), row.classes[0], number)
            except FileNotFoundError:
                raise WorkError(f"{row.path} was removed before it could be sorted: run the command again") from None
    form = _ListToLabel(columns)
    with replacing(final) as written:
        written.write(form.header() + form.encode(rows))
    return ToLabel(
        table=Path(output),
        chosen=len(rows),
        images=looked.images,
        errors=looked.errors,
        first_error=looked.first_error,
        seconds=time.perf_counter() - started,
        device=predictor.device,
        provider=predictor.provider,
        counts=dict(Counter(classes[row.classes[0]] for row in rows).most_common()),
    )


class _Looked(NamedTuple):
    """What came of looking at all images; the numbers are ToLabel's."""

    pool: _Pool
    images: int
    errors: int
    first_error: str


def _look(
    predictor: Predictor, images: Iterator[ImageFile], options: PredictOptions, progress: Callable[[int], None] | None
) -> _Looked:
    """Run the model on all images; WorkError as `choose_to_label` says."""
    pool, failed, done, first_error = _Pool(len(predictor.info.classes)), 0, 0, ""
    workers = options.workers or available_cpus()
    reader = read_batches(predictor, images, options.batch_size, workers, label_damaged=options.label_damaged)
    with contextlib.closing(reader) as batches:
        for batch in batches:
            done += len(batch.images)
            whole = np.zeros(batch.readable, bool)
            if batch.readable:
                fed = batch.buffer if predictor.fixed_batches else batch.buffer[: batch.readable]
                probabilities = predictor.run(fed)[1][: batch.readable]
                whole = np.asarray(np.isfinite(probabilities).all(1))
                readable = [i for i, why in zip(batch.images, batch.errors, strict=True) if why is None]
                pool.add([image for image, good in zip(readable, whole, strict=True) if good], probabilities[whole])
            lost = len(batch.images) - int(whole.sum())
            if lost and not first_error:
                first_error = next(
                    (f"{i.path}: {e}" for i, e in zip(batch.images, batch.errors, strict=True) if e is not None),
                    "the model gives probabilities that are not finite",
                )
            failed += lost
            if options.max_failures is not None and failed > options.max_failures:
                raise WorkError(
                    f"{first_error}; {counted(failed, 'image has', 'images have')} no label, which is more than "
                    f"{counted(options.max_failures, 'failure')}, so the run stops"
                )
            if progress is not None:
                progress(done)
    if failed == done:
        raise WorkError(f"no image can be labelled, the first one because of this: {first_error}")
    return _Looked(pool, done, failed, first_error)


def _lasting(image: ImageFile) -> str:
    """An image's path, absolute, so that the list can be used anywhere on this machine."""
    if type(image) is not ImageFile:
        raise _not_here(image.path)
    return os.path.abspath(image.file())  # noqa: PTH100 - links stay links


def _not_here(name: str) -> InputError:
    return InputError(f"images to label must be files of this machine, and {name} is not: copy the images here")


class _ListToLabel(Csv):
    """The list: a column for the label that a person fills in, then what the model says."""

    def header(self) -> bytes:
        ranks = [f"{column}_{rank}" for rank in self._ranks() for column in ("label", "probability")]
        return self._lines([["path", "label", *ranks, *(["entropy"] if self.columns.entropy else [])]])

    def _fields(self, row: TableRow) -> list[str]:
        path, _, *said, _ = super()._fields(row)
        return [path, "", *said]


class _Pool:
    """The least certain of the images that were added, at most twice `POOL` at a time, in their order."""

    def __init__(self, classes: int) -> None:
        self._images: list[ImageFile] = []
        self._parts: list[Scores] = [np.empty((0, classes), np.float32)]

    def add(self, images: Sequence[ImageFile], probabilities: Scores) -> None:
        """Add images and their probabilities (images, classes)."""
        self._images += images
        self._parts.append(probabilities)
        if len(self._images) >= 2 * POOL:
            self._shrink()

    def draw(self, count: int) -> tuple[list[ImageFile], Scores]:
        """The images worth labelling, and their probabilities."""
        probabilities = np.concatenate(self._parts)
        drawn = worth_labelling(probabilities, count)
        return [self._images[row] for row in drawn], probabilities[drawn]

    def _shrink(self) -> None:
        probabilities = np.concatenate(self._parts)
        kept = _longest(np.square(_errors(probabilities.astype(np.float64))).sum(1))
        self._images = [self._images[row] for row in kept]
        self._parts = [probabilities[kept]]
