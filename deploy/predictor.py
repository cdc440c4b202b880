"""An exported model as a Python object: images in, logits and probabilities out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from autodial.data.decoder_messages import note_damage
from autodial.data.sequences import check_images
from autodial.data.transforms import Decoded, resize
from autodial.deploy.binding import BoundRun, FasterRun, Pixels, Run, Scores
from autodial.deploy.images import AnyImage, ImageError, name_of, read
from autodial.deploy.metadata import ModelInfo
from autodial.deploy.predictions import Predictions
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
        self._path, self._wanted_device, self._wanted_threads = Path(model_path), device, threads
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

    def __reduce__(self) -> tuple[type[Predictor], tuple[Path, str, int | None]]:
        """A predictor pickles as its arguments: it opens its session, and needs the model's file, where it arrives."""
        return type(self), (self._path.absolute(), self._wanted_device, self._wanted_threads)

    def predict(
        self, images: Sequence[AnyImage] | Pixels, *, on_error: Literal["raise", "status"] = "raise"
    ) -> Predictions:
        """Logits and probabilities of any number of images, in batches of 32.

        Args:
            images: paths, bytes of whole files, open files and arrays, in any mixture, as `prepare` takes them; also
                one array of them all, uint8 (n, height, width, C). One image gives the same result whichever way it
                comes.
            on_error: "raise" ends at the first image that can't be used; "status" gives it a row of NaN, the status
                "error" and the reason, and goes on.

        Returns:
            the pair (logits, probabilities), float32 (len(images), len(info.classes)), with `statuses`, `labels`, `top`
            and `errors` as attributes.

        Raises:
            TypeError: `images` is one image or one file's name, or holds something that is no image at all.
            ValueError: an image can't be decoded or has the wrong form, and `on_error` is "raise".
            WorkError: ONNX Runtime fails.
        """
        check_images(images, "predict")
        logits = np.full((len(images), len(self.info.classes)), np.nan, np.float32)
        probabilities = logits.copy()
        errors: list[str | None] = []
        damages: list[str] = []
        batch = np.zeros((min(len(images), BATCH_SIZE), *self.info.image_shape), np.uint8)
        for start in range(0, len(images), BATCH_SIZE):
            rows: list[int] = []
            for row, image in enumerate(images[start : start + BATCH_SIZE], start):
                error, damage = None, ""
                try:
                    pixels, damage = read(image, self.info.channels)
                    batch[len(rows)] = self._resized(pixels)
                    rows.append(row)
                except ImageError as failure:
                    if on_error == "raise":
                        raise
                    error = str(failure)
                if damage and on_error == "raise":
                    note_damage(f"{name_of(image)} is damaged: {damage}")
                errors.append(error)
                damages.append(damage)
            if rows:
                scores = self.run(batch if self.fixed_batches else batch[: len(rows)])
                logits[rows], probabilities[rows] = (of_all[: len(rows)] for of_all in scores)
        return Predictions(logits, probabilities, self.info.classes, errors, damages)

    @property
    def fixed_batches(self) -> bool:
        """Whether full batches are faster than some smaller ones: CUDA makes a new plan for every size."""
        return self.provider == CUDA

    def prepare(self, image: AnyImage) -> Pixels:
        """One image as the graph takes it: uint8, shape `info.image_shape`.

        Args:
            image: a file in a format that OpenCV reads, by its path, its bytes or as an open file, or an array as
                `cv2.imread` returns it: uint8, (height, width, 3) in BGR order for a colour model,
                (height, width[, 1]) for a grey one.

        A damaged file that can be decoded all the same is a warning in Python's log (see
        `autodial.data.transforms.read_image` for what is noticed); `prepare_noting` gives it as a value.

        Raises:
            ValueError: the file can't be decoded, or the array has another dtype or shape.
            TypeError: it is neither a file nor an array.
        """
        pixels, damage = self.prepare_noting(image)
        if damage:
            note_damage(f"{name_of(image)} is damaged: {damage}")
        return pixels

    def prepare_noting(self, image: AnyImage) -> Decoded:
        """As `prepare`, with what shows that the file is damaged; empty where nothing does."""
        pixels, damage = read(image, self.info.channels)
        return Decoded(self._resized(pixels), damage)

    def _resized(self, image: Pixels) -> Pixels:
        return image if image.shape[:2] == self.info.size else resize(image, *self.info.size)

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
