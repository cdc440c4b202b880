"""What a training outlives, and what it leaves behind where it does not."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from groups import start

from autodial.errors import DivergedError, WorkError
from autodial.net.workers import Workers
from autodial.system.files import AppendedFile
from autodial.training.monitor import Monitor
from autodial.training.run_log import RunLog
from autodial.training.run_record import read_log
from autodial.training.solver import Solver

Edit = Callable[[str, str, str], None]
Autodial = Callable[..., tuple[int, str, str]]
signals = pytest.mark.skipif(sys.platform == "win32", reason="kills processes by signal, and limits the size of files")


class At(Monitor):
    """Does something after some iterations."""

    def __init__(self, iterations: range, do: Callable[[Solver], object]) -> None:
        self._iterations, self._do = iterations, do

    def iterated(self, solver: Solver) -> None:
        if solver.iter in self._iterations:
            self._do(solver)


def kill_a_worker(solver: Solver) -> None:
    for process in multiprocessing.active_children()[:1]:  # none, if the last one's death was not noticed yet
        os.kill(process.pid or 0, signal.SIGKILL)


def solver_that(*monitors: Monitor, **options: object) -> Solver:
    solver = Solver.from_file("solver.prototxt", **options)
    solver.monitors += monitors
    return solver


def snapshots(prefix: str = "stripes") -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path("snapshots").glob(f"{prefix}_iter_*")}


# --- data workers


@signals
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("iteration", [1, 5])  # before and behind the first snapshot and test
def test_a_killed_worker_changes_no_number(
    project: Path, caplog: pytest.LogCaptureFixture, workers: int, iteration: int
) -> None:
    options = {"workers": workers, "overrides": ["solver.max_iter=16"]}
    assert solver_that(**options).solve()
    undisturbed = snapshots()
    shutil.rmtree("snapshots")
    at = range(iteration, iteration + 1)
    assert solver_that(At(at, kill_a_worker), **options).solve()
    assert snapshots() == undisturbed
    (message,) = caplog.messages
    assert message.startswith(
        "A process that reads images died (killed by SIGKILL), and another one reads the same images"
    )


@signals
def test_a_worker_that_is_killed_while_the_net_is_tested(project: Path) -> None:
    class KillingInTests(Solver):
        def test_outputs(self, index: int, batches: int):  # type: ignore[no-untyped-def]
            outputs = super().test_outputs(index, batches)
            yield next(outputs)
            for process in multiprocessing.active_children():
                os.kill(process.pid or 0, signal.SIGKILL)
            yield from outputs

    def tested(kind: type[Solver]) -> dict[str, torch.Tensor]:
        solver = kind.from_file("solver.prototxt", workers=1, overrides=["solver.test_iter=6"])
        return solver.test()

    undisturbed, killed = tested(Solver), tested(KillingInTests)
    assert killed.keys() == undisturbed.keys()
    assert all(torch.equal(killed[name], undisturbed[name]) for name in killed)


@signals
def test_workers_that_die_again_and_again_end_the_run_with_a_snapshot(
    project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    solver = solver_that(At(range(1, 1000), kill_a_worker), workers=1, overrides=["solver.max_iter=1000"])
    with pytest.raises(WorkError) as caught:
        solver.solve()
    message = str(caught.value)
    assert message.startswith("a process that reads images died (killed by SIGKILL), and so did 4 before it within 100")
    assert message.endswith("set `workers` lower, or to 0") and "\n" not in message
    assert len(caplog.messages) == 4
    assert {f"stripes_iter_{solver.iter}.{kind}" for kind in ("caffemodel", "solverstate")} <= snapshots().keys()
    wait_until(lambda: not multiprocessing.active_children())


def said(index: int, place: int) -> str:
    return str(index)


def placed(index: int, place: int) -> int:
    return place


@signals
def test_a_place_is_free_again_when_the_next_result_is_asked_for() -> None:
    workers = Workers(placed, range(20), 2, ahead=2)
    given = list(workers)
    assert len(given) == 20 and set(given) == set(range(5))
    for i in range(16):
        assert len(set(given[i : i + 5])) == 5, "two results that were there together had one place"


@signals
def test_results_are_finished_in_order_whoever_dies() -> None:
    workers = Workers(said, itertools.count(), 2, ahead=2, finish="{}!".format)
    assert [next(workers) for _ in range(5)] == [f"{i}!" for i in range(5)]
    for process in multiprocessing.active_children():
        os.kill(process.pid or 0, signal.SIGKILL)
    assert [next(workers) for _ in range(9)] == [f"{i}!" for i in range(5, 14)]
    workers.close()
    wait_until(lambda: not multiprocessing.active_children())


COMMAND = (sys.executable, "-m", "autodial", "train", "--solver", "solver.prototxt", "--device", "cpu")


@signals
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")
def test_the_end_of_the_trainer_and_signals_while_workers_start(project: Path, edit: Edit) -> None:
    edit("solver.prototxt", "max_iter: 8 display: 2", "max_iter: 100000 display: 1")
    edit("solver.prototxt", "test_iter: 2 test_interval: 4\nsnapshot: 4", "")

    def started(folder: str) -> subprocess.Popen[str]:
        process = start(
            [*COMMAND, "--workers", "2", "-o", folder],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        log = Path(folder, "log.jsonl")
        wait_until(lambda: log.exists() and log.read_text().count('"train"') > 3)
        return process

    def workers(process: subprocess.Popen[str]) -> list[int]:
        tasks = Path(f"/proc/{process.pid}/task").glob("*/children")
        children = [pid for task in tasks for pid in task.read_text().split()]
        # not the process that passes on what decoders wrote last
        return [int(pid) for pid in children if "solver.prototxt" in Path(f"/proc/{pid}/cmdline").read_text()]

    process = started("killed")
    left = workers(process)
    assert len(left) == 2
    process.kill()
    process.wait()
    wait_until(lambda: not any(alive(pid) for pid in left))

    process = started("stopped")
    os.kill(workers(process)[0], signal.SIGKILL)
    os.killpg(process.pid, signal.SIGTERM)
    _, text = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "Stopping after this iteration" in text and text.count("Stopping") == 1
    assert len(list(Path("snapshots").glob("*.solverstate"))) == 1


def alive(pid: int) -> bool:
    """Whether a process runs; one that is dead may wait to be collected by whoever adopted it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# --- other ends


@pytest.mark.parametrize("error", [RuntimeError("CUDA error"), MemoryError(), OSError(5, "I/O"), KeyError("x")])
def test_whatever_ends_a_training_leaves_its_last_whole_iteration(project: Path, error: Exception) -> None:
    assert solver_that(overrides=["solver.snapshot=3", "solver.snapshot_prefix=snapshots/whole"]).solve()
    solver = solver_that()

    def fail(*_: object) -> None:
        if solver.iter == 3 and solver.net.layer("conv/dial").blobs[1].grad is None:
            passes.append(1)
            if len(passes) == 2:  # in the second of iter_size 2 passes, behind the layer with statistics
                raise error

    passes: list[int] = []
    solver.net.layer("fc").register_forward_hook(fail)
    expected = WorkError if isinstance(error, MemoryError) else type(error)
    with pytest.raises(expected):
        solver.solve()
    assert solver.iter == 3
    whole = snapshots("whole")
    assert snapshots()["stripes_iter_3.caffemodel"] == whole["whole_iter_3.caffemodel"]
    Path("snapshots/stripes_iter_8.caffemodel").unlink(missing_ok=True)
    again = solver_that()
    again.restore("snapshots/stripes_iter_3.solverstate")
    assert again.solve()
    assert snapshots()["stripes_iter_8.caffemodel"] == snapshots("whole")["whole_iter_8.caffemodel"]


def test_full_memory_of_a_worker_is_a_sentence(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    solver = solver_that(workers=1)
    source = solver.net.data_layers["source"].source
    batch = type(source).batch

    def fill_memory(self: object, index: int, *rows: slice) -> object:
        if index == 6:
            raise MemoryError
        return batch(self, index, *rows)

    monkeypatch.setattr(type(source), "batch", fill_memory)
    with pytest.raises(WorkError, match="the memory is full: lower batch_size in the data layers"):
        solver.solve()
    assert "stripes_iter_3.solverstate" in snapshots()


def test_weights_that_are_not_finite_are_not_kept(project: Path) -> None:
    def spoil(solver: Solver) -> None:
        with torch.no_grad():
            solver.net.params[0].tensor[0] = torch.nan

    with pytest.raises(DivergedError):
        solver_that(At(range(3, 4), spoil)).solve()
    assert not snapshots()


def test_the_command_says_how_to_go_on_after_an_error(autodial: Autodial, project: Path) -> None:
    lines = Path("source.txt").read_text()
    (project / "cut.png").write_bytes((project / "image 0.png").read_bytes()[:120])
    Path("source.txt").write_text(f"{lines * 4}cut.png 0\n")
    command = ("train", "--solver", "solver.prototxt", "--workers", "0", "--device", "cpu", "-o", "run")
    options = ("--set", "source.image_data_param.shuffle=false", "--set", "solver.snapshot=0")
    status, out, err = autodial(*command, *options)
    assert status == 2 and "source.txt:25" in err
    assert "Once the cause is fixed, continue from iteration 3 with:" in out
    again = out.splitlines()[-1]
    assert again.startswith("autodial train ") and "--snapshot snapshots/stripes_iter_3.solverstate" in again


# --- disks


ON_A_FULL_DISK = """
import resource
from pathlib import Path
from autodial.training.monitor import Monitor
from autodial.training.run_log import RunLog
from autodial.training.solver import Solver

class Disk(Monitor):
    def iterated(self, solver):  # full around the snapshot of iteration 4
        room = 100 if 3 <= solver.iter < 5 else resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))

solver = Solver.from_file("solver.prototxt", overrides=["solver.snapshot=2", "solver.display=1"])
log = RunLog(Path("run"), {}, iteration=0, resumed=False)
solver.monitors += [Disk(), log]
assert solver.solve()
log.close()
"""


@signals
def test_a_disk_that_is_full_for_a_while(project: Path) -> None:
    done = subprocess.run([sys.executable, "-c", ON_A_FULL_DISK], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    log, snapshot = done.stderr.splitlines()
    assert log.startswith("The run's log in run can't be written (File too large): training goes on")
    assert snapshot == "the snapshot snapshots/stripes_iter_4 can't be written: File too large; training goes on " + (
        "without it"
    )
    assert {name.partition(".")[0] for name in snapshots()} == {f"stripes_iter_{i}" for i in (2, 6, 8)}
    assert len(list(Path("snapshots").iterdir())) == 6
    rows = [row["iteration"] for row in read_log(Path("run")) if row["event"] == "train"]
    assert rows == [0, 1, 2, 5, 6, 7]


def test_a_full_disk_at_the_end_leaves_the_earlier_snapshots(project: Path) -> None:
    def put_in_the_way(solver: Solver) -> None:
        Path("snapshots/stripes_iter_8.caffemodel").mkdir()

    with pytest.raises(WorkError, match=r"the snapshot snapshots/stripes_iter_8 can't be written: Is a directory"):
        solver_that(At(range(6, 7), put_in_the_way)).solve()
    assert sorted(path.name for path in Path("snapshots").iterdir()) == [
        "stripes_iter_4.caffemodel",
        "stripes_iter_4.solverstate",
        "stripes_iter_8.caffemodel",
    ]


def test_a_run_s_folder_that_is_removed(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = RunLog(Path("run"), {}, iteration=0, resumed=False)
    solver = solver_that(log, At(range(3, 4), lambda _: shutil.rmtree("run")))
    assert solver.solve()
    log.close()
    (message,) = caplog.messages
    assert message.startswith("The run's log in run can't be written (No such file or directory): training goes on")
    assert not Path("run").exists()
    assert {"stripes_iter_4.solverstate", "stripes_iter_8.solverstate"} <= snapshots().keys()


def test_the_snapshots_folder_that_is_removed_is_made_again(project: Path) -> None:
    assert solver_that(At(range(6, 7), lambda _: shutil.rmtree("snapshots"))).solve()
    assert sorted(snapshots()) == ["stripes_iter_8.caffemodel", "stripes_iter_8.solverstate"]


@signals
def test_a_piece_that_does_not_fit_leaves_nothing(tmp_path: Path) -> None:
    code = """
import resource, sys
from pathlib import Path
from autodial.system.files import AppendedFile
with AppendedFile(Path(sys.argv[1])) as file:
    file.append(b"first\\n")
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, resource.RLIM_INFINITY))
    try:
        file.append(b"second\\n")
    except OSError as error:
        print(error.strerror)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    file.append(b"third\\n")
"""
    path = tmp_path / "pieces"
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert done.stdout == "File too large\n"
    assert path.read_bytes() == b"first\nthird\n"


def test_a_file_that_was_replaced_is_no_longer_written(tmp_path: Path) -> None:
    with AppendedFile(tmp_path / "a") as file:
        file.append(b"mine")
        (tmp_path / "b").write_bytes(b"another's")
        (tmp_path / "b").replace(tmp_path / "a")
        with pytest.raises(FileNotFoundError, match="another file has taken its place"):
            file.append(b"more")
    assert (tmp_path / "a").read_bytes() == b"another's"


# --- the two files of a snapshot


@signals
def test_a_kill_between_the_files_of_a_snapshot_leaves_no_wrong_pair(
    autodial: Autodial, project: Path, killed: Callable[..., bool]
) -> None:
    train = ("train", "--solver", "solver.prototxt", "--workers", "0", "--device", "cpu", "-o", "run")
    assert autodial(*train)[0] == 0
    earlier = snapshots()
    resume = (*train, "--snapshot", "snapshots/stripes_iter_4.solverstate", "--set", "solver.base_lr=0.5")
    seen = set()
    moves = 0
    while killed(moves, *resume):
        left = snapshots()
        pair = {name: data for name, data in left.items() if name.startswith("stripes_iter_8")}
        seen.add((len(pair), pair.get("stripes_iter_8.caffemodel") == earlier["stripes_iter_8.caffemodel"]))
        if len(pair) == 2:
            assert pair["stripes_iter_8.solverstate"] == earlier["stripes_iter_8.solverstate"]
        for name, data in earlier.items():
            Path("snapshots", name).write_bytes(data)
        moves += 1
    # the earlier pair, the earlier weights alone, and the new weights alone
    assert seen == {(2, True), (1, True), (1, False)}
    assert not list(Path("snapshots").glob(".*"))
    assert snapshots()["stripes_iter_8.caffemodel"] != earlier["stripes_iter_8.caffemodel"]


def test_weights_that_were_not_written_with_the_state_are_refused(autodial: Autodial, project: Path) -> None:
    train = ("train", "--solver", "solver.prototxt", "--workers", "0", "--device", "cpu", "-o", "run")
    assert autodial(*train)[0] == 0
    whole = snapshots()
    shutil.copy("snapshots/stripes_iter_8.caffemodel", "snapshots/stripes_iter_4.caffemodel")
    resume = (*train, "--snapshot", "snapshots/stripes_iter_4.solverstate")
    status, _, err = autodial(*resume)
    assert status == 2
    assert "stripes_iter_4.caffemodel is not the file that was written with snapshots/stripes_iter_4.solverstate" in err
    for name, data in whole.items():
        Path("snapshots", name).write_bytes(data)
    Path("snapshots").rename("moved")  # what moved is known by its names
    assert autodial(*train, "--snapshot", "moved/stripes_iter_4.solverstate")[0] == 0
    assert snapshots()["stripes_iter_8.caffemodel"] == whole["stripes_iter_8.caffemodel"]


def test_the_weights_beside_the_state_go_before_others_of_the_same_path(project: Path) -> None:
    assert solver_that().solve()
    shutil.copytree("snapshots", "backup")
    Path("snapshots/stripes_iter_4.caffemodel").write_bytes(Path("snapshots/stripes_iter_8.caffemodel").read_bytes())
    solver = solver_that()
    assert solver.restore("backup/stripes_iter_4.solverstate") == Path("backup/stripes_iter_4.caffemodel")


def test_states_of_an_earlier_run_are_not_written_over(autodial: Autodial, project: Path) -> None:
    train = ("train", "--solver", "solver.prototxt", "--workers", "0", "--device", "cpu")
    assert autodial(*train)[0] == 0
    for path in Path("snapshots").glob("*.caffemodel"):
        path.unlink()
    status, _, err = autodial(*train)
    assert status == 2 and "stripes_iter_4.solverstate is a snapshot that lies where this training would" in err
    assert "delete the snapshots" in err and "--snapshot" not in err  # no state has its weights
