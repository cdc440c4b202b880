"""What a run's numbers may depend on: not on interruptions, workers, or the target's labels."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from groups import start

from autodial import proto
from autodial.errors import InputError
from autodial.training.solver import Solver

Edit = Callable[[str, str, str], None]


def train(**options: object) -> Solver:
    solver = Solver.from_file("solver.prototxt", **options)
    assert solver.solve()
    return solver


def snapshot(iteration: int, suffix: str = "caffemodel") -> bytes:
    return Path(f"snapshots/stripes_iter_{iteration}.{suffix}").read_bytes()


def test_resumed_run_ends_in_the_same_files(project: Path) -> None:
    train()
    ends = snapshot(8), snapshot(8, "solverstate")
    assert snapshot(4) != ends[0]
    Path("snapshots/stripes_iter_8.caffemodel").unlink()
    solver = Solver.from_file("solver.prototxt", seed=5)
    solver.restore("snapshots/stripes_iter_4.solverstate")
    assert solver.solve()
    assert (snapshot(8), snapshot(8, "solverstate")) == ends


def test_resumed_from_hdf5_ends_in_the_same_files(project: Path, edit: Edit) -> None:
    train()
    ends = snapshot(8), snapshot(8, "solverstate")
    edit("solver.prototxt", "snapshot: 4", "snapshot: 4 snapshot_format: HDF5")
    train()
    solver = Solver.from_file("solver.prototxt", seed=5, overrides=["solver.snapshot_format=BINARYPROTO"])
    with pytest.raises(InputError, match=r"name snapshots/stripes_iter_4\.solverstate\.h5"):
        solver.restore("snapshots/stripes_iter_4.caffemodel.h5")
    solver.restore("snapshots/stripes_iter_4.solverstate.h5")
    assert solver.solve()
    state = proto.read_state("snapshots/stripes_iter_8.solverstate.h5")
    assert state.learned_net == "snapshots/stripes_iter_8.caffemodel.h5"
    assert (snapshot(8), snapshot(8, "solverstate")) == ends


@pytest.mark.parametrize("changes", [{"iter": -1}, {"iter": -(2**31)}, {"current_step": -1}, {"current_step": 5}])
def test_a_state_that_no_training_comes_to_is_refused(project: Path, changes: dict[str, int]) -> None:
    train()
    path = "snapshots/stripes_iter_4.solverstate"
    proto.write_state(dataclasses.replace(proto.read_state(path), **changes), path)
    with pytest.raises(InputError, match=r"stripes_iter_4\.solverstate is damaged: no training comes to iteration"):
        Solver.from_file("solver.prototxt", seed=5).restore(path)


@pytest.mark.skipif(sys.platform == "win32", reason="no such devices there")
def test_a_state_leads_to_no_device(project: Path) -> None:
    """/dev/zero never ends."""
    train()
    path = "snapshots/stripes_iter_4.solverstate"
    proto.write_state(dataclasses.replace(proto.read_state(path), learned_net="/dev/zero"), path)
    with pytest.raises(InputError, match=r"needs its caffemodel, and it is not at snapshots/zero or /dev/zero"):
        Solver.from_file("solver.prototxt", seed=5).restore(path)


def test_steps_of_one_equal_one_run(project: Path) -> None:
    train()
    end = snapshot(8)
    solver = Solver.from_file("solver.prototxt")
    for _ in range(8):
        solver.step(1)
    assert snapshot(8) == end


def test_workers_change_nothing(project: Path) -> None:
    train(workers=0)
    ends = snapshot(8), snapshot(8, "solverstate")
    train(workers=2)
    assert (snapshot(8), snapshot(8, "solverstate")) == ends


def test_seed_matters(project: Path) -> None:
    train()
    end = snapshot(8)
    train(seed=6)
    assert snapshot(8) != end


def test_target_labels_never_reach_the_weights(project: Path, edit: Edit) -> None:
    train()
    ends = snapshot(8), snapshot(8, "solverstate")
    lines = Path("target.txt").read_text().splitlines()
    Path("target.txt").write_text("".join(f"{line.rpartition(' ')[0]} {-7 * i}\n" for i, line in enumerate(lines)))
    solver = Solver.from_file("solver.prototxt")
    solver.check()
    assert solver.solve()
    assert (snapshot(8), snapshot(8, "solverstate")) == ends

    # the labels do take part where they are read
    lines = Path("source.txt").read_text().splitlines()
    Path("source.txt").write_text("".join(f"{line.rpartition(' ')[0]} 0\n" for line in lines))
    train()
    assert snapshot(8) != ends[0]


COMMAND = [
    *(sys.executable, "-c", "from autodial.cli import main; main()"),
    *("train", "--solver", "solver.prototxt", "--device", "cpu"),
]


def run_command(*arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return start([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)


def train_without_end(edit: Edit) -> None:
    edit("solver.prototxt", "max_iter: 8 display: 2", "max_iter: 100000 display: 1")
    edit("solver.prototxt", "test_iter: 2 test_interval: 4\nsnapshot: 4", "")


def until_trained(process: subprocess.Popen[str]) -> None:
    """Wait until a run into the folder `run` has some rows in its log."""
    log = Path("run/log.jsonl")
    deadline = time.monotonic() + 120
    while not (log.exists() and log.read_text().count('"train"') > 3):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no process groups to signal")
def test_interrupted_run_resumes_to_the_same_files(project: Path, edit: Edit) -> None:
    train_without_end(edit)
    process = run_command("--workers", "1", "-o", "run")
    until_trained(process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal's Ctrl-C: the workers get it, too
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 130, text
    (state,) = Path("snapshots").glob("*.solverstate")
    stopped = proto.read_state(state).iter
    assert stopped > 3
    assert f"Interrupted after {stopped} iterations. To continue:" in text
    resume = "autodial train --solver solver.prototxt --snapshot {} --device cpu --workers 1 -o run"
    assert text.splitlines()[-1] == resume.format(state)

    end = stopped + 3
    process = run_command("--snapshot", str(state), "-o", "run", "--set", f"solver.max_iter={end}")
    text, _ = process.communicate(timeout=120)
    assert process.returncode == 0, text
    resumed = snapshot(end), snapshot(end, "solverstate")
    # uninterrupted, and by the same command, as the number of threads shows in the last bits
    shutil.rmtree("snapshots")
    process = run_command("-o", "whole", "--set", f"solver.max_iter={end}")
    text, _ = process.communicate(timeout=120)
    assert process.returncode == 0, text
    assert (snapshot(end), snapshot(end, "solverstate")) == resumed


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM to heed")
def test_a_run_that_is_told_to_end_leaves_a_snapshot(project: Path, edit: Edit) -> None:
    train_without_end(edit)
    process = run_command("--workers", "1", "-o", "run")
    until_trained(process)
    os.killpg(process.pid, signal.SIGTERM)  # as a scheduler may: the workers get it, too
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 143, text
    (state,) = Path("snapshots").glob("*.solverstate")
    assert proto.read_state(state).iter > 3
    assert "Stopping after this iteration, as SIGTERM asks" in text
    assert text.splitlines()[-1].startswith(f"autodial train --solver solver.prototxt --snapshot {state} ")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that can't be written to: /dev/full")
def test_a_run_whose_output_can_not_be_written_goes_on(project: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        process = subprocess.run(
            [*COMMAND, "--workers", "0", "-o", "run"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=False,
        )
    assert process.returncode == 0, process.stderr
    assert process.stderr.splitlines() == [
        "Warning: standard output can't be written (No space left on device); training goes on, and the run's folder "
        "has its logs"
    ]
    assert snapshot(8)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGHUP")
@pytest.mark.parametrize("told", [True, False], ids=["told by SIGHUP", "told by errors alone"])
def test_a_closed_terminal_costs_nothing(told: bool, project: Path, edit: Edit) -> None:
    import pty

    train_without_end(edit)
    child, terminal = pty.fork()
    if not child:
        signal.signal(signal.SIGHUP, signal.SIG_DFL if told else signal.SIG_IGN)  # whatever these tests run under
        os.execve(sys.executable, [*COMMAND, "--workers", "1", "-o", "run"], {**os.environ, "OMP_NUM_THREADS": "1"})
    log = Path("run/log.jsonl")

    def rows() -> int:
        return log.read_text().count('"train"') if log.exists() else 0

    def wait(until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not until():
            assert os.waitpid(child, os.WNOHANG) == (0, 0) and time.monotonic() < deadline
            time.sleep(0.05)

    try:
        # what is not read from a terminal stops who writes to it
        wait(lambda: rows() > 3 or not os.read(terminal, 1 << 16))
        os.close(terminal)
        if told:
            os.killpg(child, signal.SIGHUP)  # as shells do: the workers get it, too
            wait(lambda: any(Path("snapshots").glob("*.solverstate")))
        trained = rows()
        wait(lambda: rows() > trained + 3)
        os.kill(child, signal.SIGINT)
        _, status = os.waitpid(child, 0)
    except BaseException:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        raise
    assert os.waitstatus_to_exitcode(status) == 130
    iterations = [proto.read_state(state).iter for state in sorted(Path("snapshots").glob("*.solverstate"))]
    assert len(set(iterations)) == (2 if told else 1)


def test_stop_during_a_test_trains_no_further(project: Path) -> None:
    class Stopping(Solver):
        def test_outputs(self, index: int, batches: int):  # type: ignore[no-untyped-def]
            for outputs in super().test_outputs(index, batches):
                if self.iter == 4:
                    self.stop()
                yield outputs

    solver = Stopping.from_file("solver.prototxt")
    assert not solver.solve()
    assert solver.iter == 4
    assert sorted(path.name for path in Path("snapshots").iterdir()) == [
        "stripes_iter_4.caffemodel",
        "stripes_iter_4.solverstate",
    ]
