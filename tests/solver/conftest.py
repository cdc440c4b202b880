"""A small AutoDIAL net on image files that the tests draw themselves."""

from __future__ import annotations

import multiprocessing
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from torch.distributed import TCPStore

NET = """
name: "stripes"
layer { name: "source" type: "ImageData" top: "source" top: "label" include { phase: TRAIN }
  transform_param { crop_size: 8 mirror: true mean_value: 128 scale: 0.0078125 }
  image_data_param { source: "source.txt" batch_size: 4 shuffle: true } }
layer { name: "target" type: "ImageData" top: "target" top: "target-label" include { phase: TRAIN }
  transform_param { crop_size: 8 mirror: true mean_value: 128 scale: 0.0078125 }
  image_data_param { source: "target.txt" batch_size: 3 shuffle: true } }
layer { name: "silence" type: "Silence" bottom: "target-label" include { phase: TRAIN } }
layer { name: "data" type: "Concat" bottom: "source" bottom: "target" top: "data" include { phase: TRAIN }
  concat_param { axis: 0 } }
layer { name: "test" type: "ImageData" top: "data" top: "label" include { phase: TEST }
  transform_param { crop_size: 8 mean_value: 128 scale: 0.0078125 }
  image_data_param { source: "test.txt" batch_size: 4 } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "conv/dial" type: "Dial" bottom: "conv" top: "conv"
  dial_param { slice_point: 4 moving_average_fraction: 0.9 weight_filler { type: "constant" value: 0.9 } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "drop" type: "Dropout" bottom: "conv" top: "conv" dropout_param { dropout_ratio: 0.3 } }
layer { name: "fc" type: "InnerProduct" bottom: "conv" top: "fc"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "slice" type: "Slice" bottom: "fc" top: "fc-source" top: "fc-target" include { phase: TRAIN }
  slice_param { axis: 0 slice_point: 4 } }
layer { name: "loss-source" type: "SoftmaxWithLoss" bottom: "fc-source" bottom: "label" top: "loss-source"
  include { phase: TRAIN } }
layer { name: "loss-target" type: "EntropyLoss" bottom: "fc-target" top: "loss-target" loss_weight: 0.1
  include { phase: TRAIN } }
layer { name: "loss-test" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss-test"
  include { phase: TEST } }
layer { name: "accuracy" type: "Accuracy" bottom: "fc" bottom: "label" top: "accuracy" include { phase: TEST } }
"""

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


@pytest.fixture(scope="session")
def processes() -> multiprocessing.context.ForkServerContext:
    """Where processes come from that have torch loaded, and no threads of its."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["autodial.solver"])
    return context


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
