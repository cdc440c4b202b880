"""Labels any number of images and writes one table: inputs -> reader -> predictor -> writer."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from autodial.data.paths import find
from autodial.deploy.addresses import check_writable, is_address, local_path, name_of, shown
from autodial.deploy.drift import Counts, Drift, read_reference
from autodial.deploy.engine import Engine, Labelled, LocalEngine, Work, versions
from autodial.deploy.inputs import STANDARD_INPUT, PassedOver, check_sequence, elsewhere, expand
from autodial.deploy.marks import Done
from autodial.deploy.metadata import ModelInfo
from autodial.deploy.model_source import local_model
from autodial.deploy.options import DEFAULTS, WHOLE, PredictOptions
from autodial.deploy.predictions import STATUSES
from autodial.deploy.predictor import Predictor
from autodial.deploy.rows import Csv, TableRow, format_of
from autodial.deploy.sorting import Sorter
from autodial.deploy.sources import ImageFile
from autodial.deploy.writer import STANDARD_OUTPUT, Table, open_table, unfinished, write_whole
from autodial.errors import InputError, WorkError
from autodial.system.cpus import available_cpus
from autodial.system.hashing import file_hash
from autodial.system.outputs import check_output
from autodial.wording import counted

_FETCHING = 16
"""Threads that decode images from addresses, at least: they mostly wait."""


@dataclass(frozen=True)
class Stage:
    """One of the three things that are done to every image."""

    name: str
    """"decode" (reading and resizing included), "run" or "write"."""
    images: int
    seconds: float
    """Time spent on them; divided by the number of threads, where several do it."""

    @property
    def images_per_second(self) -> float:
        """What the stage would reach if nothing else kept it waiting; while stages share CPUs, they slow each other."""
        return self.images / self.seconds if self.seconds else float("inf")


@dataclass(frozen=True)
class Summary:
    """What `predict_folder` did."""

    table: Path | str
    """The file that was written: with `shard`, not quite `output`. An address is a text without credentials."""
    images: int
    """Rows of the table."""
    errors: int
    """Rows without labels."""
    resumed: int
    """Rows that an interrupted run had written before."""
    seconds: float
    """From the first image read to the last row written; loading the model isn't in it."""
    device: str
    """What ran the model: "cpu", or "cuda:N"."""
    provider: str
    """ONNX Runtime's name of it."""
    reason: str
    """Why it ran there: "asked for", or what device "auto" found."""
    cuda_failure: str | None
    """Why this machine's GPU wasn't used, if it has one and device "auto" had to go on without it."""
    counts: Mapping[str, int]
    """Images by their first label, for the classes that occur, most frequent first."""
    stages: Sequence[Stage]
    """The stages, the slowest first."""
    passed_over: Mapping[str, int] = field(default_factory=dict)
    """Files of the folders and patterns that were no images by their names, or hidden ("hidden"), by suffix, the most
    frequent first."""
    drift: Drift | None = None
    """How the images compare with the model's training list, where that was asked for."""
    statuses: Mapping[str, int] = field(default_factory=dict)
    """Rows by their status: ok, damaged (with labels or without) or error."""

    @property
    def images_per_second(self) -> float:
        """Rows per second that this run made."""
        return (self.images - self.resumed) / self.seconds

    def record(self) -> dict[str, object]:
        """All of it as values that JSON knows."""
        return {
            "table": str(self.table),
            "rows": self.images,
            "statuses": {status: self.statuses.get(status, 0) for status in STATUSES},
            "classes": dict(self.counts),
            "resumed": self.resumed,
            "seconds": self.seconds,
            "images_per_second": self.images_per_second,
            "device": self.device,
            "provider": self.provider,
            "reason": self.reason,
            "cuda_failure": self.cuda_failure,
            "stages": [
                asdict(stage) | {"images_per_second": stage.images_per_second if stage.seconds else None}
                for stage in self.stages
            ],
            "passed_over": dict(self.passed_over),
            "drift": None if self.drift is None else self.drift.record(),
        }


def predict_folder(
    model: str | Path,
    inputs: Sequence[str | Path],
    output: str | Path,
    options: PredictOptions = DEFAULTS,
    *,
    progress: Callable[[int], None] | None = None,
) -> Summary:
    """Label the images that `inputs` name with `model` and write the table `output`.

    The table has a row per image in the order of `autodial.deploy.inputs.expand`: path, status, label_1,
    probability_1, ..., label_K, probability_K, error (see `autodial.deploy.rows`). An image that can't be read is a row
    with status "error" and the reason; one that is damaged, and can be decoded all the same, has status "damaged", its
    labels, and what the decoder says. Damage is seen as `autodial.data.transforms.read_image` says.

    A run that is cut short, even killed, leaves its rows in `output`.partial; one with `resume` and the same arguments
    goes on from there and, on the CPU, ends with the same table byte for byte. Batches are the same, too: rows from
    `batch_size` times n on. An image that has changed since its row was written, by its file's size or time of
    modification, is an error, and with `sort_into` the images of rows that are done are sorted again.

    Args:
        model: the file that `autodial export` wrote, or its address.
        inputs: files, folders, lists (.txt, or "-" for one on standard input), tables (.parquet) and glob patterns, or
            addresses of them.
        output: a file or an address whose suffix says what it is, .csv, .jsonl or .parquet, replaced only when the
            whole table is written (see `open_table`); "-" is CSV on standard output.
        options: how images get labels, and what the table says of them.
        progress: called with the number of rows after every batch.

    Raises:
        InputError: something that was given can't be used; found before the first image is read, but for inputs that
            have changed since the run that is resumed.
        WorkError: a GPU that was asked for, the model's run, or writing fails, or more images than `max_failures`.
        KeyboardInterrupt: with a message that says where the rows done so far are.
    """
    check_sequence(inputs)
    index, count = options.shard
    if not 1 <= index <= count:
        raise InputError(
            f"shard {index}/{count}: shards count from 1, so of {count} there are 1/{count} to {count}/{count}"
        )
    standard_output = sys.stdout  # Ray's messages are kept off it
    output = local_path(os.fspath(output))
    streamed = output == STANDARD_OUTPUT
    if streamed and options.resume:
        raise InputError("standard output can't be resumed: write to a file")
    model, given = local_path(os.fspath(model)), [local_path(os.fspath(used)) for used in inputs]
    own: list[Path] = []
    if not streamed:
        output = _of_shard(output, options.shard)
        final = _check_table(output, (model, *given))
        own += [final, *unfinished(final)]
    drift: Path | None = None
    if options.drift is not None:
        name = _of_shard(os.fspath(options.drift), options.shard)
        drift = check_output(name, (model, *given), suffixes=[".json"])
        if drift in own:
            raise InputError(f"{drift}: what an interrupted run leaves has this name; choose another one for `drift`")
        own.append(drift)
    form = format_of(name_of(output) if is_address(output) else output)
    if options.spreadsheet_safe and form is not Csv:
        raise InputError(
            f"{shown(output)}: `spreadsheet_safe` is for CSV, whose formulas spreadsheets run: leave it out"
        )
    if options.sort_into is not None and (other := elsewhere(given)) is not None:
        raise InputError(f"`sort_into` takes files of this machine, and {other} is none: leave it out")
    passed_over = PassedOver(own)
    images: Iterator[ImageFile] = islice(expand(given, passed_over, column=options.column), index - 1, None, count)

    with contextlib.ExitStack() as stack:
        file = stack.enter_context(local_model(model))
        hashing = stack.enter_context(ThreadPoolExecutor(1, "hash"))
        digest = None if streamed else hashing.submit(_model_hash, file)
        # where a cluster runs the model, a look at it here finds what is wrong with it
        device = options.device if options.ray is None else "cpu"
        predictor = Predictor(file, device, options.threads or available_cpus())
        info = predictor.info
        classes = info.classes
        columns = options.columns(classes, model)
        statistics = None if drift is None else Counts(read_reference(info, model), classes)
        sorter = None
        if options.sort_into is not None:
            taken = options.resume or options.shard != WHOLE
            sorter = Sorter(Path(options.sort_into), classes, copy=options.copy, inputs=given, resume=taken)
        work = Work(columns, options.batch_size, statistics is not None, options.label_damaged)
        fetching = _FETCHING if any(map(is_address, given)) else 1
        engine: Engine
        if options.ray is None:
            engine = LocalEngine(predictor, work, options.workers or max(available_cpus(), fetching))
        else:
            from autodial.deploy.ray_cluster import Cluster

            del predictor
            cluster = stack.enter_context(
                Cluster(
                    *(options.ray, file, work),
                    device=options.device,
                    workers=options.workers,
                    threads=options.threads or 1,
                    fetching=fetching,
                )
            )
            engine, images = cluster, cluster.start(images)
        settings: dict[str, Any] = {}
        if digest is not None:
            settings = {
                "model_sha256": digest.result(),
                "inputs": [_absolute(used) for used in given],
                "column": options.column,
                "top_k": options.top_k,
                "logits": options.logits,
                "entropy": options.entropy,
                "spreadsheet_safe": options.spreadsheet_safe,
                "batch_size": options.batch_size,
                "label_damaged": options.label_damaged,
                "shard": list(options.shard),
                "sort_into": None if options.sort_into is None else os.path.abspath(options.sort_into),  # noqa: PTH100
                "copy": options.copy,
                "drift": drift is not None,
                "provider": engine.provider,
                "versions": versions(),
            }
            if is_address(output):
                settings["output"] = shown(output)

        opening = open_table(
            *(output, form(columns), settings),
            resume=options.resume,
            statistics=statistics,
            standard_output=standard_output,
        )
        with opening as table:
            done = table.tally.rows
            run = _Run(table, sorter, options.shard, options.max_failures, progress)
            run.skip(table.skip_done(images))
            started = time.perf_counter()
            run.do(engine.label(images))
            seconds = time.perf_counter() - started
            compared = None
            if statistics is not None and drift is not None:
                compared = statistics.compare(table.tally.counts)
                # Before the table has its name, so that a run that is killed in between is resumed and does both.
                _write_drift(compared, info, drift, table.tally.errors)
    tally = table.tally
    stages = [
        Stage("decode", tally.rows - done, engine.decoding),
        Stage("run", tally.rows - done, engine.running),
        Stage("write", tally.rows - done, run.writing),
    ]
    return Summary(
        table=shown(output) if is_address(output) else Path(output),
        images=tally.rows,
        errors=tally.errors,
        resumed=done,
        seconds=seconds,
        device=engine.device,
        provider=engine.provider,
        reason=engine.reason,
        cuda_failure=engine.cuda_failure,
        counts={classes[i]: n for i, n in tally.counts.most_common()},
        stages=sorted(stages, key=lambda stage: stage.images_per_second),
        passed_over=dict(passed_over.kinds.most_common()),
        drift=compared,
        statuses=tally.statuses,
    )


class _Run:
    """Writes what an engine has labelled; while a batch runs there, the rows of the one before are written."""

    def __init__(
        self,
        table: Table,
        sorter: Sorter | None,
        shard: tuple[int, int],
        max_failures: int | None,
        progress: Callable[[int], None] | None,
    ) -> None:
        self._table = table
        self._sorter = sorter
        self._shard = shard
        self._max_failures = max_failures
        self._progress = progress
        self.writing = 0.0
        """Seconds that writing has taken."""

    def skip(self, done: Iterator[Done]) -> None:
        """Go past the images whose rows an earlier run wrote, and sort them again, as their folder may be gone."""
        for row, image, label in done:
            if self._sorter is not None and label is not None:
                self._place(image, label, row)

    def do(self, labelled: Generator[Labelled, None, None]) -> None:
        written: Future[None] | None = None
        with ThreadPoolExecutor(1, "write") as writer, contextlib.closing(labelled) as parts:
            for part in parts:
                if written is not None:
                    self._wait(written)
                written = writer.submit(self._write, part)
            if written is not None:
                self._wait(written)

    def _wait(self, written: Future[None]) -> None:
        written.result()
        if self._progress is not None:
            self._progress(self._table.tally.rows)

    def _write(self, part: Labelled) -> None:
        started = time.perf_counter()
        rows = part.rows()
        if self._sorter is not None:
            rows = [self._sorted(i, image, row) for i, (image, row) in enumerate(zip(part.images, rows, strict=True))]
        self._check_failures(rows)
        self._table.write(rows, part.states)
        self.writing += time.perf_counter() - started

    def _sorted(self, i: int, image: ImageFile, row: TableRow) -> TableRow:
        """Put the image into its label's folder; the row says so if it is gone."""
        if row.error is not None:
            return row
        try:
            self._place(image, row.classes[0], self._table.tally.rows + i)
        except (InputError, FileNotFoundError):
            return TableRow(row.path, "it was removed before it could be sorted")
        return row

    def _place(self, image: ImageFile, label: int, row: int) -> None:
        """Put the image of a row of this shard, counted from 0, into its label's folder."""
        assert self._sorter is not None
        if type(image) is not ImageFile:
            raise WorkError(f"{image.path}: `sort_into` takes files of this machine, and this is none: leave it out")
        index, count = self._shard
        self._sorter.place(find(image.path, image.base_dir), label, row * count + index)

    def _check_failures(self, rows: Sequence[TableRow]) -> None:
        """Raise WorkError if, with `rows`, there are too many errors; they aren't written, so as to be done again."""
        if self._max_failures is None:
            return
        failed = [row for row in rows if row.error is not None]
        left = self._max_failures - self._table.tally.errors
        if len(failed) > left:
            row = failed[max(0, left)]
            what = row.error if str(row.error).startswith(row.path) else f"{row.path}: {row.error}"
            raise WorkError(f"{what}; that is more than {counted(self._max_failures, 'failure')}, so the run stops")


def _check_table(output: str, inputs: Sequence[str]) -> Path:
    """The file that the table `output` becomes, or, if that is an address, its name in the working directory."""
    if not is_address(output):
        return check_output(output, inputs)
    if output in inputs:
        raise InputError(f"{shown(output)}: the same command reads this file: choose another name for the output")
    check_writable(output)
    return check_output(name_of(output))


def _absolute(used: str) -> str:
    """An input as it is known wherever the command is run; standard input has no folder."""
    if is_address(used):
        return shown(used)
    return used if used in STANDARD_INPUT else os.path.abspath(used)  # noqa: PTH100 - links stay links


def _of_shard(path: str, shard: tuple[int, int]) -> str:
    """The name of the file that a shard writes: `path` itself, if there is but one."""
    index, count = shard
    if shard == WHOLE:
        return path
    stem, suffix = os.path.splitext(path)  # noqa: PTH122 - addresses too
    return f"{stem}-{index}-of-{count}{suffix}"


def _write_drift(drift: Drift, info: ModelInfo, path: Path, errors: int) -> None:
    model = {"weights_sha256": info.weights_sha256, "version": info.version}
    try:
        write_whole(path, json.dumps({**drift.record(), "errors": errors, "model": model}, indent=2))
    except OSError as error:
        raise WorkError(f"{path}: can't write: {error.strerror}") from error


def _model_hash(path: Path) -> str:
    """The file's hash, or nothing if it can't be read: loading the model reports that."""
    try:
        return file_hash(path) if path.is_file() else ""  # a named pipe would be waited for
    except OSError:
        return ""
