"""Files of lower precision: how they are planned, made and compared with the float32 file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import onnx
from numpy.typing import NDArray

from autodial.converters.destinations import ExportOptions
from autodial.converters.file_batches import FileBatches
from autodial.converters.image_input import ImageInput
from autodial.converters.reference import TrainingImages
from autodial.converters.runtime import cpu_session
from autodial.converters.target_files import TargetFiles
from autodial.errors import AutodialError, InputError, WorkError
from autodial.model_file import OUTPUTS
from autodial.wording import counted

Precision = Literal["float32", "fp16", "int8"]

MIN_AGREEMENT = 0.99
"""Share of the images that must keep their class. Accuracy, whatever the labels, then moves by one point at most."""

_CALIBRATION = 128
"""Most images that int8 is calibrated on; half of the images where there are fewer than twice as many."""
_COMPARED = 500
"""Most images that are compared: enough to tell fifths of a percent."""
_ENOUGH = 20
"""Fewest images that int8 takes: among ten compared images, one changed class is already a tenth."""

_Batches = FileBatches | list[NDArray[Any]]


@dataclass(frozen=True)
class Agreement:
    """How far a file of lower precision is from the float32 file that it was made of.

    Attributes:
        images: how many were compared.
        compared_on: in words, what they are.
        same_class: share of the images with the same most probable class, in [0, 1].
        max_probability_difference: largest absolute difference of a probability.
        min_agreement: the least `same_class` with which a file is written.
        calibration_images: how many others int8 was calibrated on; 0 for fp16.
        float32_file_size: of the float32 file, in bytes, without what it would keep of training images.
    """

    images: int
    compared_on: str
    same_class: float
    max_probability_difference: float
    min_agreement: float
    calibration_images: int
    float32_file_size: int


@dataclass(frozen=True, eq=False)
class Lowering:
    """A precision below float32, and the images that it is tried on.

    Attributes:
        precision: the file's.
        min_agreement: as in Agreement.
        images: what the file takes; None for a raw blob.
        files: images of the file's domain; None where none can be read, which fp16 can do without.
        reason: why there are none.
    """

    precision: Precision
    min_agreement: float
    images: ImageInput | None
    files: TargetFiles | None
    reason: str


def plan_lowering(
    options: ExportOptions,
    *,
    images: ImageInput | None,
    training: TrainingImages | None,
    statistics: str | None,
) -> Lowering | None:
    """Plan the file of lower precision that is asked for; None for float32. What can be refused is refused here.

    Args:
        options: `precision`, `calibration` and `min_agreement` are read.
        images: what the file takes; None for a raw blob.
        training: training images of the file's domain; None: the TEST phase's list, which holds target images.
        statistics: domain of the statistics that the file has.

    Raises:
        InputError: an argument makes no sense, or there are too few images to calibrate int8 on.
    """
    precision, calibration, min_agreement = options.precision, options.calibration, options.min_agreement
    if precision not in get_args(Precision):
        raise InputError(f"`precision` is one of {', '.join(get_args(Precision))}, not {precision!r}")
    if precision == "float32":
        if calibration is not None or min_agreement is not None:
            raise InputError("`calibration` and `min_agreement` are for a `precision` of fp16 or int8")
        return None
    share = MIN_AGREEMENT if min_agreement is None else min_agreement
    if not 0 <= share <= 1:
        raise InputError(f"`min_agreement` is a share of the images, 0 to 1, not {share:g}")
    files, reason = _find(calibration, images, training, statistics)
    if precision == "int8" and files is None:
        remedy = "leave out `raw_input`" if images is None else "name a folder or a list of images in `calibration`"
        raise InputError(f"int8 is calibrated on images, and there are none: {reason}; {remedy}")
    if precision == "int8" and files is not None and len(files.paths) < _ENOUGH:
        raise InputError(
            f"int8 is calibrated on one half of the images and compared on the other, and {files.name} has only "
            f"{len(files.paths)}: name {_ENOUGH} or more in `calibration`"
        )
    return Lowering(precision, share, images, files, reason)


def lower(
    model: onnx.ModelProto, lowering: Lowering, rows: NDArray[Any], words: str
) -> tuple[onnx.ModelProto, Agreement, list[str]]:
    """Convert an exported graph to a lower precision, and compare it with the float32 graph.

    A float16 graph is run twice: as it is, which ONNX Runtime's CPU does in float32, and with all its values rounded
    as a GPU rounds them. Whichever is farther off counts.

    Args:
        model: the float32 graph.
        lowering: what is asked for.
        rows: input to compare on where there are no images of the domain.
        words: what the rows are, in words.

    Returns:
        the graph, its agreement, and notes for the report.

    Raises:
        WorkError: the graph can't be converted or run, its values are not finite, or it agrees on too few images.
    """
    # ONNX Runtime's converters take long to import, and few exports need them.
    from autodial.converters.onnx_float16 import rounding_to_float16, to_float16
    from autodial.converters.onnx_int8 import to_int8

    precision, notes = lowering.precision, []
    calibration, compared = _batches(lowering, rows)
    try:
        if precision == "int8":
            lowered = to_int8(model, calibration)
            sessions = [cpu_session(lowered.SerializeToString())]
        else:
            lowered, wide = to_float16(model, calibration)
            rounding = rounding_to_float16(lowered).SerializeToString()
            sessions = [cpu_session(lowered.SerializeToString()), cpu_session(rounding, optimized=False)]
            if wide:
                notes.append(f"{counted(len(wide), 'node')} stayed float32, as fp16 could not hold the values")
        same, difference = _compare(cpu_session(model.SerializeToString()), sessions, compared, precision)
    except AutodialError:
        raise
    except Exception as error:  # neither ONNX Runtime's exceptions nor its converters' have a base class
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise WorkError(f"nothing was written: ONNX Runtime can't make {precision} of the net: {reason[0]}") from error

    if lowering.files is not None:
        words = f"{counted(len(same), 'image')} of {lowering.files.name}"
        notes += _note_left_out(lowering.files, compared, calibration)
    else:
        notes.append(f"fp16 was not compared on images of its domain: {lowering.reason}")
    agreement = Agreement(
        images=len(same),
        compared_on=words,
        same_class=float(np.mean(same)),
        max_probability_difference=difference,
        min_agreement=lowering.min_agreement,
        calibration_images=calibration.images if precision == "int8" and isinstance(calibration, FileBatches) else 0,
        float32_file_size=model.ByteSize(),
    )
    if agreement.same_class < agreement.min_agreement:
        raise WorkError(
            f"nothing was written: {precision} gives {agreement.same_class:.2%} of {words} float32's class, and "
            f"`min_agreement` asks for {agreement.min_agreement:.2%}"
        )
    return lowered, agreement, notes


def _find(
    calibration: Path | None, images: ImageInput | None, training: TrainingImages | None, statistics: str | None
) -> tuple[TargetFiles | None, str]:
    """Images of the file's domain, or the reason why there are none; InputError if `calibration` holds none."""
    if images is None:
        reason = "the file takes the net's input blob, and nothing says how an image becomes one"
        if calibration is not None:
            raise InputError(f"{calibration} can't be used: {reason}")
        return None, reason
    try:
        if calibration is not None:
            files = TargetFiles.of(calibration)
        elif training is not None:
            files = TargetFiles.of_training(training)
        elif images.listed is not None and statistics != "source":
            files = TargetFiles.of_test(images.listed)
        else:
            return None, images.reason or "no list of them is known"
        trial = FileBatches(files.paths, images)
        if next(iter(trial), None) is None:
            raise InputError(f"no image of {files.name} can be read: {next(iter(trial.unreadable.values()))}")
    except InputError as error:
        if calibration is not None:
            raise
        return None, str(error)
    return files, ""


def _batches(lowering: Lowering, rows: NDArray[Any]) -> tuple[_Batches, _Batches]:
    """What to calibrate on and what to compare; for int8 they have no image in common."""
    if lowering.files is None or lowering.images is None:
        return [rows], [rows]
    paths = lowering.files.paths
    first = min(_CALIBRATION, len(paths) // 2)
    if lowering.precision == "fp16":  # its ranges are not fitted to these images, only looked at
        parts = paths[:_CALIBRATION], paths[:_COMPARED]
    else:
        parts = paths[:first], paths[first : first + _COMPARED]
    calibration, compared = (FileBatches(part, lowering.images) for part in parts)
    return calibration, compared


def _compare(float32: Any, lowered: Sequence[Any], batches: _Batches, precision: Precision) -> tuple[list[bool], float]:
    """Whether each image keeps its class in all lowered sessions, and the largest difference of a probability."""
    same: list[bool] = []
    difference = 0.0
    for batch in batches:
        _, expected = _run(float32, batch)
        kept = np.ones(len(batch), bool)
        for session in lowered:
            logits, probabilities = _run(session, batch)
            if not np.isfinite(logits).all():
                raise WorkError(f"nothing was written: {precision} gives logits that are not finite: use float32")
            kept &= probabilities.argmax(1) == expected.argmax(1)
            difference = max(difference, float(np.abs(probabilities - expected).max()))
        same += kept.tolist()
    if not same:
        raise WorkError("nothing was written: none of the images to compare can be read")
    return same, difference


def _run(session: Any, batch: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    logits, probabilities = session.run(OUTPUTS, {session.get_inputs()[0].name: batch})
    return logits, probabilities


def _note_left_out(files: TargetFiles, *parts: _Batches) -> list[str]:
    """A note on files that are missing or can't be read, if there are any."""
    unreadable = {path: why for part in parts if isinstance(part, FileBatches) for path, why in part.unreadable.items()}
    if not files.missing and not unreadable:
        return []
    why = f", the first: {next(iter(unreadable.values()))}" if unreadable else ""
    return [f"{counted(files.missing + len(unreadable), 'image')} of {files.name} could not be read{why}"]
