"""Runs a model on a GPU in the faster of two ways: with new memory for each batch, or with the same for all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from autodial.model_file import INPUT, OUTPUTS

Pixels: TypeAlias = npt.NDArray[np.uint8]
Scores: TypeAlias = npt.NDArray[np.float32]
Run: TypeAlias = Callable[[Pixels], list[Scores]]

_ROUNDS = 3


class BoundRun:
    """Runs of a session whose input and outputs keep their places on a device (ONNX Runtime's I/O binding).

    Args:
        session: the onnxruntime.InferenceSession.
        device: ONNX Runtime's name of the device that it runs on, and the device's number: ("cuda", 0).
        classes: the number of columns of the outputs.

    It takes one batch at a time, and makes new places for a batch of another shape.
    """

    def __init__(self, session: Any, device: tuple[str, int], classes: int) -> None:
        self._session = session
        self._device = device
        self._classes = classes
        self._shape: tuple[int, ...] | None = None
        self._input: Any = None
        self._outputs: list[Any] = []
        self._binding: Any = None

    def __call__(self, batch: Pixels) -> list[Scores]:
        """The outputs for a batch, uint8 (n, height, width, channels), in arrays of their own."""
        if batch.shape != self._shape:
            self._bind(batch.shape)
        self._input.update_inplace(np.ascontiguousarray(batch))
        self._session.run_with_iobinding(self._binding)
        return [np.array(output.numpy()) for output in self._outputs]  # numpy() of the CPU's memory is a view

    def _bind(self, shape: tuple[int, ...]) -> None:
        from onnxruntime import OrtValue  # type: ignore[import-untyped]

        self._shape = None  # until all of it is done
        self._binding = self._session.io_binding()
        self._input = OrtValue.ortvalue_from_shape_and_type(shape, np.uint8, *self._device)
        self._binding.bind_ortvalue_input(INPUT, self._input)
        self._outputs = []
        for name in OUTPUTS:
            output = OrtValue.ortvalue_from_shape_and_type((shape[0], self._classes), np.float32, *self._device)
            self._binding.bind_ortvalue_output(name, output)
            self._outputs.append(output)
        self._shape = shape


class FasterRun:
    """Runs with `usual` until a batch has the shape of the one before it, and then with what is faster for those.

    Whether binding pays depends on the net, the driver and the GPU. The batch that decides is run a few times more.
    Calls from several threads take turns.
    """

    def __init__(self, usual: Run, bound: Run) -> None:
        self._usual = usual
        self._bound = bound
        self._shape: tuple[int, ...] | None = None
        self._lock = threading.Lock()
        self.chosen: Run | None = None
        """The faster of the two, once that is decided."""

    def __call__(self, batch: Pixels) -> list[Scores]:
        with self._lock:
            if self.chosen is None and batch.shape == self._shape:
                self.chosen = self._faster(batch)
            self._shape = batch.shape
            return (self.chosen or self._usual)(batch)

    def _faster(self, batch: Pixels) -> Run:
        runs = self._usual, self._bound
        try:
            self._bound(batch)  # makes its places
        except Exception:  # such as too little memory for them: what cannot run is not the faster
            return self._usual
        seconds = [[_seconds(run, batch) for run in runs] for _ in range(_ROUNDS)]
        usual, bound = map(min, zip(*seconds, strict=True))
        return self._bound if bound < usual else self._usual


def _seconds(run: Run, batch: Pixels) -> float:
    started = time.perf_counter()
    run(batch)
    return time.perf_counter() - started
