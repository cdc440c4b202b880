"""A selection's folder: its inputs, its candidates, and their results so far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from google.protobuf.message import Message

from autodial import proto
from autodial.data.image_data import ImageData
from autodial.data.source import Source
from autodial.errors import InputError
from autodial.evaluation.domains import TrainData, data_in_test, data_in_train, fed_net, has_latent_domains
from autodial.layers import layer_class
from autodial.net.data_checks import check_data, label_readers
from autodial.net.feed import sources
from autodial.net.net import Net
from autodial.netparam.net_state import filter_net
from autodial.netparam.overrides import applies, apply_to_nets, apply_to_solver, for_nets
from autodial.netparam.variants import UNALIGNED
from autodial.proto import messages as pb
from autodial.selection.candidates import Candidate, grid
from autodial.selection.choice import Trial
from autodial.selection.folder import Inputs, enter
from autodial.selection.holdout import SourceLists, write_lists
from autodial.selection.training_job import TrainingJob, snapshot_settings, training_device, training_memory
from autodial.system.devices import warn_of_cpu
from autodial.system.hashing import file_hash, text_hash
from autodial.training.solver import Solver

_LEAST = 10
"""The least number of target images that a domain classifier's cross-validation needs."""


@dataclass(frozen=True)
class Experiment:
    """All candidates of a selection.

    Attributes:
        inputs: the inputs that the candidates have in common, as JSON values.
        candidates: the candidates, in the order of the grid.
        jobs: a job for each candidate.
        device: the device that the jobs run on.
        exports: options of `autodial export` for each candidate, its weights left out.
        job_memory: bytes that a job is expected to take.
    """

    inputs: Mapping[str, object]
    candidates: tuple[Candidate, ...]
    jobs: tuple[TrainingJob, ...]
    device: torch.device
    exports: tuple[Mapping[str, object], ...]
    job_memory: int

    def trials(self, failures: Mapping[Path, str]) -> list[Trial]:
        """The candidates with their results.

        Args:
            failures: by job folder, why a process ended without a result.

        Raises:
            InputError: a damaged result.
        """
        return [
            Trial.of(candidate, job, failures.get(job.folder, "it has not been trained"))
            for candidate, job in zip(self.candidates, self.jobs, strict=True)
        ]

    def check_ensemble(self) -> None:
        """Raise InputError unless all candidates' nets are the same in the TEST phase, as in one file they must be."""
        if len({_test_form(proto.read_net(job.net)) for job in self.jobs}) > 1:
            raise InputError(
                "`ensemble`: the candidates' nets differ in the TEST phase, and one file holds the weights of one net: "
                "leave it out, or try only what changes training"
            )

    def unfinished(self) -> list[TrainingJob]:
        """The jobs without a result, in the order of the grid."""
        return [job for job in self.jobs if job.result() is None]


def prepare(
    solver: Path,
    tries: Sequence[str],
    folder: Path,
    *,
    restarts: int,
    weights: Sequence[str],
    overrides: Sequence[str],
    variants: Sequence[str],
    hold_out: bool,
    recalibrate: bool,
    device: str,
    seed: int | None,
    target_labels: bool,
) -> Experiment:
    """Check everything that a selection depends on, and make its folder or open the existing one.

    Args:
        solver: path of the solver.prototxt.
        tries: values and variants to try, as in `grid`.
        folder: the folder for all results.
        restarts: trainings of each combination; their seeds count up from `seed`.
        weights, device: arguments of `Training`; without weights, those that the solver names.
        variants: variants of every candidate; a candidate's own variant is applied after them.
        overrides: settings of every candidate.
        hold_out: whether a fifth of the source is left out of the trainings.
        recalibrate: whether statistics of all images replace training's moving averages.
        seed: seed of the first restart and of random draws; None: the solver's.
        target_labels: whether the TEST phase's list holds the target's labels.

    Raises:
        InputError: an input would stop every candidate; part of the source is to be held out, and the source is not a
            list of images; or the folder holds a selection with other inputs.
        WorkError: the folder can't be written to, or the device does not exist.
    """
    for name in variants:
        _check_aligned(name, f"`variants` {name}")
    chosen = training_device(proto.read_solver(solver), device)
    own = [f"solver.snapshot_prefix={(folder / 'net').absolute()}", "solver.snapshot_format=BINARYPROTO"]

    def read(names: Sequence[str]) -> Solver:
        return Solver.from_file(
            solver, device="cpu", seed=seed, overrides=[*overrides, *own], variants=[*variants, *names]
        )

    run = read(())
    candidates = grid(tries, range(run.seed, run.seed + restarts))
    weights = weights or [str(path) for path in run.own_weights]
    run.load_weights(weights)
    net = _of_both_phases(run)
    readers = _sources(run, net, hold_out=hold_out)
    own_fields = _own_settings(Path(), dict.fromkeys(readers, Path() if hold_out else None))
    for candidate in candidates:
        _refuse_own(candidate, own_fields)
    with_variants: dict[tuple[str, ...], pb.NetParameter] = {(): net}
    for name in dict.fromkeys(name for candidate in candidates for name in candidate.variants):
        tried = f"`tries` variant={name}"
        _check_aligned(name, tried)
        try:
            with_variants[name,] = _of_both_phases(read([name]))
            _look_at_phases(with_variants[name,])
        except InputError as error:
            raise InputError(f"{tried}: {error}") from error
    try:
        nets = [_with_settings(with_variants[candidate.variants], candidate.settings) for candidate in candidates]
        for candidate in candidates:
            _solver_with(run.param, candidate.settings)
    except InputError as error:
        raise InputError(f"`tries` {error}") from None
    labels = _test_labels(net, run.net.base_dir, needed=target_labels)
    run.check()
    enter(folder, _inputs(run, net, list(readers.values()), weights, recalibrate=recalibrate))

    lists = _write_lists(readers, folder / ("held_out" if hold_out else "source"), run.seed, hold_out=hold_out)
    training = {name: each.training for name, each in zip(readers, lists, strict=True)}
    jobs = []
    for candidate, param in zip(candidates, nets, strict=True):
        job_folder = folder / "candidates" / candidate.folder
        if hold_out:
            job_folder = job_folder.with_name(f"{job_folder.name}_held_out")
        job = TrainingJob(
            folder=job_folder.absolute(),
            name=candidate.name,
            lists=tuple(lists),
            solver=solver,
            weights=tuple(weights),
            variants=(*variants, *candidate.variants),
            overrides=(*overrides, *candidate.settings, *_own_settings(job_folder, training)),
            seed=candidate.seed,
            draw=run.seed,
            base_dir=run.net.base_dir or Path(),
            device=device,
            recalibrate=recalibrate,
            target_labels=labels,
        )
        job_folder.mkdir(parents=True, exist_ok=True)
        proto.write_text(param, job.net)
        jobs.append(job)
    inputs = {
        **{"solver": str(solver), "weights": ",".join(map(str, weights)) or None},
        **{"settings": list(overrides), "variants": list(variants), "seed": run.seed},
        **{"hold_out": hold_out, "recalibrate": recalibrate},
    }
    exports = [
        _export_options(run, (*variants, *c.variants), (*overrides, *c.settings), job)
        for c, job in zip(candidates, jobs, strict=True)
    ]
    warn_of_cpu(device, chosen, prefer_gpu=run.param.solver_mode == pb.SolverParameter.GPU)
    return Experiment(inputs, tuple(candidates), tuple(jobs), chosen, tuple(exports), training_memory(run))


def _check_aligned(variant: str, given: str) -> None:
    if variant in UNALIGNED:
        raise InputError(
            f"{given}: this variant has no Dial layers, and only trainings of nets that have some are compared: leave "
            "it out here, and train it with `autodial train`"
        )


def _export_options(
    run: Solver, variants: Sequence[str], settings: Sequence[str], job: TrainingJob
) -> dict[str, object]:
    """Options that make `autodial export` read the TEST phase as a candidate has it."""
    name = run.net_names[1] if len(run.net_names) > 1 else run.net_names[0]
    if not Path(name).is_file():  # a net that the solver's own file holds
        return {"--net": job.net}
    test = filter_net(proto.read_net(name), pb.TEST)
    kept = [setting for setting in for_nets(settings) if applies(setting, test)]
    return {"--net": name, "--variant": list(variants), "--set": kept}


def _test_form(net: pb.NetParameter) -> str:
    """The TEST phase without what only training reads: learning rates and what parameters start from."""
    test = filter_net(net, pb.TEST)
    for layer in test.layer:
        for field in ("param", "include", "exclude", "loss_weight", "phase"):
            layer.ClearField(field)
        for message in [value for _, value in layer.ListFields() if isinstance(value, Message)]:
            for field in ("weight_filler", "bias_filler", "filler"):
                if field in message.DESCRIPTOR.fields_by_name:
                    message.ClearField(field)
    return proto.to_text(test)


def _of_both_phases(run: Solver) -> pb.NetParameter:
    """One NetParameter with the train net's TRAIN phase, and the first test net's or the train net's TEST phase."""
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


def _in_phase(net: pb.NetParameter, phase: pb.Phase) -> Iterator[bool]:
    """For each layer of a phase, whether it reads data."""
    return (layer_class(layer.type).is_data for layer in filter_net(net, phase).layer)


def _sources(run: Solver, net: pb.NetParameter, *, hold_out: bool) -> dict[str, Source]:
    """The readers of the sources' images, by the names of their layers."""
    domains = _look_at_phases(net)
    layers, target = [top.layer for top in domains.sources], domains.target.layer
    for layer in (*layers, target):
        if layer.name not in sources(run.net):
            raise InputError(f'layer "{layer.name}" ({layer.type}) gets its images from a program')
    readers = {layer.name: sources(run.net)[layer.name] for layer in layers}
    for layer in layers:
        reader = readers[layer.name]
        if not isinstance(reader, ImageData):
            if hold_out:
                raise InputError(
                    f'layer "{layer.name}" ({layer.type}): only of a list of images a part can be held out: read it '
                    "with an ImageData layer, or choose by a criterion that needs no held-out source"
                )
        elif len({entry.label for entry in reader.entries}) < 2:
            raise InputError(f"{reader.list_path} has images of one class only")
    if len(sources(run.net)[target.name]) < _LEAST:
        raise InputError(f'layer "{target.name}": the target has fewer than {_LEAST} images, too few to compare')
    return readers


def _write_lists(readers: Mapping[str, Source], folder: Path, seed: int, *, hold_out: bool) -> list[SourceLists]:
    """The lists of each source; of several, each in a folder of its own."""
    lists = []
    for number, reader in enumerate(readers.values(), 1):
        own = folder if len(readers) == 1 else folder / str(number)
        if isinstance(reader, ImageData):
            lists.append(write_lists(reader, own, seed, hold_out=hold_out))
        else:
            lists.append(SourceLists(None, None, None))
    return lists


def _look_at_phases(net: pb.NetParameter) -> TrainData:
    """What reads the sources and the target; raises InputError if a phase lacks what a selection needs."""
    if has_latent_domains(net):
        raise InputError(
            "the net has latent domains (MultiModalBatchNorm), and select measures both domains of a net with Dial "
            "layers' statistics: train such nets with `autodial train`, and export them as training left them"
        )
    data_in_test(net)
    domains = data_in_train(net)
    if domains is None:
        raise InputError(
            "the TRAIN phase has no Concat layer that joins a source and a target along axis 0 in front of Dial layers"
        )
    return domains


def _refuse_own(candidate: Candidate, own_settings: Sequence[str]) -> None:
    """Raise InputError if a candidate sets a field that the selection sets itself."""
    own = {setting.partition("=")[0] for setting in own_settings}
    if any(setting.startswith("solver.random_seed=") for setting in candidate.settings):
        raise InputError("`tries` solver.random_seed: `restarts` trains with several seeds")
    for setting in candidate.settings:
        if setting.partition("=")[0] in own:
            raise InputError(f"`tries` {setting}: select sets this field itself, for its hold-outs and snapshots")


def _own_settings(folder: Path, training: Mapping[str, Path | None]) -> list[str]:
    """Settings that leave out the held-out images, and those of `snapshot_settings`.

    Args:
        training: lists of the images to train on, by the layers that read the sources; None where nothing is left out.
    """
    lists = []
    for source, path in training.items():
        if path is not None:
            lists += [f"{source}.image_data_param.source={path.absolute()}", f"{source}.image_data_param.root_folder="]
    return [*lists, *snapshot_settings(folder)]


def _with_settings(net: pb.NetParameter, settings: Sequence[str]) -> pb.NetParameter:
    copy = pb.NetParameter()
    copy.CopyFrom(net)
    apply_to_nets(for_nets(settings), [copy])
    return copy


def _solver_with(param: pb.SolverParameter, settings: Sequence[str]) -> pb.SolverParameter:
    copy = pb.SolverParameter()
    copy.CopyFrom(param)
    apply_to_solver(settings, copy)
    return copy


def _inputs(
    run: Solver, net: pb.NetParameter, readers: Sequence[Source], weights: Sequence[str], *, recalibrate: bool
) -> Inputs:
    learned_from = {reader.source for reader in label_readers(run.net)}
    others = [
        _labelled_rows_of(reader) if name in learned_from else _rows_of(reader)
        for name, reader in sources(run.net).items()
        if reader not in readers
    ]
    return Inputs(
        solver=proto.to_text(_solver_with(run.param, ["solver.snapshot_prefix="])),
        net=proto.to_text(net),
        source=text_hash("\n".join(map(_labelled_rows_of, readers))),
        target=text_hash("\n".join(others)),
        weights=text_hash("".join(file_hash(Path(path)) for path in weights)),
        seed=run.seed,
        recalibrate=recalibrate,
    )


def _labelled_rows_of(reader: Source) -> str:
    """A reader's rows with labels, or else their number."""
    if not isinstance(reader, ImageData):
        return _rows_of(reader)
    return "\n".join(f"{entry.path} {entry.label}" for entry in reader.entries)


def _rows_of(reader: Source) -> str:
    """A reader's rows without labels: the images' paths, or else the number of rows."""
    return "\n".join(e.path for e in reader.entries) if isinstance(reader, ImageData) else str(len(reader))


def _test_labels(net: pb.NetParameter, base_dir: Path | None, *, needed: bool) -> str:
    """Check that the TEST phase can be built and ends in logits; returns a hash of its labels, or "" if not needed."""
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
        raise InputError("`target_labels`: the TEST phase has no list with labels that an Accuracy or loss layer reads")
    return text_hash(str(labels))
