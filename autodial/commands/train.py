"""The command `autodial train`."""

from __future__ import annotations

import glob
import itertools
import os
import shlex
import signal
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autodial.commands.options import (
    INTERRUPTED,
    TERMINATED,
    SeedOption,
    SolverDeviceOption,
    VariantOption,
    WorkersOption,
)
from autodial.data.decoder_messages import real_stderr
from autodial.errors import AutodialError, InputError
from autodial.system.streams import discard
from autodial.wording import counted

if TYPE_CHECKING:
    from autodial.system.ranks import Ranks
    from autodial.training.solver import Solver


class Precision(str, Enum):
    """What training passes compute in."""

    FLOAT32 = "float32"
    BF16 = "bf16"


@contextmanager
def _as_rank() -> Iterator[None]:
    """End a process of torchrun's in order: of an error that all ranks have one tells, with the same exit status."""
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
    solver: Annotated[Path, typer.Option(metavar="SOLVER.prototxt", help="The solver, which names the net.")],
    weights: Annotated[
        str | None,
        typer.Option(metavar="W1,W2", help="Start from these .caffemodel files; layers find theirs by name."),
    ] = None,
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
        Precision,
        typer.Option(
            help="float32 as Caffe, or bf16: passes in bfloat16, faster where the machine has instructions for it; "
            "parameters, statistics, losses, updates and tests stay float32."
        ),
    ] = Precision.FLOAT32,
    seed: SeedOption = None,
    keep: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Delete snapshots of this snapshot_prefix but for the newest N and the one resumed from, each time "
            "that a new one is written.",
            show_default="all stay",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="RUN_DIR", help="Folder for the run's logs.", show_default="SNAPSHOT_PREFIX_run"
        ),
    ] = None,
) -> None:
    """Train a net, as `caffe train` does.

    Snapshots go where the solver's snapshot_prefix says. RUN_DIR gets run.json (what was run, with all settings
    applied), log.jsonl (losses, accuracies and every alpha, a JSON object per displayed iteration and test), and the
    same for TensorBoard. Ctrl-C finishes the iteration, writes a snapshot, prints the command that goes on from there,
    and exits with status 130; a second Ctrl-C stops at once. SIGTERM, as from `kill` or a cluster's scheduler, does the
    same, with status 143. When the terminal is closed (SIGHUP), it writes a snapshot and goes on.

    `torchrun --nproc-per-node N -m autodial train ...` trains in N processes, each on a GPU of its own or on the CPU,
    to the numbers of one: they share out every batch.
    """
    from autodial.net.feed import default_workers
    from autodial.system.allocator import keep_freed_memory
    from autodial.system.outputs import check_folder
    from autodial.system.ranks import Ranks
    from autodial.system.terminal import Console
    from autodial.training.console import Bar, Lines
    from autodial.training.run_log import RunLog
    from autodial.training.solver import Solver

    ranks = Ranks.join()
    leads = ranks is None or ranks.rank == 0

    def say(text: str) -> None:
        if leads:
            _echo(text)

    if weights is not None and snapshot is not None:
        raise InputError("--weights starts a run and --snapshot resumes one: give one of them")
    if output is not None:
        check_folder(output)
    options: dict[str, Any] = {
        "--device": device,
        "--variant": variants,
        "--set": settings,
        "--workers": workers,
        "--precision": None if precision is Precision.FLOAT32 else precision.value,
        "--seed": seed,
        "--keep": keep,
    }
    run = Solver.from_file(
        solver,
        device=device,
        seed=seed,
        workers=default_workers(ranks.local_size if ranks else 1) if workers is None else workers,
        precision=precision.value,
        overrides=settings or (),
        variants=variants or (),
        ranks=ranks,
        keep=keep,
    )
    if run.device.type == "cpu":
        keep_freed_memory()
    folder = output or _run_folder(run.param.snapshot_prefix, resumed=snapshot is not None)
    if snapshot is None and run.param.snapshot_prefix:
        _check_free(run.param.snapshot_prefix)
    if weights is not None:
        missing = run.load_weights(weights.split(","))
        if missing:
            say(f"Not in {weights}, and left as their fillers made them: {', '.join(missing)}")
    if snapshot is not None:
        model = run.restore(snapshot)
        _check_pair(folder, snapshot, model)
        _check_same_run(folder, variants or [], run.precision, say)
        if run.param.HasField("max_iter") and run.iter >= run.param.max_iter:
            say(
                f"Nothing is left to do: {snapshot} is of iteration {run.iter}, and max_iter is {run.param.max_iter}. "
                "A larger one trains on: --set solver.max_iter=N"
            )
            return
    run.check()
    if leads:
        _warn_of_zeros(run)

    command = _command(solver, {"--weights": weights, "--snapshot": snapshot, **options, "-o": output}, ranks)
    record = _record(run, command, variants or (), settings or ())
    several = "" if ranks is None else f" in each of {ranks.size} processes"
    half = "" if precision is Precision.FLOAT32 else f" in {precision.value}"
    console = Console(soft_wrap=True, markup=False, highlight=False)
    with ExitStack() as stack:
        if leads:
            stack.enter_context(_alone_at(run.param.snapshot_prefix))
            log = RunLog(folder, record, iteration=run.iter, resumed=snapshot is not None)
            stack.callback(log.close)
            _echo(
                f"Training {run.net_names[0]} on {record['device']}{half}{several} from iteration {run.iter} to "
                f"{run.param.max_iter}, logs: {folder}"
            )
            run.monitors += [log, Lines(console.print if console.is_terminal else _echo)]
            if console.is_terminal:
                run.monitors.append(stack.enter_context(Bar(console, run)))
        heeded = stack.enter_context(_heeding_signals(run))
        begun = run.iter

        def again() -> str:
            state = f"{run.param.snapshot_prefix}_iter_{run.iter}{run.snapshot_suffixes[1]}"
            return _command(solver, {"--snapshot": state, **options, "-o": folder}, ranks)

        try:
            finished = run.solve()
        except Exception:
            if run.iter > begun and run.saved_at == run.iter:
                say(f"To go on from iteration {run.iter} once that is mended:\n{again()}")
            raise
    if not finished:
        say(f"Interrupted after {counted(run.iter, 'iteration')}. To go on:\n{again()}")
        raise typer.Exit(TERMINATED if run.ranks is None and signal.SIGTERM in heeded else INTERRUPTED)
    say("Training done.")
    if run.collapses:
        say(f"The target's predictions collapsed at iteration {run.collapses[-1].iteration}; see above.")
    say(f"To look at the run:\n{shlex.join(['autodial', 'report', str(folder)])}")
    if export := _export_command(run, variants or (), settings or ()):
        say(f"To export the net:\n{export}")


def _echo(text: str) -> None:
    """Print a line; where standard output is gone, with `tee` or on a full disk, training goes on without it."""
    try:
        typer.echo(text)
    except OSError as error:
        discard(1)
        try:
            reason = f"standard output can't be written ({error.strerror})"
            typer.echo(f"Warning: {reason}; training goes on, and the run's folder has its logs", err=True)
        except OSError:
            discard(real_stderr())


@contextmanager
def _heeding_signals(run: Solver) -> Iterator[Collection[int]]:
    """Let the first SIGINT or SIGTERM stop the solver after its iteration, and the next one end it at once.

    SIGHUP asks for a snapshot, as `caffe train` has it, unless it is ignored (nohup). With several ranks, SIGTERM and
    SIGHUP do what the first SIGINT does: torchrun sends the former to those that are left when one is lost, and ends
    with the terminal.

    Yields:
        the signals that came.
    """
    stderr = real_stderr()
    terminals = [number for number in {1, 2, stderr} if os.isatty(number)]
    heeded: set[int] = set()

    def on_interrupt(number: int, frame: object) -> None:
        heeded.add(number)
        run.stop()
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        if run.ranks is None or run.ranks.rank == 0:
            again = b"; press Ctrl-C again to stop at once" if number == signal.SIGINT else b", as SIGTERM asks"
            with suppress(OSError):  # it is gone
                # not print, which the signal may have come in the middle of
                os.write(stderr, b"\nStopping after this iteration" + again + b".\n")

    def on_end(number: int, frame: object) -> None:
        assert run.ranks is not None
        run.ranks.limit_waits()
        run.stop()

    def on_hangup(number: int, frame: object) -> None:
        run.ask_snapshot()
        if not all(map(os.isatty, terminals)):  # gone, so that writing there would fail
            discard(*terminals)

    handlers = {signal.SIGINT: on_interrupt, signal.SIGTERM: on_interrupt if run.ranks is None else on_end}
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        handlers[signal.SIGHUP] = on_hangup if run.ranks is None else on_end
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield heeded
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _run_folder(prefix: str, *, resumed: bool) -> Path:
    """PREFIX_run, or PREFIX_run2 and so on: the first that holds no run, or the last that does, to go on with it."""
    from autodial.training.run_record import holds_run

    folders = (Path(f"{prefix}_run{n if n > 1 else ''}") for n in itertools.count(1))
    last = None
    for folder in folders:
        if not holds_run(folder):
            return last if resumed and last is not None else folder
        last = folder
    raise AssertionError("unreachable")


def _check_free(prefix: str) -> None:
    """Refuse to write over the snapshots of an earlier run."""
    names = (f"{glob.escape(Path(prefix).name)}_iter_*.{kind}*" for kind in ("caffemodel", "solverstate"))
    found = sorted(path for name in names for path in Path(prefix).parent.glob(name))
    if found:
        raise InputError(
            f"{found[0]} is a snapshot of an earlier run, which this one might write over: name another place with "
            "--set solver.snapshot_prefix=PREFIX, go on from a snapshot with --snapshot, or delete them"
        )


@contextmanager
def _alone_at(prefix: str) -> Iterator[None]:
    """Keep other trainings from writing snapshots of the same names: PREFIX.lock is there, and locked, meanwhile."""
    from autodial.system.outputs import lock

    path = Path(f"{prefix}.lock")
    with ExitStack() as stack:
        while True:
            file = stack.enter_context(path.open("ab"))
            if not lock(file):
                raise InputError(
                    f"another training writes its snapshots to {prefix}: name another place with "
                    "--set solver.snapshot_prefix=PREFIX, or wait until it is done"
                )
            if path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno())):
                break  # else the one that had it ended just now and took the file away
        stack.callback(_remove, path)
        yield


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def _warn_of_zeros(run: Solver) -> None:
    """Say so where several layers start at 0, as a deploy file's do: no gradient gets past two of them."""
    names = [
        message.name
        for message in run.net.param.layer
        if message.type in ("Convolution", "InnerProduct") and not run.net.layer(message.name).blobs[0].any()
    ]
    if len(names) > 1:
        typer.echo(
            f"Warning: all weights of {', '.join(names[:3])}{', ...' if len(names) > 3 else ''} are 0, and nothing is "
            "learned through them: start from --weights, or state a weight_filler",
            err=True,
        )


def _check_pair(folder: Path, state: Path, model: Path | None) -> None:
    """Refuse weights that, by the run's log, are not those that were written with the state."""
    from autodial.system.hashing import file_hash
    from autodial.training.run_record import holds_run, read_events

    if model is None or not holds_run(folder):
        return
    try:
        snapshots = [row for row in read_events(folder) if row["event"] == "snapshot"]
    except InputError:  # nothing is known of it
        return
    here = [row for row in snapshots if row.get("state") == str(state.absolute())]
    moved = [row for row in snapshots if Path(str(row.get("state"))).name == state.name]
    written = next((row.get("sha256") for row in reversed(here or moved)), None)
    if written is not None and written != file_hash(model):
        raise InputError(
            f"{model} is not the file that was written with {state}, as the log in {folder} says: put that one back, "
            "resume from another snapshot, or name another folder with -o to go on with these two"
        )


def _check_same_run(folder: Path, variants: list[str], precision: str, say: Callable[[str], object]) -> None:
    """Refuse to go on with a run of another variant of the net; tell of one of another precision."""
    from autodial.training.run_record import holds_run, read_starts

    if not holds_run(folder):
        return
    last = read_starts(folder)[-1]
    computed = last.get("precision", Precision.FLOAT32.value)
    if computed != precision:
        say(f"{folder} holds a run in {computed}, which goes on in {precision}: see --precision")
    before = last.get("variants", [])
    if before != variants:
        options = " ".join(f"--variant {name}" for name in before) or "no --variant"
        raise InputError(
            f"{folder} holds a run with {options}: resume it with the same, or name another folder with -o"
        )


def _command(solver: Path, options: dict[str, Any], ranks: Ranks | None) -> str:
    """The command line of a run; options that are None are left out, lists are repeated.

    How torchrun's processes on several machines find each other is left to whoever starts them.
    """
    words = ["autodial", "train", "--solver", str(solver)]
    if ranks is not None:
        machines = ranks.size // ranks.local_size
        nodes = ["--nnodes", str(machines)] if machines > 1 else []
        words = ["torchrun", *nodes, "--nproc-per-node", str(ranks.local_size), "-m", *words]
    return shlex.join([*words, *_words(options)])


def _words(options: dict[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        for item in value if isinstance(value, list) else [] if value is None else [value]:
            yield from (name, str(item))


def _export_command(run: Solver, variants: Sequence[str], settings: Sequence[str]) -> str | None:
    """The command line that exports what was trained.

    None where it is not that simple: without a snapshot of the last iteration or a file of the net, or with a TEST
    phase that leaves open which blob holds the logits.
    """
    from autodial.netparam.graph import Graph
    from autodial.netparam.net_state import filter_net
    from autodial.netparam.overrides import for_nets
    from autodial.proto import messages as pb

    tested = min(1, len(run.test_nets))
    net, param = run.net_names[tested], run.net_params[tested]
    state = run.test_nets[0].param.state if run.test_nets else param.state
    weights = Path(f"{run.param.snapshot_prefix}_iter_{run.iter}{run.snapshot_suffixes[0]}")
    if not (weights.is_file() and Path(net).is_file()):
        return None
    try:
        Graph(filter_net(param, pb.TEST, level=state.level, stages=state.stage).layer).logits()
    except InputError:
        return None
    options = {
        **{"--net": net, "--variant": list(variants), "--set": [s for s in for_nets(settings) if _fits(s, param)]},
        **{"--level": state.level or None, "--stage": list(state.stage)},
        **{"--weights": weights, "-o": "target_predictor.onnx"},
    }
    return shlex.join(["autodial", "export", *_words(options)])


def _fits(setting: str, net: Any) -> bool:
    """Whether a setting is one of a net's, and not only of another net that the solver names."""
    from autodial.netparam.overrides import apply_to_nets

    copy = type(net)()
    copy.CopyFrom(net)
    try:
        apply_to_nets([setting], [copy])
    except InputError:
        return False
    return True


def _record(run: Solver, command: str, variants: Sequence[str], settings: Sequence[str]) -> dict[str, Any]:
    """What run.json says about a start of the run."""
    import platform
    from datetime import datetime, timezone
    from importlib.metadata import version

    import cv2
    import torch

    from autodial import __version__
    from autodial.proto import to_text

    cuda = run.device.type == "cuda"
    nets = {id(param): (param, net) for param, net in zip(run.net_params, (run.net, *run.test_nets), strict=True)}
    return {
        "command": command,
        "folder": str(Path.cwd()),
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "iteration": run.iter,
        "seed": run.seed,
        "variants": list(variants),
        "settings": list(settings),
        "device": f"{run.device} ({torch.cuda.get_device_name(run.device)})" if cuda else "cpu",
        **({} if run.ranks is None else {"ranks": run.ranks.size}),
        "workers": run.workers,
        "precision": run.precision,
        "keep": run.keep,
        "versions": {
            "autodial": __version__,
            **{name: version(name) for name in ("torch", "numpy", "protobuf")},
            "opencv": cv2.__version__,
            "python": platform.python_version(),
        },
        "solver": to_text(run.param),
        "nets": [to_text(param) for param, _ in nets.values()],
        # where their relative paths lead if not from the working directory
        "net_folders": [net.base_dir and str(net.base_dir.absolute()) for _, net in nets.values()],
    }
