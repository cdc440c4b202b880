"""A selection's folder: what is tried on what, and what came of it so far."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch

from autodial import proto
from autodial.data.image_data import ImageData
from autodial.data.source import Source
from autodial.errors import InputError
from autodial.evaluation.domains import data_in_test, data_in_train, fed_net
from autodial.layers import layer_class
from autodial.net.data_checks import check_data, label_readers
from autodial.net.feed import sources
from autodial.net.net import Net
from autodial.netparam.net_state import filter_net
from autodial.netparam.overrides import apply_to_nets, apply_to_solver, for_nets
from autodial.proto import messages as pb
from autodial.selection.candidates import Candidate
from autodial.selection.choice import Row, mean_measures
from autodial.selection.holdout import write_folds
from autodial.selection.job import Job, read_result
from autodial.selection.measures import Measures
from autodial.system import json_files
from autodial.system.devices import choose_device
from autodial.system.files import entries, replacing
from autodial.system.hashing import file_hash
from autodial.system.outputs import lock
from autodial.training.solver import Solver

RECORD = "experiment.json"
_CONTEXT_BYTES = 2**29
"""What a process takes before it has a net: the interpreter, torch, and on a GPU its context."""
_FORM = 1
"""Number of the form of results; those of another are not read."""
_LEAST = 10
"""Target images that a domain classifier needs, at the least, for its cross-validation."""


@dataclass(frozen=True)
class Experiment:
    """Every candidate without every fold to be held out.

    Attributes:
        inputs: what they have in common, as JSON values.
        candidates: in the order of the grid.
        jobs: of each candidate, one per fold.
        device: where they run.
        job_memory: bytes that a job is expected to take.
    """

    inputs: Mapping[str, Any]
    candidates: tuple[Candidate, ...]
    jobs: tuple[tuple[Job, ...], ...]
    device: torch.device
    job_memory: int

    def rows(self, failures: Mapping[Path, str]) -> list[Row]:
        """What is known of each candidate.

        Args:
            failures: why processes ended without a result, by job folder.
        """
        return [_row(candidate, jobs, failures) for candidate, jobs in zip(self.candidates, self.jobs, strict=True)]

    def unfinished(self) -> list[Job]:
        """The jobs that are left: the first fold of every candidate, then the second."""
        return [job for fold in zip(*self.jobs, strict=True) for job in fold if read_result(job) is None]


def prepare(
    solver: Path,
    candidates: Sequence[Candidate],
    folder: Path,
    *,
    weights: Sequence[str],
    settings: Sequence[str],
    variants: Sequence[str],
    folds: int,
    device: str,
    seed: int | None,
    target_labels: bool,
) -> Experiment:
    """Look at all that a selection depends on, and make its folder, or go on with the one that is there.

    Args:
        solver: solver.prototxt.
        candidates: what to try.
        folder: for everything.
        weights, variants: as `Training` takes them.
        settings: its overrides, those of every candidate.
        folds: how many of the source's five parts are held out, each in trainings of its own.
        device: as `Training` takes it.
        seed: of the parts and of the first fold's trainings; each further fold has the next seed. None: the solver's.
        target_labels: whether the TEST phase's list holds the target's labels.

    Raises:
        InputError: what would stop every candidate; a net whose source is not a list of images; or a folder that holds
            the selection of something else.
        WorkError: the folder can't be written to, or the device is not there.
    """
    chosen = _look_at(device, solver)
    own = [f"solver.snapshot_prefix={(folder / 'net').absolute()}", "solver.snapshot_format=BINARYPROTO"]
    run = Solver.from_file(solver, device="cpu", seed=seed, overrides=[*settings, *own], variants=variants)
    if weights:
        run.load_weights(weights)
    net = _of_both_phases(run)
    source = _source(run, net)
    for candidate in candidates:
        _refuse_own(candidate, source.name)
    try:
        nets = [_with_settings(net, candidate.settings) for candidate in candidates]
        solvers = [_solver_with(run.param, candidate.settings) for candidate in candidates]
    except InputError as error:
        raise InputError(str(error).replace("--set", "--try", 1)) from None
    labels = _test_labels(net, run.net.base_dir, needed=target_labels)
    run.check()
    _enter(folder, _fingerprint(run, net, source, weights))

    lists = write_folds(source, folder / "folds", run.seed)[:folds]
    jobs = []
    for candidate, net_param, solver_param in zip(candidates, nets, solvers, strict=True):
        of_candidate = []
        for fold, fold_lists in enumerate(lists):
            job_folder = folder / "candidates" / candidate.folder / f"fold_{fold}"
            job = Job(
                folder=job_folder.absolute(),
                settings=candidate.settings,
                fold=fold,
                lists=fold_lists,
                solver=solver,
                weights=tuple(weights),
                variants=tuple(variants),
                overrides=(
                    *settings,
                    *candidate.settings,
                    *_own_settings(job_folder, source.name, fold_lists.training),
                ),
                seed=run.seed + fold,
                max_iter=solver_param.max_iter,
                base_dir=run.net.base_dir or Path(),
                device=device,
                target_labels=labels,
            )
            job_folder.mkdir(parents=True, exist_ok=True)
            proto.write_text(net_param, job.net)
            of_candidate.append(job)
        jobs.append(tuple(of_candidate))
    inputs = {
        **{"solver": str(solver), "weights": ",".join(map(str, weights)) or None},
        **{"settings": list(settings), "variants": list(variants), "seed": run.seed, "folds": folds},
    }
    return Experiment(inputs, tuple(candidates), tuple(jobs), chosen, _memory(run))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep a second selection from working in the same folder.

    Raises:
        InputError: one does.
    """
    with (folder / "lock").open("w") as file:
        if not lock(file):
            raise InputError(f"another `autodial select` is at work in {folder}: wait, or name another folder")
        yield


def _look_at(device: str, solver: Path) -> torch.device:
    """The device that the trainings will choose, without building anything there."""
    param = proto.read_solver(solver)
    return choose_device(device, prefer_gpu=param.solver_mode == pb.SolverParameter.GPU, index=param.device_id)


def _of_both_phases(run: Solver) -> Any:
    """One NetParameter with the layers of the train net's TRAIN phase and of the first test net's, or its own, TEST."""
    param = run.net_params[0]
    both = pb.NetParameter()
    both.CopyFrom(param)
    del both.layer[:]
    tests = [net for net in run.net_params if any(_in_phase(net, pb.TEST))]
    if not tests:
        raise InputError("the solver's nets have no TEST phase, which says how to prepare images and where logits are")
    test = param if param in tests else tests[0]
    for net, phase in ((param, pb.TRAIN), (test, pb.TEST)):
        for layer in filter_net(net, phase).layer:
            copy = both.layer.add()
            copy.CopyFrom(layer)
            for field in ("phase", "include", "exclude"):
                copy.ClearField(field)
            copy.include.add(phase=phase)
    return both


def _in_phase(net: Any, phase: pb.Phase) -> Iterator[bool]:
    """Of each layer of a phase, whether it reads data."""
    return (layer_class(layer.type).is_data for layer in filter_net(net, phase).layer)


def _source(run: Solver, net: Any) -> ImageData:
    """The reader of the source's images."""
    data_in_test(net)
    domains = data_in_train(net)
    if domains is None:
        raise InputError(
            "the TRAIN phase has no Concat layer that joins a source and a target along axis 0 in front of Dial layers"
        )
    source, target = (data.layer for data in domains)
    for layer in (source, target):
        if layer.name not in sources(run.net):
            raise InputError(f'layer "{layer.name}" ({layer.type}) gets its images from a program')
    reader = sources(run.net)[source.name]
    if not isinstance(reader, ImageData):
        raise InputError(
            f'layer "{source.name}" ({source.type}): select holds out part of the source, and takes a list of images: '
            "read it with an ImageData layer"
        )
    labels = {entry.label for entry in reader.entries}
    if len(labels) < 2:
        raise InputError(f"{reader.list_path} has images of one class only")
    if len(sources(run.net)[target.name]) < _LEAST:
        raise InputError(f'layer "{target.name}": the target has fewer than {_LEAST} images, too few to compare')
    return reader


def _refuse_own(candidate: Candidate, source: str) -> None:
    """Refuse to try what the selection sets itself."""
    own = {setting.partition("=")[0] for setting in _own_settings(Path(), source, Path())}
    for setting in candidate.settings:
        if setting.partition("=")[0] in own:
            raise InputError(f"--try {setting}: select sets this field itself, for its hold-outs and snapshots")


def _own_settings(folder: Path, source: str, training: Path) -> list[str]:
    """Settings that make a training leave out the held-out images, keep its snapshots apart and test nothing."""
    return [
        f"{source}.image_data_param.source={training.absolute()}",
        f"{source}.image_data_param.root_folder=",
        f"solver.snapshot_prefix={(folder / 'net').absolute()}",
        "solver.snapshot_format=BINARYPROTO",
        "solver.snapshot_after_train=true",
        "solver.test_initialization=false",
        f"solver.test_interval={2**31 - 1}",
    ]


def _with_settings(net: Any, settings: Sequence[str]) -> Any:
    copy = pb.NetParameter()
    copy.CopyFrom(net)
    apply_to_nets(for_nets(settings), [copy])
    return copy


def _solver_with(param: Any, settings: Sequence[str]) -> Any:
    copy = pb.SolverParameter()
    copy.CopyFrom(param)
    apply_to_solver(settings, copy)
    return copy


def _fingerprint(run: Solver, net: Any, source: ImageData, weights: Sequence[str]) -> dict[str, Any]:
    """What must be the same for earlier results to count: hashes, by what they are of."""
    solver = _solver_with(run.param, ["solver.snapshot_prefix="])
    others = (reader for reader in sources(run.net).values() if reader is not source)
    return {
        "the form of its results": _FORM,
        "the solver": _hash(proto.to_text(solver)),
        "the net": _hash(proto.to_text(net)),
        "the source's list": _hash("\n".join(f"{entry.path} {entry.label}" for entry in source.entries)),
        "the target's list": _hash("\n".join(map(_rows_of, others))),
        "the weights": _hash("".join(file_hash(Path(path)) for path in weights)),
        "the seed": run.seed,
    }


def _rows_of(reader: Source) -> str:
    """What a reader reads, without labels: the paths of images, or else the number of rows."""
    return "\n".join(e.path for e in reader.entries) if isinstance(reader, ImageData) else str(len(reader))


def _test_labels(net: Any, base_dir: Path | None, *, needed: bool) -> str:
    """See that the TEST phase can be built and ends in logits; returns a hash of its labels, or "" if not needed."""
    try:
        test = Net(net, pb.TEST, base_dir=base_dir)
        data = data_in_test(net)
        if fed_net(net, data.blob, test.blob_shapes[data.blob])[1] is None:
            raise InputError("there is no blob of logits, or several, that a loss, Accuracy or Softmax layer reads")
        if not needed:
            return ""
        check_data(test)
        labels = [
            label for reader in label_readers(test) for _, label in sources(test)[reader.source].labels(reader.top)
        ]
    except InputError as error:
        raise InputError(f"TEST phase: {error}") from error
    if not labels:
        raise InputError("--target-labels: the TEST phase has no list with labels that an Accuracy or loss layer reads")
    return _hash(str(labels))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _enter(folder: Path, fingerprint: dict[str, Any]) -> None:
    """Make the folder, or see that it holds a selection of the same kind.

    Raises:
        InputError: it holds something else; it says what differs.
    """
    record = folder / RECORD
    if record.exists():
        known = json_files.read(record, dict[str, Any], remedy="name another folder with -o")
        differing = [name for name, value in fingerprint.items() if known.get(name) != value]
        if differing:
            raise InputError(
                f"{folder} holds a selection in which {' and '.join(differing)} "
                f"{'was another' if len(differing) == 1 else 'were others'}: name another folder with -o"
            )
        return
    if folder.exists() and (not folder.is_dir() or entries(folder)):
        raise InputError(f"{folder} exists, is not empty and holds no selection: name another folder with -o")
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(record) as file:
        file.write(json.dumps(fingerprint, indent=2).encode())


def _memory(run: Solver) -> int:
    """Bytes that a training takes: blobs and their gradients, parameters with gradients and history."""
    blobs = sum(prod(shape) for shape in run.net.blob_shapes.values())
    params = sum(param.tensor.numel() for param in run.net.params)
    return _CONTEXT_BYTES + 4 * (2 * blobs + 3 * params)


def _row(candidate: Candidate, jobs: Sequence[Job], failures: Mapping[Path, str]) -> Row:
    results = [read_result(job) for job in jobs]
    errors = [failures[job.folder] for job in jobs if job.folder in failures]
    errors += [result["error"] for result in results if result is not None and result["error"] is not None]
    alarms = [result["collapsed_at"] for result in results if result is not None and result["collapsed_at"] is not None]
    measures = [Measures(**result["measures"]) for result in results if result is not None and result["measures"]]
    return Row(
        candidate,
        len(jobs),
        mean_measures(measures) if len(measures) == len(jobs) else None,
        errors[0] if errors else None,
        max(alarms, default=None),
    )
