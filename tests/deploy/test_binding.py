"""I/O binding, with places in the CPU's memory, and the choice of whether to use it on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autodial.deploy import PredictOptions, Predictor, predict_folder
from autodial.deploy import predictor as predictor_module
from autodial.deploy.binding import BoundRun, FasterRun, Run
from autodial.deploy.providers import CUDA, cuda_device_count

SIZE = (6, 9, 3)


def images(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *SIZE), dtype=np.uint8)


NEEDS_GPU = pytest.mark.skipif(cuda_device_count() == 0, reason="needs a GPU")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NEEDS_GPU])])
def bound(request: pytest.FixtureRequest, model: Any) -> BoundRun:
    opened = predictor_module.open_model(model.path, request.param, 1)
    return BoundRun(opened.session, opened.device, len(model.classes))


def test_bound_runs_give_the_sessions_outputs(model: Any, bound: BoundRun) -> None:
    for batch in (images(5), images(5, 1), images(2, 2), images(5, 3), images(10, 4)[::2]):
        logits, probabilities = bound(batch)
        np.testing.assert_allclose(logits, model.logits(*batch), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-6)


def test_outputs_are_not_touched_by_the_next_run(bound: BoundRun) -> None:
    first, _ = bound(images(4))
    kept = first.copy()
    second, _ = bound(images(4, 1))
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(first, kept)


class Way:
    """A run that takes so many seconds of a clock of its own."""

    def __init__(self, clock: Clock, seconds: float, fails: bool = False) -> None:
        self.clock = clock
        self.seconds = seconds
        self.fails = fails
        self.batches: list[int] = []

    def __call__(self, batch: np.ndarray) -> list[np.ndarray]:
        self.batches.append(len(batch))
        self.clock.now += self.seconds
        if self.fails:
            raise RuntimeError("out of memory")
        return [batch, batch]


class Clock:
    now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("autodial.deploy.binding.time", clock)
    return clock


@pytest.mark.parametrize(("usual", "bound"), [(1.0, 0.5), (0.5, 1.0)])
def test_the_faster_way_is_chosen_at_the_second_batch_of_a_shape(clock: Clock, usual: float, bound: float) -> None:
    ways = Way(clock, usual), Way(clock, bound)
    run = FasterRun(*ways)
    for count in (8, 3, 8):
        run(images(count))
    assert run.chosen is None and ways[0].batches == [8, 3, 8] and ways[1].batches == []
    run(images(8))
    faster = ways[bound < usual]
    assert run.chosen is faster
    done = len(faster.batches)
    for count in (8, 5):
        run(images(count))
    assert faster.batches[done:] == [8, 5]


def test_a_way_that_fails_is_not_chosen(clock: Clock) -> None:
    usual = Way(clock, 1.0)
    run = FasterRun(usual, Way(clock, 0.1, fails=True))
    for _ in range(3):
        run(images(4))
    assert run.chosen is usual and usual.batches == [4, 4, 4]


@pytest.mark.parametrize("faster", ["usual", "bound"])
def test_a_folder_gets_the_same_table_either_way(
    model: Any, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faster: str
) -> None:
    predict_folder(model.path, [photos], tmp_path / "plain.csv", PredictOptions(top_k=4, batch_size=5, device="cpu"))

    opened = predictor_module.open_model(model.path, "cpu", 1)
    chosen = []

    class Pretended(FasterRun):
        def __init__(self, usual: Run, bound: Run) -> None:
            super().__init__(usual, bound)
            self.wanted = bound if faster == "bound" else usual

        def __call__(self, batch: Any) -> Any:
            decided = self.chosen is not None
            scores = super().__call__(batch)
            if not decided and self.chosen is not None:
                self.chosen = self.wanted
                chosen.append(self.chosen)
            return scores

    monkeypatch.setattr(predictor_module, "FasterRun", Pretended)
    on_gpu = type(opened)(opened.session, opened.info, CUDA, "asked for", None, ("cpu", 0))
    monkeypatch.setattr(predictor_module, "open_model", lambda *_: on_gpu)
    predict_folder(model.path, [photos], tmp_path / "gpu.csv", PredictOptions(top_k=4, batch_size=5, device="cuda"))
    assert len(chosen) == 1
    assert (tmp_path / "gpu.csv").read_text() == (tmp_path / "plain.csv").read_text()


def test_predict_fills_up_the_last_batch_where_batches_have_one_size(
    model: Any, batch_sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels = list(images(70))
    plain = Predictor(model.path, "cpu").predict(pixels)
    batch_sizes.clear()
    monkeypatch.setattr(Predictor, "fixed_batches", True)
    for given, wanted in zip(Predictor(model.path, "cpu").predict(pixels), plain, strict=True):
        np.testing.assert_array_equal(given, wanted)
    assert batch_sizes == [32, 32, 32]
