"""A comparison's folder: what all methods share, each method's net and solver, and the results so far."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypedDict

import numpy as np
import torch

from autodial import proto
from autodial.comparison.methods import METHODS, Method, Shallow, solver_for, trained
from autodial.comparison.shallow import MOST_FEATURES
from autodial.comparison.shallow_job import ShallowJob
from autodial.converters.net_text import net_to_text
from autodial.errors import InputError
from autodial.netparam.variants import FIXING
from autodial.project.files import list_text
from autodial.project.net_template import SOURCE_LIST, TARGET_LIST, TEST_LIST
from autodial.project.plan import LABELS, NET, SOLVER, START
from autodial.project.project import Project, real_paths
from autodial.proto import messages as pb
from autodial.proto import to_text, write_weights
from autodial.selection.candidates import Candidate
from autodial.selection.choice import Trial
from autodial.selection.holdout import SourceLists
from autodial.selection.outputs import count_features
from autodial.selection.process_job import ProcessJob, Result
from autodial.selection.training_job import (
    CONTEXT_BYTES,
    TrainingJob,
    snapshot_settings,
    training_device,
    training_memory,
)
from autodial.system import json_files
from autodial.system.files import entries, replacing, replacing_files
from autodial.system.hashing import file_hash, text_hash
from autodial.system.seeding import derive_seed
from autodial.training.solver import Solver
from autodial.wording import command_line, counted

RECORD = "comparison.json"
RESULTS = "results.json"
SAMPLE_LIST = "sample.txt"
SAMPLE = 5000
"""Most source images whose features and predictions are compared with the target's."""
_BASE_NET, _BASE_SOLVER, _REQUEST = "base.prototxt", "base_solver.prototxt", "request.json"
_SCHEMA = 1


class Inputs(TypedDict):
    """What a comparison was made from: the images' absolute paths, and options; None for what was not named."""

    source: str
    target: str
    test: str | None
    base: str
    weights: str | None
    epochs: float | None
    batch_size: int | None
    skip_bad: bool
    same_schedule: bool


class Request(TypedDict):
    """The cells that were asked for last."""

    methods: list[str]
    seeds: list[int]
    target_labels: bool


class _Record(TypedDict):
    """The file RECORD.

    Attributes:
        folder: the folder, as the nets name files in it.
        weights: files that training starts from, with their hashes.
        images: number of images of the source, of the target, and of labelled ones, or 0.
        batch: number of source and of target images in a batch.
        classes: number of classes.
    """

    schema: int
    folder: str
    inputs: Inputs
    weights: dict[str, str]
    images: list[int]
    batch: list[int]
    classes: int


@dataclass(frozen=True)
class Cell:
    """One run of a method.

    Attributes:
        method: a name in METHODS.
        seed: the run's seed.
        job: what computes it.
    """

    method: str
    seed: int
    job: ProcessJob

    @property
    def finished(self) -> bool:
        """Whether its result is there."""
        return self.result is not None

    @property
    def ready(self) -> bool:
        """Whether it is to be run: not finished, and the net that it needs is there."""
        waits = isinstance(self.job, ShallowJob) and not (self.job.net / "outputs.npz").exists()
        return not self.finished and not waits

    @property
    def result(self) -> Result | None:
        """The cell's result; None if it is not finished."""
        return self.job.result()


def holds_comparison(folder: Path) -> bool:
    """Whether there is a comparison in a folder."""
    return (folder / RECORD).is_file()


def create(project: Project, inputs: Inputs, request: Request) -> Callable[[], None]:
    """Make a comparison's folder: the images' lists, the base net with its solver, and what training starts from.

    Args:
        project: the base net and its solver for the images, with as many source as target images in a batch.
        inputs: what it was made from.
        request: the cells that are asked for first.

    Returns:
        What takes the comparison away again, for one that is refused before anything is trained.

    Raises:
        WorkError: a file can't be written.
    """
    folder, data, plan = project.folder.absolute(), project.data, project.plan
    net, solver = pb.NetParameter(), pb.SolverParameter()
    net.CopyFrom(plan.net)
    for layer in net.layer:
        if layer.type == "ImageData":
            layer.image_data_param.source = str(folder / layer.image_data_param.source)
    solver.CopyFrom(plan.solver)
    solver.net = str(folder / _BASE_NET)
    source = list_text(data.source, labels=True)
    lines = source.splitlines(keepends=True)
    drawn = np.random.default_rng(derive_seed(0, "sample")).permutation(len(lines))[:SAMPLE]
    texts = {
        SOURCE_LIST: source,
        SAMPLE_LIST: "".join(lines[number] for number in np.sort(drawn)),
        TARGET_LIST: list_text(data.target, labels=False),
        **({TEST_LIST: list_text(data.test, labels=True)} if data.test else {}),
        LABELS: "".join(f"{name}\n" for name in data.classes),
        _BASE_NET: net_to_text(net, header=["The AutoDIAL net from which `autodial compare` makes each method's."]),
        _BASE_SOLVER: "# Its solver, made by `autodial compare`.\n" + to_text(solver),
        _REQUEST: json.dumps(request, indent=2),
    }
    withdraw = partial(_withdraw, folder, keep=folder.exists())
    folder.parent.mkdir(parents=True, exist_ok=True)
    with replacing_files(folder, last=RECORD) as aside:
        for name, text in texts.items():
            (aside / name).write_bytes(text.encode(errors="surrogateescape"))
        if project.start is None:
            files = real_paths(project.weights).split(",") if project.weights else []
            weights = {path: file_hash(Path(path)) for path in files}
        else:
            write_weights(project.start, aside / START)
            weights = {str(folder / START): file_hash(aside / START)}
        record = _Record(
            schema=_SCHEMA,
            folder=str(folder),
            inputs=inputs,
            weights=weights,
            images=[len(data.source.images), len(data.target.images), len(data.test.images) if data.test else 0],
            batch=[plan.split.source, plan.split.target],
            classes=len(data.classes),
        )
        (aside / RECORD).write_bytes(json.dumps(record, indent=2).encode())
    return withdraw


def _withdraw(folder: Path, *, keep: bool) -> None:
    """Delete what a folder holds and, unless `keep`, the folder."""
    for path in entries(folder):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    if not keep:
        folder.rmdir()


class Comparison:
    """A comparison in its folder.

    Args:
        folder: the folder that `create` made.

    Attributes:
        folder: its absolute path.
        inputs: what it was made from.

    Raises:
        InputError: the folder holds no comparison, was moved, or holds a damaged one; or the weights have changed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        if not holds_comparison(folder):
            raise InputError(f"{folder} holds no comparison: name `source`, `target` and `base` to begin one")
        record = json_files.read(folder / RECORD, _Record, remedy="name another folder")
        if record["schema"] != _SCHEMA:
            raise InputError(f"{folder} holds a comparison of another version of AutoDIAL: name another folder")
        if record["folder"] != str(self.folder):
            raise InputError(f"{folder} was moved from {record['folder']}, where its nets look for files: move it back")
        for path, known in record["weights"].items():
            if not Path(path).is_file() or file_hash(Path(path)) != known:
                raise InputError(f"{path} is not the file from which {folder} was begun: put that file back")
        self.inputs = record["inputs"]
        self._record = record
        self._net = proto.read_net(self.folder / _BASE_NET)
        self._solver = proto.read_solver(self.folder / _BASE_SOLVER)

    @property
    def weights(self) -> list[str]:
        """The files that every training starts from."""
        return list(self._record["weights"])

    @property
    def labelled(self) -> bool:
        """Whether labels of the target are known."""
        return self._record["images"][2] > 0

    @property
    def pair(self) -> str:
        """The pair of domains in words, by the last parts of the images' paths that tell them apart."""
        source, target = (Path(self.inputs[name]).parts for name in ("source", "target"))
        number = next(n for n in range(1, max(len(source), len(target)) + 1) if source[-n:] != target[-n:])
        return f"{'/'.join(source[-number:])} to {'/'.join(target[-number:])}"

    def request(self) -> Request | None:
        """The cells that were asked for last; None if nothing says so."""
        path = self.folder / _REQUEST
        return json_files.read(path, Request, remedy="delete it") if path.exists() else None

    def remember(self, request: Request) -> None:
        """Keep what is asked for."""
        with replacing(self.folder / _REQUEST) as file:
            file.write(json.dumps(request, indent=2).encode())

    def check_inputs(self, inputs: Inputs) -> None:
        """Raise InputError if the comparison was made from something else."""
        differing = [name for name, value in inputs.items() if self.inputs[name] != value]  # type: ignore[literal-required]
        if differing:
            name = differing[0]
            known = self.inputs[name]  # type: ignore[literal-required]
            given = "not given" if known in (None, False) else "given" if known is True else shlex.quote(str(known))
            raise InputError(
                f"{self.folder} holds a comparison with `{name}` {given}: give the same, or name another folder"
            )

    def conditions(self, methods: Sequence[str], *, measured: bool) -> list[str]:
        """What all methods have in common, in sentences; `measured` says whether accuracies are known."""
        nets = [method for name in trained(methods) if isinstance(method := METHODS[name], Method)]
        source, target, tested = self._record["images"]
        batch = self._record["batch"]
        start = self.inputs["weights"] or ", ".join(self.weights) or "random weights"
        course = "the base net's" if self.inputs["same_schedule"] else "each method's own, as its authors released it"
        return [
            f"All methods have the same lists of {source} source and {target} target images and the same crops, "
            f"{batch[0]} source and {batch[1]} target images in a batch, and "
            f"{counted(self._solver.max_iter, 'iteration')}",
            f"All start from {self.inputs['base']} with {start}; the course of the learning rate is {course}",
            *(
                ["After training, the statistics of Dial layers were computed over all images (`autodial recalibrate`)"]
                if any(has_dial(method.make(self._net, self._solver.max_iter)) for method in nets)
                else []
            ),
            *([f"Accuracy is that on {tested} labelled target images"] if measured else []),
        ]

    def cells(self, methods: Sequence[str], seeds: Sequence[int], *, device: str, target_labels: bool) -> list[Cell]:
        """The cells of some methods and seeds, nets that others need included; writes the methods' files.

        Args:
            methods: names in METHODS.
            seeds: a cell of each method for each.
            device: as `choose_device` takes it.
            target_labels: whether predictions are to be compared with the target's labels.

        Raises:
            InputError: a method does not fit the base net; a method's files were changed after a cell of it had begun;
                or labels are asked for, and there are none.
        """
        if target_labels and not self.labelled:
            raise InputError(
                "`target_labels`: no labels of the target are known: begin a comparison whose target has the source's "
                "class folders, or name labelled images with `test`"
            )
        labels = text_hash((self.folder / TEST_LIST).read_text()) if target_labels else ""
        nets = [self._training_cells(name, seeds, device, labels) for name in trained(methods)]
        aligned = [self._shallow_cells(name, seeds, labels) for name in methods if isinstance(METHODS[name], Shallow)]
        return [cell for cells in (*nets, *aligned) for cell in cells]

    def device(self, device: str) -> torch.device:
        """The device that trainings choose for `device`, as `choose_device` takes it; nothing is built on it."""
        return training_device(self._solver, device)

    def check(self, cells: Sequence[Cell]) -> int:
        """Find what would stop trainings later; returns the bytes that the largest is expected to take.

        Raises:
            InputError: a net can't be built, its features are too many for an alignment, or an image is missing.
        """
        largest = CONTEXT_BYTES
        if not all(cell.finished for cell in cells):
            # the base net reads all lists: a method's net may lack the target's, and alignments read it, too
            Solver.from_file(self.folder / _BASE_SOLVER, device="cpu").check()
        firsts = {cell.method: cell.job for cell in cells if isinstance(cell.job, TrainingJob) and not cell.finished}
        for method, job in firsts.items():
            assert isinstance(job, TrainingJob)
            try:
                solver = Solver.from_file(job.solver, device="cpu", overrides=job.overrides, variants=job.variants)
                if job.weights:
                    solver.load_weights(job.weights)
            except InputError as error:
                raise InputError(f"method {method}: {error}") from error
            largest = max(largest, training_memory(solver))
            solver.close()
        for name in dict.fromkeys(c.method for c in cells if isinstance(c.job, ShallowJob) and not c.finished):
            self._check_features(name)
        return largest

    def _check_features(self, name: str) -> None:
        """Refuse a Shallow for a net whose classifier reads more values than an alignment takes."""
        method = METHODS[name]
        assert isinstance(method, Shallow)
        net = self.folder / method.net / NET
        try:
            count = count_features(proto.read_net(net), self.folder / TARGET_LIST, net.parent)
        except InputError as error:
            raise InputError(f"method {name}: {error}") from error
        if count > MOST_FEATURES:
            raise InputError(
                f"method {name}: the classifier of {net} reads {count:,} values, and an alignment takes at most "
                f"{MOST_FEATURES:,}: leave {name} out of `methods`"
            )

    @staticmethod
    def waves(cells: Sequence[Cell]) -> list[list[Cell]]:
        """Cells that are run together: the nets, then the alignments of their features."""
        return [[cell for cell in cells if isinstance(cell.job, kind)] for kind in (TrainingJob, ShallowJob)]

    def trials(self, methods: Sequence[str], cells: Sequence[Cell], failures: Mapping[Path, str]) -> list[Trial]:
        """Results of the cells of some methods, in the order of the cells.

        Args:
            methods: the methods that were asked for.
            cells: all cells.
            failures: by folder, why a process ended without a result.

        Raises:
            InputError: a damaged result.
        """
        return [_trial(cell, failures) for cell in cells if cell.method in methods]

    def commands(self, method: str, seed: int) -> dict[str, str]:
        """Command lines for a run of a method; none for a Shallow.

        "train" trains its net once more, with all files in the working directory. "recalibrate" then computes the
        statistics over all images, as they are in the run's weights; it is there if the net has Dial layers. "export"
        exports the run's weights.
        """
        chosen = METHODS[method]
        if isinstance(chosen, Shallow):
            return {}
        folder, again = self.folder / method, f"{method}_seed_{seed}"
        variant = [method] if method in FIXING else []
        weights = ",".join(self.weights) or None
        suffix = ".h5" if self._solver.snapshot_format == pb.SolverParameter.HDF5 else ""
        recalibrate = command_line(
            "autodial recalibrate",
            {
                "--net": folder / NET,
                "--weights": f"{again}_iter_{self._solver.max_iter}.caffemodel{suffix}",
                "-o": f"{again}.caffemodel",
            },
        )
        return {
            "train": command_line(
                "autodial train",
                {
                    "--solver": folder / SOLVER,
                    "--weights": weights,
                    "--variant": variant,
                    "--seed": seed,
                    "--set": f"solver.snapshot_prefix={again}",
                },
            ),
            **({"recalibrate": recalibrate} if has_dial(chosen.make(self._net, self._solver.max_iter)) else {}),
            "export": command_line(
                "autodial export",
                {
                    "--net": folder / NET,
                    "--weights": folder / f"seed_{seed}" / "weights.caffemodel",
                    "--labels": self.folder / LABELS,
                    "-o": "target_predictor.onnx",
                },
            ),
        }

    def _training_cells(self, name: str, seeds: Sequence[int], device: str, labels: str) -> list[Cell]:
        net, solver = self._files(name)
        method_folder = self.folder / name
        cells = []
        for seed in seeds:
            folder = method_folder / f"seed_{seed}"
            job = TrainingJob(
                folder=folder,
                name=f"{name}, seed {seed}",
                lists=(SourceLists(self.folder / SOURCE_LIST, None, self.folder / SAMPLE_LIST),),
                solver=method_folder / SOLVER,
                weights=tuple(self.weights),
                variants=(name,) if name in FIXING else (),
                overrides=tuple(snapshot_settings(folder)),
                seed=seed,
                draw=0,
                base_dir=method_folder,
                device=device,
                recalibrate=has_dial(net),
                target_labels=labels,
                target=self.folder / TARGET_LIST,
            )
            folder.mkdir(parents=True, exist_ok=True)
            for path, text in ((job.net, to_text(net)), (folder / SOLVER, to_text(solver))):
                if path.exists() and path.read_text() != text:
                    raise InputError(
                        f"{method_folder / (NET if path == job.net else SOLVER)} was changed after {folder} was begun: "
                        f"undo that, or delete {method_folder}/seed_* to run the method again"
                    )
                with replacing(path) as file:
                    file.write(text.encode())
            cells.append(Cell(name, seed, job))
        return cells

    def _shallow_cells(self, name: str, seeds: Sequence[int], labels: str) -> list[Cell]:
        method = METHODS[name]
        assert isinstance(method, Shallow)
        cells = []
        for seed in seeds:
            job = ShallowJob(
                folder=self.folder / name / f"seed_{seed}",
                name=f"{name}, seed {seed}",
                method=name,
                net=self.folder / method.net / f"seed_{seed}",
                source=self.folder / SAMPLE_LIST,
                target=self.folder / TARGET_LIST,
                test=self.folder / TEST_LIST if labels else None,
                target_labels=labels,
                classes=self._record["classes"],
                draw=seed,
            )
            job.folder.mkdir(parents=True, exist_ok=True)
            _forget_stale(job)
            cells.append(Cell(name, seed, job))
        return cells

    def _files(self, name: str) -> tuple[pb.NetParameter, pb.SolverParameter]:
        """A method's net and solver; both are written if they are not there."""
        method, folder = METHODS[name], self.folder / name
        assert isinstance(method, Method)
        if not (folder / SOLVER).exists():
            try:
                net = method.make(self._net, self._solver.max_iter)
            except InputError as error:
                raise InputError(f"method {name}: {error}") from error
            solver = solver_for(method, self._solver, same_schedule=self.inputs["same_schedule"])
            solver.net = str(folder / NET)
            header = [f"{method.title}, made from {self.inputs['base']} by `autodial compare`. To train it once more:"]
            commands = self.commands(name, 1)
            header.append(commands["train"])
            if "recalibrate" in commands:
                header.append("The weights in seed_N then got statistics over all images. To compute these as well:")
                header.append(commands["recalibrate"])
            folder.mkdir(exist_ok=True)
            with replacing_files(folder, last=SOLVER) as aside:
                (aside / NET).write_bytes(net_to_text(net, header=header).encode(errors="replace"))
                (aside / SOLVER).write_bytes(f"# {method.title}'s solver.\n{to_text(solver)}".encode())
        return proto.read_net(folder / NET), proto.read_solver(folder / SOLVER)


def _forget_stale(job: ShallowJob) -> None:
    """Delete an alignment's result if its net was trained after it, or is still to be trained."""
    result, weights = job.folder / "result.json", job.net / "weights.caffemodel"
    if result.exists() and not (weights.exists() and weights.stat().st_mtime_ns <= result.stat().st_mtime_ns):
        result.unlink()


def has_dial(net: pb.NetParameter) -> bool:
    """Whether a net has Dial layers."""
    return any(layer.type == "Dial" for layer in net.layer)


def _trial(cell: Cell, failures: Mapping[Path, str]) -> Trial:
    reason = "it has not been run"
    if isinstance(cell.job, ShallowJob) and not cell.ready:
        reason = f"it aligns features of {cell.job.net.parent.name}, which failed"
    return Trial.of(Candidate((), cell.method, cell.seed), cell.job, failures.get(cell.job.folder, reason))
