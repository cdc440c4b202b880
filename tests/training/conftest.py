"""A small AutoDIAL net on image files that the tests draw themselves."""

from __future__ import annotations

import multiprocessing
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from forked import forkserver
from groups import end_all
from small_net import small_net
from torch.distributed import TCPStore

NET = small_net(
    "stripes",
    (4, 3, 4),
    scaling="mean_value: 128 scale: 0.0078125",
    augmented=True,
    filters=4,
    alphas=(0.9,),
    fraction=0.9,
    drop=True,
    loss_test=True,
)

SOLVER = """
net: "net.prototxt"
base_lr: 0.05 lr_policy: "step" gamma: 0.5 stepsize: 4 momentum: 0.9 weight_decay: 0.001
iter_size: 2 max_iter: 8 display: 2 average_loss: 3
test_iter: 2 test_interval: 4
snapshot: 4 snapshot_prefix: "snapshots/stripes"
random_seed: 5
solver_mode: CPU
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, made the working directory, with net.prototxt, solver.prototxt, 13 images and three lists."""
    rng = np.random.default_rng(0)
    lists: dict[str, list[str]] = {"source": [], "target": [], "test": []}
    for i in range(13):
        label = i % 3
        image = rng.integers(0, 64, (10, 10, 3), dtype=np.uint8)
        image[:, :, label] += 128
        assert cv2.imwrite(str(tmp_path / f"image {i}.png"), image)
        lists["source" if i < 6 else "target"].append(f"image {i}.png {label}")
        if i < 11:
            lists["test"].append(f"image {i}.png {label}")
    for name, lines in lists.items():
        (tmp_path / f"{name}.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "solver.prototxt").write_text(SOLVER)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def edit(project: Path) -> Callable[[str, str, str], None]:
    """`edit(file, old, new)` replaces text that occurs once in a file of the project."""

    def replace(file: str, old: str, new: str) -> None:
        text = (project / file).read_text()
        assert text.count(old) == 1
        (project / file).write_text(text.replace(old, new))

    return replace


@pytest.fixture
def autodial(project: Path, autodial: Callable[..., tuple[int, str, str]]) -> Callable[..., tuple[int, str, str]]:
    """`autodial(arguments...)`, in the project."""
    return autodial


PROGRAMS = Path(__file__).with_name("rank_programs.py")
_SECONDS = 120


@pytest.fixture(autouse=True)
def no_process_outlives_its_test() -> Iterator[None]:
    yield
    end_all()


@pytest.fixture(scope="session")
def processes() -> multiprocessing.context.ForkServerContext:
    return forkserver()


@pytest.fixture
def on_ranks(
    processes: multiprocessing.context.ForkServerContext, project: Path
) -> Callable[..., list[tuple[int | None, Any]]]:
    """`on_ranks(size, name, **options)` runs a function of rank_programs.py as that many ranks, as torchrun would.

    It gives each rank's exit status, and what the function returned, or None if it did not get that far.
    """

    def run(size: int, name: str, **options: Any) -> list[tuple[int | None, Any]]:
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # torchrun's own, which outlives ranks
        results = [project / f"result-{rank}" for rank in range(size)]
        ranks = []
        for rank, result in enumerate(results):
            result.unlink(missing_ok=True)
            environment = {
                **{"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size},
                **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port},
                **{"TORCHELASTIC_RUN_ID": "test", "TORCHELASTIC_USE_AGENT_STORE": True},
            }
            call = {"environment": environment, "folder": project, "name": name, "options": options, "result": result}
            ranks.append(processes.Process(target=runpy.run_path, args=(str(PROGRAMS), {"CALL": call})))
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(_SECONDS)
            assert process.exitcode is not None, "a rank hangs"
        return [
            (process.exitcode, torch.load(result, weights_only=False) if result.exists() else None)
            for process, result in zip(ranks, results, strict=True)
        ]

    return run
