"""An exported model as a Python object: images in, logits and probabilities out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from autodial.data.sequences import check_images
from autodial.data.transforms import decode, resize
from autodial.deploy.binding import BoundRun, FasterRun, Pixels, Run, Scores
from autodial.deploy.metadata import ModelInfo
from autodial.deploy.providers import CUDA, open_model, reason
from autodial.errors import InputError, WorkError
from autodial.model_file import INPUT, OUTPUTS
from autodial.system.cpus import available_cpus

BATCH_SIZE = 32


class Predictor:
    """A `target_predictor.onnx` in one ONNX Runtime session.

    Args:
        model_path: the file that `autodial export` wrote.
        device: "auto" (the first GPU where there is one that works, else the CPU), "cpu", "cuda" or "cuda:N".
        threads: CPUs that a run on the CPU keeps busy; None for all that this process may use. The results are the
            same for any number.

    Raises:
        InputError: the file can't be used, `device` has another form, or `threads` is below 1.
        WorkError: a CUDA device was asked for and can't be used.

    The methods may be called from several threads at once.
    """

    def __init__(self, model_path: str | Path, device: str = "auto", threads: int | None = None) -> None:
        if threads is not None and threads < 1:
            raise InputError(f"threads is {threads}: give 1 or more, or None for all CPUs that there are")
        self._path = Path(model_path)
        opened = open_model(self._path, device, threads or available_cpus())
        session = opened.session
        self.info: ModelInfo = opened.info
        self.provider: str = opened.provider
        """ONNX Runtime's name of what runs the model: "CUDAExecutionProvider" or "CPUExecutionProvider"."""
        kind, index = opened.device
        self.device: str = kind if self.provider != CUDA else f"{kind}:{index}"
        """Where it runs: "cpu", or "cuda:N"."""
        self.reason: str = opened.reason
        """Why it runs there: "asked for", or what "auto" found."""
        self.cuda_failure: str | None = opened.cuda_failure
        """Why this machine's GPU isn't in use, where `device` was "auto" and the GPU failed; else None."""
        self._run: Run = lambda batch: session.run(OUTPUTS, {INPUT: batch})
        if self.provider == CUDA:
            self._run = FasterRun(self._run, BoundRun(session, opened.device, len(self.info.classes)))

    def predict(self, images: Sequence[Pixels | str | Path]) -> tuple[Scores, Scores]:
        """Logits and probabilities of any number of images, in batches of 32.

        Args:
            images: files, or arrays as `prepare` takes them; also one array of them all, uint8 (n, height, width, C).

        Returns:
            Two float32 arrays of shape (len(images), len(info.classes)); the rows of the second sum to 1.

        Raises:
            TypeError: `images` is one image or one file's name, or holds something else than names and arrays.
            ValueError: an image can't be decoded or has the wrong form.
            WorkError: ONNX Runtime fails.
        """
        check_images(images, "predict")
        logits = np.empty((len(images), len(self.info.classes)), np.float32)
        probabilities = np.empty_like(logits)
        batch = np.zeros((min(len(images), BATCH_SIZE), *self.info.image_shape), np.uint8)
        for start in range(0, len(images), BATCH_SIZE):
            rows = slice(start, start + BATCH_SIZE)
            count = len(images[rows])
            for slot, image in zip(batch, images[rows], strict=False):
                slot[...] = self.prepare(image)
            scores = self.run(batch if self.fixed_batches else batch[:count])
            logits[rows], probabilities[rows] = (of_all[:count] for of_all in scores)
        return logits, probabilities

    @property
    def fixed_batches(self) -> bool:
        """Whether batches of one size are faster than some that are smaller: CUDA plans anew for every other size."""
        return self.provider == CUDA

    def prepare(self, image: Pixels | str | Path) -> Pixels:
        """One image as the graph takes it: uint8, shape `info.image_shape`.

        Args:
            image: a file in a format that OpenCV reads, or an array as `cv2.imread` returns it: uint8,
                (height, width, 3) in BGR order for a colour model, (height, width[, 1]) for a grey one.

        A damaged file that can be decoded all the same is a warning in Python's log (see
        `autodial.data.transforms.read_image` for what is noticed, and for a way to get it as a value).

        Raises:
            ValueError: the file can't be decoded, or the array has another dtype or shape.
            TypeError: it is neither a file's name nor an array.
        """
        if isinstance(image, (str, os.PathLike)):
            image = decode(image, self.info.color)
        elif not isinstance(image, np.ndarray):
            raise TypeError(f"an image is a file's name or an array of uint8, and this one is a {type(image).__name__}")
        elif image.dtype != np.uint8:
            raise ValueError(f"an image is an array of uint8, and this one is of {image.dtype}")
        if image.ndim == 2:
            image = image[:, :, np.newaxis]
        if image.ndim != 3 or image.shape[2] != self.info.channels or 0 in image.shape:
            raise ValueError(f"the model takes images of (height, width, {self.info.channels}), not {image.shape}")
        if image.shape[:2] != self.info.size:
            image = resize(image, *self.info.size)
        return image

    def run(self, batch: Pixels) -> tuple[Scores, Scores]:
        """Logits and probabilities, float32 (n, classes), of prepared images, uint8 `(n, *info.image_shape)`, n >= 1.

        Raises:
            WorkError: ONNX Runtime fails.
            InputError: the graph doesn't give a row for each image.
        """
        try:
            logits, probabilities = self._run(batch)
        except Exception as error:
            raise WorkError(
                f"{self._path}: ONNX Runtime failed on a batch of {len(batch)} ({self.provider}): {reason(error)}; "
                "if memory ran out, use a smaller batch"
            ) from error
        given, wanted = (logits.shape, probabilities.shape), (len(batch), len(self.info.classes))
        if given != (wanted, wanted):
            raise InputError(
                f"{self._path}: the graph gives logits of {given[0]} and probabilities of {given[1]} for {len(batch)} "
                f"images, in place of {wanted}: export the model again"
            )
        return logits, probabilities
