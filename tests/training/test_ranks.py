"""Whole trainings on several processes against those of one, over gloo on the CPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed as dist

from autodial import proto
from autodial.errors import InputError
from autodial.system.ranks import LostRankError, Ranks
from autodial.training.run_record import read_log
from autodial.training.solver import Solver

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no forkserver, and no such signals")

OnRanks = Callable[..., list[tuple[int | None, Any]]]
Edit = Callable[[str, str, str], None]
TRAIN = ("train", "--solver", "solver.prototxt", "--workers", "0", "--device", "cpu")
FOUR = ("target.image_data_param.batch_size=5", "solver.clip_gradients=2")


def finished(results: list[tuple[int | None, Any]]) -> list[Any]:
    assert [status for status, _ in results] == [0] * len(results)
    return [result for _, result in results]


def assert_same_training(got: Any, expected: Any) -> None:
    """Check that rows and ends agree to 1e-4, as those of one process do with the original's."""
    (train, test, state), (train_of_one, test_of_one, state_of_one) = got, expected
    assert [row.iteration for row in train] == [row.iteration for row in train_of_one]
    for row, other in zip((*train, *test), (*train_of_one, *test_of_one), strict=True):
        assert row.outputs.keys() == other.outputs.keys()
        for name, values in row.outputs.items():
            np.testing.assert_allclose(values, other.outputs[name], rtol=1e-4, atol=1e-5)
    for row, other in zip(train, train_of_one, strict=True):
        assert row.loss == pytest.approx(other.loss, rel=1e-4, abs=1e-5)
        assert row.alphas == pytest.approx(other.alphas, abs=1e-5)
        assert row.diversity == pytest.approx(other.diversity, abs=1e-4)
    torch.testing.assert_close(state, state_of_one, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("size", [2, 4])
def test_numbers_do_not_depend_on_the_number_of_ranks(on_ranks: OnRanks, size: int) -> None:
    options = {"overrides": FOUR, "samples": 30}
    (one,) = finished(on_ranks(1, "train", **options))
    several = finished(on_ranks(size, "train", overrides=(*FOUR, "solver.snapshot_prefix=several"), samples=30))
    assert any(row.diversity for row in one[0])
    for rank in several:
        assert_same_training(rank, one)
    for rank in several[1:]:
        assert all(map(torch.equal, rank[2], several[0][2])), "the ranks have drifted apart"


def test_sums_begun_in_the_backward_pass_are_those_of_its_end(on_ranks: OnRanks) -> None:
    at_its_end = finished(on_ranks(2, "train", overrides=FOUR))
    begun = finished(on_ranks(2, "train", overrides=(*FOUR, "solver.snapshot_prefix=begun"), bucket_bytes=200))
    for rank, other in zip(begun, at_its_end, strict=True):
        assert [(row.loss, row.outputs) for row in rank[0]] == [(row.loss, row.outputs) for row in other[0]]
        assert all(map(torch.equal, rank[2], other[2]))  # to the bit: a sum of two has one order


def test_gradients_are_summed_as_soon_as_the_last_pass_completes_them(on_ranks: OnRanks) -> None:
    first, second = finished(on_ranks(2, "order"))[0]
    passes = [event for event in first if not event.startswith("sum")]
    assert first[: len(passes)] == passes, "which blobs get a gradient is known after one iteration"
    half = len(passes) // 2
    assert second[:half] == passes[:half], "a pass before the last begins no sums"
    last = second[half:]
    assert last.index("sum of fc 0") < last.index("conv 0") < last.index("sum of conv 0")
    assert sorted(event for event in last if event.startswith("sum")) == sorted({f"sum of {name}" for name in passes})


def test_any_number_of_ranks_goes_on_from_a_snapshot(on_ranks: OnRanks) -> None:
    train, test, state = finished(on_ranks(2, "train"))[0]
    for size in (1, 3):
        got, *_ = finished(on_ranks(size, "train", snapshot="snapshots/stripes_iter_4.solverstate"))
        rest = [row for row in train if row.iteration >= 4], [row for row in test if row.iteration >= 4]
        for row, other in zip(got[0], rest[0], strict=True):
            assert dict(row.outputs) == {
                name: pytest.approx(v, rel=1e-4, abs=1e-5) for name, v in other.outputs.items()
            }
        torch.testing.assert_close(got[2], state, rtol=1e-3, atol=1e-4)


def test_snapshot_after_a_loss_is_that_of_the_last_whole_iteration(on_ranks: OnRanks, project: Path) -> None:
    (_, message), (status, _) = on_ranks(2, "die", rank=1, iteration=5)
    assert status == -signal.SIGKILL
    assert "another rank is gone" in message and message.endswith("`snapshot` snapshots/stripes_iter_5.solverstate")
    finished(on_ranks(2, "train", overrides=("solver.snapshot=5", "solver.snapshot_prefix=whole/stripes")))
    after, whole = (
        proto.read_state(project / f"{folder}/stripes_iter_5.solverstate") for folder in ("snapshots", "whole")
    )
    assert all(map(np.array_equal, after.history, whole.history))
    models = [(project / f"{folder}/stripes_iter_5.caffemodel").read_bytes() for folder in ("snapshots", "whole")]
    assert models[0] == models[1]


def test_snapshots_outlive_the_rank_that_writes_them(on_ranks: OnRanks, project: Path) -> None:
    (status, _), (_, message) = on_ranks(2, "die", rank=0, iteration=6)
    assert status == -signal.SIGKILL and "another rank is gone" in message
    assert sorted(path.name for path in (project / "snapshots").iterdir()) == [
        "stripes_iter_4.caffemodel",
        "stripes_iter_4.solverstate",
    ]
    solver = Solver.from_file("solver.prototxt")
    solver.restore("snapshots/stripes_iter_4.solverstate")
    assert solver.iter == 4


def test_a_loss_before_the_first_iteration_leaves_nothing(on_ranks: OnRanks, project: Path) -> None:
    (_, message), _ = on_ranks(2, "die", rank=1, iteration=0)
    assert message.endswith("there is no snapshot to go on from yet")
    assert not (project / "snapshots").exists()


def test_all_ranks_stop_where_one_is_asked_to(on_ranks: OnRanks, project: Path) -> None:
    assert finished(on_ranks(3, "stop", rank=1, iteration=3)) == [3, 3, 3]
    assert (project / "snapshots/stripes_iter_3.solverstate").exists()


@pytest.mark.parametrize("options", [{"blob": "fc"}, {"blob": "conv/dial"}])
def test_ranks_that_start_from_something_else_are_noticed(on_ranks: OnRanks, options: dict[str, Any]) -> None:
    for message in finished(on_ranks(2, "differ", **options)):
        assert message.startswith("rank 1 has another solver, net, list or weights than rank 0")


def test_gpus_are_not_chosen_by_number(project: Path) -> None:
    with pytest.raises(InputError, match="each process of a machine takes a GPU of its own"):
        Solver.from_file("solver.prototxt", device="cuda:1", ranks=Ranks(0, 2, 0, 2))


@pytest.mark.parametrize("rows", [1, 2, 5, 16, 117])
def test_shares_are_all_rows_once_and_differ_by_one_at_most(rows: int) -> None:
    shares = [range(rows)[Ranks(rank, 5, rank, 5).share(rows)] for rank in range(5)]
    assert [row for share in shares for row in share] == list(range(rows))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_sum_that_never_ends_on_a_gpu_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck:
        def record_event(self) -> Stuck:
            return self

        def query(self) -> bool:
            return False

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stuck())
    rank = Ranks(0, 2, 0, 2)
    rank.limit_waits(0.0)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(LostRankError, match="another rank is gone"):
            rank.settle(torch.device("cuda", 0))
        assert not dist.is_initialized()
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def torchrun(*arguments: str, processes: int = 2) -> subprocess.Popen[str]:
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes), "-m", "autodial"]
    command = [sys.executable, *launch, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def test_rank_0_writes_and_the_others_are_silent(on_ranks: OnRanks) -> None:
    (status, out, err), silent = finished(on_ranks(2, "command", arguments=[[*TRAIN, "--keep", "1", "-o", "run"]] * 2))
    lines = out.splitlines()
    assert (status, err) == (0, "")
    assert lines[0] == "Training net.prototxt on cpu in each of 2 processes from iteration 0 to 8, logs: run"
    assert lines[-5] == "Training done." and lines[-1].startswith("autodial export ")
    assert silent == (0, "", "")
    (start,) = json.loads(Path("run/run.json").read_text())["starts"]
    assert start["ranks"] == 2
    assert start["command"].startswith("torchrun --nproc-per-node 2 -m autodial train --solver solver.prototxt")
    assert [row["iteration"] for row in read_log(Path("run"))] == [0, 0, 2, 4, 4, 6, 8]
    assert sorted(path.name for path in Path("snapshots").glob("*_iter_*")) == [
        *("stripes_iter_8.caffemodel", "stripes_iter_8.solverstate"),
    ]


def test_an_error_of_all_ranks_is_told_once(on_ranks: OnRanks) -> None:
    small = [*TRAIN, "--set", "target.image_data_param.batch_size=1"]
    (status, out, err), silent = finished(on_ranks(2, "command", arguments=[small] * 2))
    assert (status, out) == (2, "")
    assert 'layer "target" (ImageData) has a batch of 1, too small for 2 processes' in err
    assert silent == (2, "", "")


def test_an_error_of_one_rank_is_told_by_it(on_ranks: OnRanks) -> None:
    other = ["train", "--solver", "elsewhere.prototxt", "--device", "cpu"]
    zero, one = finished(on_ranks(2, "command", arguments=[list(TRAIN), other]))
    assert (zero[:2], one[:2]) == ((1, ""), (2, ""))
    assert "another rank is gone" in zero[2]
    assert one[2].startswith("autodial: error: elsewhere.prototxt does not exist")


def endless_run() -> subprocess.Popen[str]:
    """A run of two ranks under torchrun that has begun to train."""
    endless = ("solver.max_iter=1000000", "solver.display=1", "solver.snapshot=0", "solver.test_interval=1000000")
    process = torchrun(*TRAIN, "--workers", "1", *(word for setting in endless for word in ("--set", setting)))
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("Iteration 3,"):
            break
    return process


def test_torchrun_s_run_ends_in_order(project: Path) -> None:
    process = torchrun(*TRAIN)
    out, err = process.communicate()
    assert (process.returncode, "terminate called" in err) == (0, False), err
    assert "\nTraining done.\n" in out


def test_a_single_process_of_torchrun_s_tells_its_error() -> None:
    _, err = torchrun("train", "--solver", "nowhere.prototxt", processes=1).communicate()
    assert "autodial: error: nowhere.prototxt does not exist" in err and "ValueError" not in err


def test_ranks_end_with_a_snapshot_when_torchrun_is_killed(project: Path) -> None:
    process = endless_run()
    process.kill()
    out, err = process.communicate(timeout=60)  # to the end of what the ranks write
    assert "Traceback" not in err
    (state,) = project.rglob("*.solverstate")
    assert f"and {state.name}" in out


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for a process in /proc")
def test_torchrun_s_run_ends_with_a_snapshot_when_a_rank_is_killed(project: Path) -> None:
    process = endless_run()
    environments = {path.parent: path for path in Path("/proc").glob("[0-9]*/environ")}
    killed = time.monotonic()
    os.kill(
        next(int(folder.name) for folder, path in environments.items() if _is_rank_1(path, process.pid)), signal.SIGKILL
    )
    out, err = process.communicate()
    assert process.returncode == 1 and time.monotonic() - killed < 60
    (said,) = [line for line in err.splitlines() if line.startswith("autodial: ")]
    state = said.partition("resume with --snapshot ")[2]
    assert "another rank is gone" in said and (project / state).exists()
    assert f"and {Path(state).name}" in out


def _is_rank_1(environ: Path, torchrun: int) -> bool:
    """Whether a process is rank 1 itself, a child of torchrun."""
    try:
        parent = int((environ.parent / "stat").read_text().rpartition(")")[2].split()[1])
        return parent == torchrun and b"\0RANK=1\0" in environ.read_bytes()
    except OSError:
        return False
