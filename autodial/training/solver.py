"""Caffe's solver: trains a net as a SolverParameter says, tests it, writes snapshots and resumes from them."""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from math import isfinite, prod
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from autodial import proto
from autodial.data.paths import find
from autodial.errors import DivergedError, InputError, WorkError
from autodial.net.data_checks import check_data, check_slices
from autodial.net.feed import Feed, sources
from autodial.net.net import RENAME, Net
from autodial.netparam.overrides import apply_to_nets, apply_to_solver, for_nets
from autodial.netparam.variants import FIXING, apply_variants, fit_weights, warn_of_lost_alignment
from autodial.proto import messages as pb
from autodial.system.devices import full_memory_errors
from autodial.system.files import replacing_files
from autodial.system.outputs import check_writable, real_path
from autodial.system.ranks import LostRankError, Ranks
from autodial.training.collapse import CollapseWatch
from autodial.training.lr_policy import check_policy, learning_rate, next_step
from autodial.training.monitor import BlobValues, CollapseRow, Monitor, NotFinite, Recalls, TestRow, TrainRow
from autodial.training.processes import OneProcess, OnRanks
from autodial.training.recall import RecallWatch, balanced_accuracy, recalls
from autodial.training.rollback import Rollback
from autodial.training.score_watch import ScoreWatch, not_finite
from autodial.training.snapshots import delete_older
from autodial.training.update import update_class
from autodial.wording import counted

_log = logging.getLogger(__name__)

S = TypeVar("S", bound="Solver")


class Solver:
    """Trains a net (Caffe: Solver and SGDSolver).

    `step` and `solve` follow Caffe's order: test, forward and backward iter_size times, display, update, snapshot.
    Three things differ on purpose. Everything random depends only on the seed, the layer, the iteration and the pass,
    so that a restored solver continues like an uninterrupted one. `solve` ends without Caffe's forward pass for
    display, which would move the Dial layers' statistics away from those of the snapshot just written. And `solve` ends
    with a test, as Caffe does only if test_interval divides max_iter. There is no such test if test_interval is larger
    than max_iter and test_initialization is false, as in a solver that wants no tests.

    A subclass that runs the nets in its own way overrides `clear_gradients`, `forward_backward` and `test_outputs`; all
    other methods call these three.

    Args:
        param: a SolverParameter; it is not changed.
        device: "auto" (what solver_mode says, the CPU where there is no GPU), "cpu", "cuda" or "cuda:N".
        seed: replaces the param's random_seed. A random_seed that is unset or negative means 0, not the clock.
        workers: processes that read images ahead, for the train net and for a test net while it is tested.
        base_dir: folder of the solver's file; relative paths of nets are looked for in the working directory first.
        precision: "float32", or "bf16": training passes compute convolutions, products and what lies between them in
            bfloat16 (torch.autocast); parameters, statistics, losses, updates and tests stay float32.
        name: the solver's name in messages.
        overrides: `LAYER.FIELD=VALUE` and `solver.FIELD=VALUE` settings, as in autodial.netparam.overrides.
        variants: variants of the train net and the test nets, as in autodial.netparam.variants; overrides apply after.
        ranks: the processes that train together, each on GPU number local_rank or on the CPU; this process is one of
            them. They share out every training batch (see `DataParallel`) and the batches of a test, and rank 0 writes
            snapshots; `check`, `solve`, `step` and `test` are called on all ranks.
        keep: how many of the newest snapshots of this snapshot_prefix stay, in addition to the one resumed from. Each
            new snapshot deletes older ones, from earlier starts too. None: all stay.

    Attributes:
        param: the SolverParameter in use, overrides applied.
        net, test_nets: Net objects; the test nets hold the train net's blobs.
        net_names: the files of the train net and of the test nets, or the fields that hold them.
        net_params: the NetParameters of these nets, variants and overrides applied.
        precision, ranks, keep: as given.
        update: the solver type's update, with the history.
        iter: number of updates done.
        current_step: number of steps by which the learning rate has come down.
        saved_at: iteration of the last snapshot, written or restored; None before.
        monitors: Monitor objects to report to.
        collapses: the alarms so far that the target's predictions have collapsed (autodial.training.collapse).

    Raises:
        InputError: a field that is missing, contradictory, or not supported; or what Net raises.
        WorkError: a device that is not there.
    """

    def __init__(
        self,
        param: pb.SolverParameter,
        *,
        device: str = "cpu",
        seed: int | None = None,
        workers: int = 0,
        precision: Literal["float32", "bf16"] = "float32",
        base_dir: Path | None = None,
        name: str = "the solver",
        overrides: Sequence[str] = (),
        variants: Sequence[str] = (),
        ranks: Ranks | None = None,
        keep: int | None = None,
    ) -> None:
        if keep is not None and keep < 1:
            raise InputError(f"`keep`, the number of snapshots, must be at least 1, and is {keep}")
        self.param = pb.SolverParameter()
        self.param.CopyFrom(param)
        with _errors_of_overrides():
            apply_to_solver(overrides, self.param)
        self._name, self._base_dir = name, base_dir
        with _errors_prefixed(name):
            _check(self.param)
            train, tests = _read_nets(self.param, base_dir)
        self.ranks = ranks
        self._process = OneProcess() if ranks is None else OnRanks(ranks)
        prefer_gpu = self.param.solver_mode == pb.SolverParameter.GPU
        self.device = self._process.choose_device(device, prefer_gpu=prefer_gpu, index=self.param.device_id)
        self.seed = max(self.param.random_seed, 0) if seed is None else seed
        self.workers = workers
        self.precision = precision
        self.keep = keep
        self.monitors: list[Monitor] = []
        self.iter = 0
        self.current_step = 0
        self.saved_at: int | None = None

        unique = {id(source.param): source for source in (train, *tests)}
        for source in unique.values():
            with _errors_prefixed(source.origin):
                source.param.CopyFrom(apply_variants(source.param, variants, source.base_dir))
        with _errors_of_overrides():
            apply_to_nets(for_nets(overrides), [source.param for source in unique.values()])
        self.net_params = [source.param for source in (train, *tests)]
        self.net_names = [source.origin for source in (train, *tests)]
        self.net = self._build(train)
        self.test_nets = [self._build(source) for source in tests]
        for net in self.test_nets:
            net.share_with(self.net)
        with _errors_prefixed(train.origin):
            self._process.set_train_net(self.net)
        for source, net in zip(tests, self.test_nets, strict=True):
            with _errors_prefixed(source.origin):
                self._process.check_test_net(net)
        self.update = update_class(self.param.type)(self.param, self.net.params)
        self._rollback = Rollback(self.net)
        self._updating = False
        self.collapses: list[CollapseRow] = []
        self._collapse = CollapseWatch(self.net)

        self._alphas_fixed = bool(set(variants).intersection(FIXING))
        self._stopping = False
        self._snapshot_asked = False
        self._losses: deque[Tensor] = deque(maxlen=self.param.average_loss)
        self._feed: Feed | None = None
        self._fed = 0
        self._busy = 0.0
        self._displayed_at: int | None = None
        self._resumed_from: set[Path] = set()
        self._images_per_iteration = self.param.iter_size * sum(s.batch_size for s in sources(self.net).values())

    @classmethod
    def from_file(cls: type[S], path: str | os.PathLike[str], **options: Any) -> S:
        """A solver from a solver.prototxt; `options` are the constructor's, except base_dir and name.

        Without a snapshot_prefix, snapshots lie beside the file and are named after it; if snapshot_prefix is a folder,
        the file's name is added (Caffe: UpgradeSnapshotPrefixProperty).

        Raises:
            InputError: as the constructor, or a file that can't be read.
        """
        path = Path(path)
        param = proto.read_solver(path)
        if not param.snapshot_prefix:
            param.snapshot_prefix = str(path.with_suffix(""))
        elif Path(param.snapshot_prefix).is_dir():
            param.snapshot_prefix = str(Path(param.snapshot_prefix) / path.stem)
        return cls(param, base_dir=path.parent, name=str(path), **options)

    def _build(self, source: _NetSource) -> Net:
        state = source.state
        with _errors_prefixed(f"{source.origin}, {'TRAIN' if state.phase == pb.TRAIN else 'TEST'} phase"):
            net = Net(
                source.param,
                state.phase,
                level=state.level,
                stages=tuple(state.stage),
                seed=self.seed,
                base_dir=source.base_dir,
            )
        return net.to(self.device)

    # --- training

    def check(self) -> None:
        """Find what would stop a run later: labels, images, and snapshots that can't be written.

        Raises:
            InputError: a label or an image in a list (see `check_data`), no max_iter, no loss, or a snapshot_prefix
                whose folder can't be written to.
        """
        self._check_learns()
        if not self.param.HasField("max_iter"):
            raise InputError("max_iter, the number of iterations to train for, is missing")
        if self.param.snapshot_prefix and self._process.writes:
            _check_snapshots(self.param.snapshot_prefix)
        check_slices(self.net)
        if self._process.checks_data:
            for net in (self.net, *self.test_nets):
                check_data(net)
        self._process.check_alike(self._fingerprint)

    def _check_learns(self) -> None:
        """Refuse a net without a loss; a script may still set its gradients and update it."""
        if not self.net.loss_weights:
            raise InputError(f"{self.net_names[0]}: the train net has no loss layer, so there is nothing to learn")

    def _fingerprint(self) -> str:
        """A hash of everything that this training starts from, except for the images."""
        state = hashlib.sha256()
        for message in (self.param, *self.net_params):
            state.update(proto.to_text(message).encode())
        lengths = [[len(source) for source in sources(net).values()] for net in (self.net, *self.test_nets)]
        state.update(repr((self.seed, self.precision, self.iter, self.current_step, lengths)).encode())
        for tensor in (*(param.tensor for param in self.net.params), *self.update.history):
            state.update(tensor.detach().cpu().numpy().tobytes())
        return state.hexdigest()

    def solve(self) -> bool:
        """Train until max_iter, write the last snapshot and do the last test.

        Whatever ends the training, except for a second Ctrl-C, leaves a snapshot of the last whole iteration, if there
        was one and its blobs are finite. If a snapshot in between can't be written, a warning says so and training goes
        on.

        Returns:
            whether training got to max_iter; False after `stop`, with a snapshot of where it stopped.
        """
        try:
            try:
                finished = self._train(self.param.max_iter - self.iter)
            except Exception as error:  # a bad image, a lost process, full memory, a broken GPU
                self._rescue()
                if isinstance(error, LostRankError):
                    raise self._lost(error) from error
                raise
            self.close()
            self._collapse.read()
            self._warn_of_collapse()
            if (self.param.snapshot_after_train or not finished) and self.saved_at != self.iter:
                self.snapshot()
            if finished and tests_end(self.param):
                self._test_all()
            return finished
        finally:
            self._stopping = False
            self.close()

    def _rescue(self) -> None:
        """Save what was learned before an error, as far as that still works; the error itself is reported."""
        if not self.param.snapshot_prefix or not self.iter or self.saved_at == self.iter:
            return
        if self._updating:
            self._updating = False
            _log.warning(
                "The error came while iteration %d changed the weights: the snapshot holds only some of its changes",
                self.iter,
            )
        try:
            self.snapshot()
        except Exception as error:  # the GPU may be lost, and weights that are not finite are worthless
            reason = str(error).partition("\n")[0] or type(error).__name__
            _log.warning("No snapshot of iteration %d: %s", self.iter, reason)

    def _lost(self, error: LostRankError) -> LostRankError:
        """The error with a hint how to continue the training."""
        if self.saved_at is None:
            return LostRankError(f"{error}; there is no snapshot to go on from yet")
        state = f"{self.param.snapshot_prefix}_iter_{self.saved_at}{self.snapshot_suffixes[1]}"
        return LostRankError(f"{error}; to go on from the last whole iteration, resume with `snapshot` {state}")

    def step(self, iterations: int) -> None:
        """Train for a number of iterations, or fewer after `stop`.

        Raises:
            InputError: an image can't be read.
            DivergedError: the loss or a weight is no longer finite.
        """
        try:
            self._train(iterations)
        finally:
            self._stopping = False

    @full_memory_errors()
    def _train(self, iterations: int) -> bool:
        """Do what `step` does; returns whether all iterations were done."""
        self._check_learns()
        end = self.iter + iterations
        self._losses.clear()
        while self.iter < end:
            for net in (self.net, *self.test_nets):
                net.begin_iteration(self.iter)
            if self._test_due() and (self.iter or self.param.test_initialization):
                self._test_all()
            if self._stops():
                return False
            started = time.perf_counter()
            try:
                self._iterate(started)
            except BaseException:
                self._rollback.put_back()
                raise
            self._busy += time.perf_counter() - started
            for monitor in self.monitors:
                monitor.iterated(self)
            if self._snapshot_asked or (self.param.snapshot and self.iter % self.param.snapshot == 0):
                self._snapshot_asked = False
                self._snapshot_or_go_on()
        return not self._stops()

    def _snapshot_or_go_on(self) -> None:
        """Write a snapshot, or warn that it can't be written: the disk may have room for the next one."""
        try:
            self.snapshot()
        except WorkError as error:
            if error.__cause__ is None:  # it is not the disk
                raise
            _log.warning("%s; training goes on without it", error)

    def stop(self) -> None:
        """Ask the solver to stop after the iteration in progress; may be called from a signal handler, on any rank."""
        self._stopping = True

    def ask_snapshot(self) -> None:
        """Ask for a snapshot after the iteration in progress. Signal handlers may call it, but not with ranks."""
        self._snapshot_asked = True

    def _stops(self) -> bool:
        """Whether `stop` was called, or torchrun is gone, on any rank."""
        return self._process.any(self._stopping)

    def close(self) -> None:
        """Stop the worker processes; further training starts new ones."""
        if self._feed is not None:
            self._feed.close()
            self._feed = None

    def smoothed_loss(self) -> float:
        """The loss averaged over the last average_loss iterations, NaN before the first; waits for the device."""
        return float(torch.stack(list(self._losses)).mean()) if self._losses else float("nan")

    def _iterate(self, started: float) -> None:
        self._rollback.keep()
        self.clear_gradients()
        outputs: Mapping[str, Tensor] = {}
        losses = []
        for pass_ in range(self.param.iter_size):
            if pass_ == self.param.iter_size - 1:
                self._process.begin_last_pass()
            outputs = self.forward_backward(pass_)
            with torch.no_grad():
                losses.append(self.net.loss(outputs))
        loss = torch.stack(losses).mean()
        self._losses.append(self._process.sum(loss, self.device))
        self.current_step = next_step(self.param, self.iter, self.current_step)
        rate = learning_rate(self.param, self.iter, self.current_step)
        if self.param.display and self.iter % self.param.display == 0:
            self._display(rate, outputs, started)
        self._updating = True
        self.update.step(rate, self.iter)
        self._updating = False
        self.iter += 1
        self._rollback.forget()

    def clear_gradients(self) -> None:
        """Clear the gradients of the last iteration; called once per iteration, before its first pass."""
        self.net.zero_grad(set_to_none=True)

    def forward_backward(self, pass_: int) -> Mapping[str, Tensor]:
        """Run the train net forward and backward once, and add to the `.grad` of the tensors in `net.params`.

        Args:
            pass_: number of the pass in the iteration, from 0 to iter_size - 1. The pass reads batch number
                `iter * iter_size + pass_`.

        Returns:
            the output blobs by name, from which `net.loss` computes the loss; with ranks, those of this rank's rows.

        Raises:
            InputError: an image can't be read.
        """
        self.net.seed_pass(self.iter, pass_)
        batch = self._batch(self.iter * self.param.iter_size + pass_)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            outputs: dict[str, Tensor] = self.net(batch)
        loss = self.net.loss(outputs)
        if loss.requires_grad:  # not if every lr_mult is 0, as when a run only gathers statistics
            loss.backward()  # type: ignore[no-untyped-call]
        return outputs

    def _batch(self, index: int) -> dict[str, Tensor]:
        if self._feed is None or self._fed != index:
            self.close()
            batches = itertools.count(index)
            self._feed = Feed(self.net, batches, device=self.device, workers=self.workers, ranks=self.ranks, brief=True)
        self._fed = index + 1
        return next(self._feed)

    def _display(self, rate: float, outputs: Mapping[str, Tensor], started: float) -> None:
        self._check_loss()
        seconds = self._busy + time.perf_counter() - started
        images = self._images_per_iteration * (self.iter - (self._displayed_at or 0))
        row = TrainRow(
            iteration=self.iter,
            lr=rate,
            loss=self.smoothed_loss(),
            outputs=_values(self._process.outputs(outputs)),
            loss_weights=self.net.loss_weights,
            alphas=self.net.alphas(),
            images_per_s=images / seconds if images and self._displayed_at is not None else None,
            diversity=self._collapse.read(),
        )
        self._displayed_at = self.iter
        self._busy = started - time.perf_counter()  # this iteration counts from here on
        for monitor in self.monitors:
            monitor.displayed(row)
        self._warn_of_collapse()

    def _warn_of_collapse(self) -> None:
        for alarm in self._collapse.alarms(self.iter):
            self.collapses.append(alarm)
            for monitor in self.monitors:
                monitor.collapsed(alarm)

    def _check_loss(self) -> None:
        loss = float(self._losses[-1])
        if not isfinite(loss):
            raise self._diverged(f"the loss of iteration {self.iter} is {loss}")

    def _diverged(self, what: str) -> DivergedError:
        return DivergedError(
            f"{what}: training has diverged; lower base_lr or the loss_weight of an EntropyLoss layer, or set "
            "clip_gradients, and start again or from an earlier snapshot"
        )

    # --- testing

    def test(self, index: int = 0) -> dict[str, Tensor]:
        """Test a test net on the first test_iter batches of its lists.

        Returns:
            each output blob, averaged over the batches, on the CPU.
        """
        result = self._test(index)
        assert result is not None
        return result.outputs

    @torch.no_grad()
    def _test(self, index: int) -> _TestResult | None:
        """Do what `test` does, with all that a TestRow needs; None if `stop` was called meanwhile."""
        batches = self.param.test_iter[index]
        totals: dict[str, Tensor] = {}
        with ScoreWatch(self.test_nets[index]) as scores, RecallWatch(self.test_nets[index]) as recall:
            for outputs in self.test_outputs(index, batches):
                if self._stopping and self._process.can_leave_test:
                    return None
                for name, value in outputs.items():
                    totals[name] = totals[name] + value if name in totals else value
        whole = self._process.test_totals(totals, self.test_nets[index], self.device)
        return _TestResult(
            {name: (total / batches).cpu() for name, total in whole.items()},
            not_finite(self._process.counts(scores.counts())),
            recalls(self._process.counts(recall.counts())),
        )

    def test_outputs(self, index: int, batches: int) -> Iterator[Mapping[str, Tensor]]:
        """Run a test net on the batches of a test; called without gradients.

        Args:
            index: number of the test net.
            batches: how many batches the test has; with ranks, each takes some of them.

        Yields:
            the output blobs of each batch by name.
        """
        net = self.test_nets[index]
        numbers = self._process.test_batches(batches)
        with closing(Feed(net, numbers, device=self.device, workers=self.workers)) as feed:
            for j, inputs in zip(numbers, feed, strict=True):
                net.seed_pass(j)
                yield net(inputs)

    def _test_due(self) -> bool:
        return bool(self.param.test_interval) and self.iter % self.param.test_interval == 0

    def _test_all(self) -> None:
        for i, net in enumerate(self.test_nets):
            result = self._test(i)
            if result is None:
                return
            balanced = {blob: balanced_accuracy(recall) for blob, recall in result.recalls.items()}
            row = TestRow(
                *(self.iter, i, _values(result.outputs), net.loss_weights),
                not_finite=result.not_finite,
                recalls=result.recalls,
                balanced_accuracy=balanced,
            )
            for monitor in self.monitors:
                monitor.tested(row)

    # --- snapshots

    @property
    def own_weights(self) -> list[Path]:
        """The .caffemodel files that the solver's own field `weights` names, for `load_weights`.

        The field may be repeated, and each may name several files with commas between them (Caffe: LoadNetWeights).

        Raises:
            InputError: a file is not there.
        """
        names = [name.strip() for names in self.param.weights for name in names.split(",")]
        with _errors_prefixed(f"{self._name}: weights"):
            return [find(name, self._base_dir) for name in names]

    def load_weights(self, paths: Iterable[str | os.PathLike[str]]) -> list[str]:
        """Load weights into the train net, and so into the test nets; an alpha that a variant fixes stays."""
        missing = load_weights(self.net, paths)
        if self._alphas_fixed:
            with torch.no_grad():
                for message in self.net.param.layer:
                    if message.type == "Dial":
                        self.net.layer(message.name).blobs[0].fill_(message.dial_param.weight_filler.value)
        return missing

    def snapshot(self) -> tuple[Path, Path]:
        """Write <snapshot_prefix>_iter_<iter>.caffemodel and .solverstate: both complete, or neither.

        With snapshot_format HDF5, the names end in .h5. With several ranks, rank 0 writes.

        Raises:
            InputError: the solver has no snapshot_prefix.
            WorkError: a blob holds NaN or infinity, or the files can't be written.
        """
        if not self.param.snapshot_prefix:
            raise InputError("snapshot_prefix, where snapshots go, is missing")
        if not all(bool(param.tensor.isfinite().all()) for param in self.net.params):
            raise self._diverged(
                f"a blob holds NaN or infinity after {counted(self.iter, 'iteration')}; no snapshot is written"
            )
        prefix = f"{self.param.snapshot_prefix}_iter_{self.iter}"
        model, state = (Path(f"{prefix}{suffix}") for suffix in self.snapshot_suffixes)
        if not self._process.writes:
            self.saved_at = self.iter
            return model, state
        history = [tensor.cpu().numpy() for tensor in self.update.history]
        try:
            model.parent.mkdir(parents=True, exist_ok=True)
            # the old state goes first and the new one comes last: a state is never beside weights of another training
            with replacing_files(model.parent, last=state.name) as aside:
                proto.write_weights(self.net.weights(), aside / model.name)
                proto.write_state(proto.State(self.iter, self.current_step, str(model), history), aside / state.name)
        except OSError as error:
            raise WorkError(f"the snapshot {prefix} can't be written: {error.strerror}") from error
        except WorkError as error:
            if error.__cause__ is None:  # the format can't hold it
                raise
            reason = getattr(error.__cause__, "strerror", None) or error.__cause__
            raise WorkError(f"the snapshot {prefix} can't be written: {reason}") from error
        self.saved_at = self.iter
        if self.keep is not None:
            delete_older(self.param.snapshot_prefix, self.keep, self.iter, self._resumed_from)
        for monitor in self.monitors:
            monitor.saved(model, state)
        return model, state

    @property
    def snapshot_suffixes(self) -> tuple[str, str]:
        """The ends of the names of a snapshot's weights and state."""
        end = ".h5" if self.param.snapshot_format == pb.SolverParameter.HDF5 else ""
        return f".caffemodel{end}", f".solverstate{end}"

    def restore(self, path: str | os.PathLike[str]) -> Path | None:
        """Continue from a .solverstate and the .caffemodel that it names.

        The .caffemodel beside the .solverstate, where both were written, has precedence over the path that the
        .solverstate names, which may be another training's in this working directory.

        Returns:
            the .caffemodel; None if the .solverstate names none.

        Raises:
            InputError: not a solverstate, one of another net or solver type, or its caffemodel is missing.
        """
        path = Path(path)
        resumed_from = {real_path(path)}
        if path.name.endswith((".caffemodel", ".caffemodel.h5")):
            state_path = path.with_name(path.name.replace(".caffemodel", ".solverstate"))
            raise InputError(
                f"{path} holds weights and no solver's state: to resume, name {state_path}"
                f"{'' if state_path.exists() else ' (which does not exist)'}; to start from it, name it with `weights`"
            )
        state = proto.read_state(path)
        if state.iter < 0 or not 0 <= state.current_step <= state.iter:
            raise InputError(
                f"{path} is damaged: no training comes to iteration {state.iter} with {state.current_step} steps of "
                "the learning rate; copy it again"
            )
        history = self.update.history
        if len(state.history) != len(history):
            raise InputError(
                f"{path} is of another net or solver type: it holds the history of "
                f"{counted(len(state.history), 'blob')}, and {self.param.type} on this net has {len(history)}"
            )
        for i, (ours, saved) in enumerate(zip(history, state.history, strict=True)):
            if not _same_shape(saved.shape, ours.shape):
                param = self.net.params[i % len(self.net.params)]
                raise InputError(
                    f'{path} is of another net: its history of layer "{param.layer}", blob {param.index}, has shape '
                    f"{tuple(saved.shape)}, and the blob has {tuple(ours.shape)}"
                )
        model = None
        if state.learned_net:
            places = list(dict.fromkeys((path.parent / Path(state.learned_net).name, Path(state.learned_net))))
            model = next((place for place in places if place.is_file()), None)
            if model is None:
                raise InputError(f"{path} needs its caffemodel, and it is not at {' or '.join(map(str, places))}")
            self.load_weights([model])
            resumed_from.add(real_path(model))
        for ours, saved in zip(history, state.history, strict=True):
            ours.copy_(torch.from_numpy(saved).view(ours.shape))
        self._resumed_from = resumed_from
        self.iter = self.saved_at = state.iter
        self.current_step = state.current_step
        self._displayed_at = None
        return model


def load_weights(
    net: Net,
    paths: Iterable[str | os.PathLike[str]],
    *,
    whole: pb.NetParameter | None = None,
    advice: str = RENAME,
) -> list[str]:
    """Copy the blobs of caffemodels into a net, by layer name; a later file's layers replace an earlier one's.

    Variants without alignment accept the weights of the AutoDIAL net (autodial.netparam.variants.fit_weights).

    Args:
        whole: the NetParameter of all phases; a warning says if it lacks the Dial layers of the weights.
        advice: as `Net.load_weights` takes it.

    Returns:
        names of the net's layers with blobs that no file holds; these blobs stay as they are.

    Raises:
        InputError: a file that is no caffemodel, a layer with other shapes, or files that hold nothing for the net.
    """
    paths = list(paths)
    missing: set[str] | None = None
    for path in paths:
        if Path(path).name.endswith((".solverstate", ".solverstate.h5")):
            raise InputError(f"{path} is a solver's state and holds no weights: name the .caffemodel beside it")
        weights = fit_weights(proto.read_weights(path), net.param, str(path))
        if whole is not None:
            warn_of_lost_alignment(weights, whole)
        left = net.load_weights(weights, str(path), advice=advice)
        missing = set(left) if missing is None else missing.intersection(left)
    if missing and missing == set(net.with_blobs()):
        files = ", ".join(map(str, paths))
        raise InputError(f"no layer in {files} has the name of a layer of the net: name weights that belong to it")
    return [name for name in net.layer_names if name in (missing or ())]


@contextmanager
def _errors_prefixed(name: str) -> Iterator[None]:
    """Put a name before the message of an InputError."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{name}: {error}") from error


@contextmanager
def _errors_of_overrides() -> Iterator[None]:
    """Put the parameter that gives settings before the message of an InputError, which begins with the setting."""
    try:
        yield
    except InputError as error:
        raise InputError(f"`overrides` {error}") from error


@dataclass(frozen=True)
class _TestResult:
    """A test of a test net: its averaged outputs, on the CPU, and what a TestRow says of the scores."""

    outputs: dict[str, Tensor]
    not_finite: NotFinite
    recalls: Recalls


@dataclass(frozen=True)
class _NetSource:
    """A net that the solver names: its file or field, its NetParameter, the NetState to build it in, its folder."""

    origin: str
    param: pb.NetParameter
    state: pb.NetState
    base_dir: Path | None


_LEAST = {
    **dict.fromkeys(("average_loss", "iter_size"), 1),
    **dict.fromkeys(("max_iter", "display", "snapshot", "test_interval", "device_id"), 0),
    **dict.fromkeys(("base_lr", "momentum", "weight_decay", "delta"), 0),
}
"""The smallest allowed values of SolverParameter's fields that don't depend on other fields."""


def tests_end(param: pb.SolverParameter) -> bool:
    """Whether a training that gets to max_iter is tested there; if not, it has no test at all."""
    return bool(param.test_initialization or param.test_interval <= param.max_iter)


def _check(param: pb.SolverParameter) -> None:
    """Refuse a SolverParameter that can't be honoured, and warn of fields that change nothing."""
    for path in proto.fork_fields(param):
        if "." not in path and path != "weights":
            raise InputError(f"{path}, which only other versions of Caffe have, is not supported")
    update_class(param.type).check(param)
    check_policy(param)
    if param.regularization_type not in ("L1", "L2"):
        raise InputError(f'regularization_type "{param.regularization_type}" does not exist; it is L1 or L2')
    for stated, value in param.ListFields():
        if isinstance(value, float) and not isfinite(value):
            raise InputError(f"{stated.name} must be a finite number, and is {value}")
    for field, least in _LEAST.items():
        if getattr(param, field) < least:
            raise InputError(f"{field} must be at least {least}, and is {getattr(param, field):g}")
    if param.test_iter and param.test_interval < 1:
        raise InputError("test_iter is given, and test_interval, how often to test, is missing or not positive")
    for batches in param.test_iter:
        if batches < 1:
            raise InputError(f"test_iter must be at least 1, and is {batches}")
    if param.snapshot and not param.snapshot_prefix:
        raise InputError("snapshot is given, and snapshot_prefix, where snapshots go, is missing")
    for field, why in (
        ("snapshot_diff", "snapshots hold no gradients"),
        ("debug_info", "there is no trace of every blob"),
        ("test_compute_loss", "tests report each loss blob"),
    ):
        if getattr(param, field):
            _log.warning("%s is ignored: %s", field, why)


def _read_nets(param: pb.SolverParameter, base_dir: Path | None) -> tuple[_NetSource, list[_NetSource]]:
    """The train net and the test nets that a SolverParameter names (Caffe: InitTrainNet and InitTestNets)."""
    given = [field for field in ("net", "net_param", "train_net", "train_net_param") if param.HasField(field)]
    if len(given) != 1:
        raise InputError(
            "the train net must be given once, by net, net_param, train_net or train_net_param, and is given "
            + (f"by {' and '.join(given)}" if given else "by none of them")
        )
    train = _read_net(given[0], getattr(param, given[0]), base_dir)
    tests = [_read_net("test_net_param", net, base_dir) for net in param.test_net_param]
    tests += [_read_net("test_net", net, base_dir) for net in param.test_net]
    generic = given[0] in ("net", "net_param")
    if len(param.test_iter) < len(tests) or (len(param.test_iter) > len(tests) and not generic):
        raise InputError(_wrong_number("test_iter", len(param.test_iter), len(tests)))
    tests += [train] * (len(param.test_iter) - len(tests))
    if param.test_state and len(param.test_state) != len(tests):
        raise InputError(_wrong_number("test_state", len(param.test_state), len(tests)))
    states = list(param.test_state) or [pb.NetState()] * len(tests)
    return (
        _in_state(train, pb.TRAIN, param.train_state),
        [_in_state(test, pb.TEST, state) for test, state in zip(tests, states, strict=True)],
    )


def _wrong_number(field: str, given: int, wanted: int) -> str:
    return f"{field} is given for {counted(given, 'test net')}, and there {'is' if wanted == 1 else 'are'} {wanted}"


def _read_net(field: str, value: str | pb.NetParameter, base_dir: Path | None) -> _NetSource:
    """The net that a field holds or names."""
    if not isinstance(value, str):
        net = pb.NetParameter()
        net.CopyFrom(value)
        return _NetSource(field, net, pb.NetState(), base_dir)
    try:
        path = find(value, base_dir)
    except InputError as error:
        raise InputError(f"{field}: {error}") from error
    beside = path if base_dir is None else base_dir / value
    if beside.exists() and not beside.samefile(path):
        _log.warning("%s: %s in the working directory is used, as in Caffe, and not %s", field, path, beside)
    return _NetSource(str(path), proto.read_net(path), pb.NetState(), path.parent)


def _in_state(source: _NetSource, phase: pb.Phase, extra: pb.NetState) -> _NetSource:
    """The net in a phase, with the level and the stages that the net itself and the solver add."""
    state = pb.NetState(phase=phase)
    state.MergeFrom(source.param.state)
    state.MergeFrom(extra)
    return _NetSource(source.origin, source.param, state, source.base_dir)


def _check_snapshots(prefix: str) -> None:
    """Make the folder for snapshots; InputError if it can't be written to."""
    folder = Path(prefix).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"snapshots can't be written to {folder}: {error.strerror}") from error
    check_writable(folder, prefix)


def _same_shape(saved: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether the shapes agree except for leading axes of 1, with which old files pad to four axes."""
    extra = len(saved) - len(wanted)
    return extra >= 0 and tuple(saved[extra:]) == tuple(wanted) and prod(saved[:extra]) == 1


def _values(outputs: Mapping[str, Tensor]) -> dict[str, BlobValues]:
    return {name: tuple(value.detach().flatten().tolist()) for name, value in outputs.items()}
