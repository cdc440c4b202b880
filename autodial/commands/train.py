"""The command `autodial train`."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autodial.commands.inputs import split_names
from autodial.commands.options import (
    SeedOption,
    SolverDeviceOption,
    SolverOption,
    StartOption,
    VariantOption,
    WorkersOption,
    naming_options,
)
from autodial.errors import INTERRUPTED, TERMINATED, AutodialError, InputError
from autodial.wording import command_line, counted

if TYPE_CHECKING:
    from autodial.system.ranks import Ranks
    from autodial.training.run import Training, TrainingResult


class TrainingPrecision(StrEnum):
    """The type in which training passes compute."""

    FLOAT32 = "float32"
    BF16 = "bf16"


@contextmanager
def _as_rank() -> Iterator[None]:
    """Let a process of torchrun leave its group; one rank alone reports an error that all ranks have."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        yield
        return
    from autodial.system.ranks import Ranks

    try:
        yield
    except typer.Exit:
        Ranks.leave()
        raise
    except AutodialError as error:
        reports = Ranks.should_report(error)
        Ranks.leave(error)
        if reports:
            raise
        raise SystemExit(error.exit_status) from None
    Ranks.leave()


@_as_rank()
def train(
    solver: SolverOption,
    weights: StartOption = None,
    snapshot: Annotated[Path | None, typer.Option(metavar="X.solverstate", help="Resume from this snapshot.")] = None,
    device: SolverDeviceOption = "auto",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="LAYER.FIELD=VALUE",
            help="Change a field of the net, or of the solver with solver.FIELD=VALUE; may be repeated.",
        ),
    ] = None,
    variants: VariantOption = None,
    workers: WorkersOption = None,
    precision: Annotated[
        TrainingPrecision,
        typer.Option(
            help="float32, as in Caffe, or bf16: passes in bfloat16, which is faster if the machine supports it. "
            "Parameters, statistics, losses, updates and tests stay in float32."
        ),
    ] = TrainingPrecision.FLOAT32,
    seed: SeedOption = None,
    keep: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Keep only the newest N snapshots with this snapshot_prefix, and the one that the run resumed from.",
            show_default="all are kept",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="RUN_DIR", help="The folder for logs.", show_default="SNAPSHOT_PREFIX_run"
        ),
    ] = None,
) -> None:
    """Train a net.

    The command corresponds to `caffe train`. Snapshots go to the solver's snapshot_prefix. RUN_DIR gets run.json (what
    was run, with all settings applied), log.jsonl (losses, accuracies and every alpha: a JSON object per displayed
    iteration and test), and the same for TensorBoard.

    Ctrl-C finishes the iteration, writes a snapshot, prints the command that continues from it, and exits with status
    130; a second Ctrl-C stops at once. SIGTERM, as from `kill` or a cluster's scheduler, does the same with status 143.
    If the terminal is closed (SIGHUP), training writes a snapshot and continues.

    `torchrun --nproc-per-node N -m autodial train ...` trains in N processes, each with its own GPU or on the CPU. The
    processes share every batch, and give the same numbers as one process.
    """
    from autodial.system.ranks import Ranks
    from autodial.system.terminal import Console
    from autodial.training.console import Bar, Lines, line_writer, write_line
    from autodial.training.run import Outcome, SnapshotsError, Training
    from autodial.training.signals import heeding_signals

    ranks = Ranks.join()

    def say(text: str) -> None:
        if ranks is None or ranks.rank == 0:
            write_line(text)

    options: dict[str, object] = {
        "--device": device,
        "--variant": variants,
        "--set": settings,
        "--workers": workers,
        "--precision": None if precision is TrainingPrecision.FLOAT32 else precision.value,
        "--seed": seed,
        "--keep": keep,
    }

    def command(start: dict[str, object], place: Path | None) -> str:
        return _command(ranks, {"--solver": solver, **start, **options, "-o": place})

    with ExitStack() as stack:
        stack.enter_context(
            naming_options(
                weights="--weights",
                snapshot="--snapshot",
                overrides="--set",
                variants="--variant",
                workers="--workers",
                folder="-o",
            )
        )
        try:
            training = Training(
                solver,
                weights=split_names(weights),
                snapshot=snapshot,
                device=device,
                seed=seed,
                workers=workers,
                precision=precision.value,
                overrides=settings or (),
                variants=variants or (),
                ranks=ranks,
                keep=keep,
                folder=output,
            )
        except SnapshotsError as error:
            if error.newest is None:
                raise
            raise InputError(f"{error}: {command({'--snapshot': error.newest}, output)}") from error
        run, folder = training.solver, training.folder
        if training.missing:
            files = ",".join(map(str, training.weights))
            say(f"Not in {files}, so initialized by their fillers: {', '.join(training.missing)}")
        if training.done:
            say(
                f"Nothing is left to do: {snapshot} is from iteration {run.iter}, and max_iter is "
                f"{run.param.max_iter}. To train longer, add --set solver.max_iter=N"
            )
            return
        start = run.iter
        console = Console(soft_wrap=True, markup=False, highlight=False)
        bar = Bar(console, run) if console.is_terminal else None

        def begin() -> None:
            write_line(training.describe())
            if bar is not None:
                stack.enter_context(bar)

        def again() -> str:
            assert training.snapshot is not None
            return command({"--snapshot": training.snapshot.state}, folder)

        def say_how_to_go_on() -> None:
            if run.iter > start and training.snapshot is not None and training.snapshot.iteration == run.iter:
                say(f"Once the cause is fixed, continue from iteration {run.iter} with:\n{again()}")

        lines = Lines(line_writer(console), run.net.base_dir)
        heeded = stack.enter_context(heeding_signals(run))
        try:
            result = training.run(
                [lines] if bar is None else [lines, bar],
                command=command({"--weights": weights, "--snapshot": snapshot}, output),
                begun=begin,
            )
        except Exception:
            say_how_to_go_on()
            raise
        if result.error is not None:
            say_how_to_go_on()
            raise result.error
    if result.outcome is Outcome.STOPPED:
        say(f"Interrupted after {counted(result.iteration, 'iteration')}. To continue:\n{again()}")
        raise typer.Exit(TERMINATED if signal.SIGTERM in heeded else INTERRUPTED)
    say("Training done.")
    if result.collapsed_at is not None:
        say(f"The target's predictions collapsed at iteration {result.collapsed_at}; see above.")
    say(f"To look at the run:\n{shlex.join(['autodial', 'report', str(folder)])}")
    if export := _export_command(training, result, variants or (), settings or ()):
        say(f"To export the net:\n{export}")


def _command(ranks: Ranks | None, options: dict[str, object]) -> str:
    """The command line of a run.

    It leaves out how torchrun's processes find each other on several machines.
    """
    words = "autodial train"
    if ranks is not None:
        machines = ranks.size // ranks.local_size
        nodes = f" --nnodes {machines}" if machines > 1 else ""
        words = f"torchrun{nodes} --nproc-per-node {ranks.local_size} -m {words}"
    return command_line(words, options)


def _export_command(
    training: Training, result: TrainingResult, variants: Sequence[str], settings: Sequence[str]
) -> str | None:
    """The command line that exports what was trained.

    None without a snapshot of the last iteration or a file with the net, or if the TEST phase does not say which blob
    holds the logits.
    """
    from autodial.evaluation.domains import data_in_both_phases
    from autodial.netparam.graph import Graph
    from autodial.netparam.net_state import filter_net
    from autodial.netparam.overrides import applies, for_nets
    from autodial.proto import messages as pb

    run, snapshot = training.solver, result.snapshot
    tested = min(1, len(run.test_nets))
    net, param = run.net_names[tested], run.net_params[tested]
    state = run.test_nets[0].param.state if run.test_nets else param.state
    if snapshot is None or snapshot.iteration != result.iteration or not Path(net).is_file():
        return None
    try:
        Graph(filter_net(param, pb.TEST, level=state.level, stages=state.stage).layer).logits()
    except InputError:
        return None
    options = {
        **{"--net": net, "--variant": list(variants), "--set": [s for s in for_nets(settings) if applies(s, param)]},
        **{"--level": state.level or None, "--stage": list(state.stage)},
        **{"--weights": snapshot.weights, "-o": "target_predictor.onnx"},
    }
    # the paper's inference step (section 3.2) computes the statistics over all images
    whole = " --recalibrate" if data_in_both_phases(param, level=state.level, stages=state.stage) else ""
    return command_line(f"autodial export{whole}", options)
