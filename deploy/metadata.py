"""What an exported model says about itself, as a caller needs it: see `autodial.model_file`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from autodial.data.labels import check_class_names, tell_apart
from autodial.errors import InputError
from autodial.model_file import (
    ALPHA,
    CHANNELS,
    EXIF,
    INPUT,
    KEY,
    LICENSE,
    OUTPUTS,
    RESIZE,
    SCHEMA,
    ImageMetadata,
    Preamble,
    check_shapes,
)
from autodial.system.json_files import NotJsonError, check, parse
from autodial.wording import counted, shortened

_T = TypeVar("_T")

_KNOWN = {"channel_order": tuple(CHANNELS), "resize": (RESIZE,), "exif": (EXIF,), "alpha": (ALPHA,)}
"""What this reader can do to an image, by the metadata's entries."""


@dataclass(frozen=True)
class ModelInfo:
    """The facts that `autodial export` recorded in the file.

    Crop, mean and scale are part of the graph and stand here for the reader's information; `size`, `channel_order` and
    `classes` are what a caller needs to feed the graph and to read its answer.
    """

    classes: tuple[str, ...]
    """Names of the classes, in the order of the logits, all different: see `autodial.data.labels.tell_apart`."""
    size: tuple[int, int]
    """Height and width in pixels of the images that the graph takes."""
    channel_order: str
    """"BGR" (3 channels, blue first) or "GRAY" (1 channel)."""
    crop: tuple[int, int] | None
    """Height and width of the centre crop that the graph takes, if any."""
    mean: tuple[float, ...] | str
    """Subtracted by the graph: a value per channel (empty: none), or "mean_file" for a whole mean image."""
    scale: float | tuple[float, ...]
    """Multiplied by the graph, after the mean: one factor, or one per channel."""
    statistics: str | None
    """Domain whose statistics are folded in: "target", "source", or None for a net without alignment layers."""
    weights_sha256: str
    """SHA-256 of the weights that were exported, in hexadecimal digits."""
    version: str
    """Version of AutoDIAL that made the file."""
    reference: Mapping[str, Any] | None = field(default=None, repr=False)
    """What the file keeps of its training images (see `autodial.data.image_statistics.Reference`); None for nothing."""
    license: str | None = None
    """The SPDX license expression of `autodial export --license`; None where the file names no license."""

    @property
    def channels(self) -> int:
        """3 for colour, 1 for grey."""
        return CHANNELS[self.channel_order]

    @property
    def color(self) -> bool:
        """Whether the graph takes colour images."""
        return self.channel_order == "BGR"

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of one image of the batch."""
        return (*self.size, self.channels)

    @classmethod
    def of_session(cls, session: Any, path: Path) -> ModelInfo:
        """Read the metadata of an onnxruntime.InferenceSession and hold the graph's input and outputs against it.

        Raises:
            InputError: as `parse`, and where the graph isn't the one that the metadata describes.
        """
        info = cls.parse(session.get_modelmeta().custom_metadata_map, path)
        taken = [(put.name, put.type, tuple(put.shape[1:])) for put in session.get_inputs()]
        if taken != [(INPUT, "tensor(uint8)", info.image_shape)]:
            raise InputError(
                f"{path}: the graph takes {shortened(str(taken))}, and its metadata promises a uint8 batch {INPUT!r} "
                f"of {info.image_shape}: export the model again"
            )
        given = {put.name: (put.type, put.shape) for put in session.get_outputs()}
        for name in OUTPUTS:
            kind, shape = given.get(name, ("", []))
            # A size that the graph leaves open is a name there, or None.
            if kind != "tensor(float)" or len(shape) != 2 or (shape[1] != len(info.classes) and _is_fixed(shape[1])):
                raise InputError(
                    f"{path}: the graph gives {_describe(given)}, and its metadata promises {' and '.join(OUTPUTS)} of "
                    f"{counted(len(info.classes), 'class', 'classes')}: export the model again"
                )
        axes = [session.get_inputs()[0].shape[0], *(given[name][1][0] for name in OUTPUTS)]
        if any(map(_is_fixed, axes)):
            shown = [shortened(str(axis)) for axis in axes]
            raise InputError(
                f"{path}: the graph takes batches of {shown[0]} and gives {' and '.join(shown[1:])} rows, and "
                "batches of any size are wanted, with a row per image: export the model again"
            )
        return info

    @classmethod
    def parse(cls, metadata: Mapping[str, str], path: Path) -> ModelInfo:
        """Read the metadata properties of the ONNX file at `path` (named in errors only).

        Raises:
            InputError: the file was not made by `autodial export`, by a newer one, with `--raw-input`, or says
                something that this reader doesn't know.
        """
        if KEY not in metadata:
            raise InputError(
                f"{path} does not say how an image becomes its input: it has no metadata named {KEY!r}, which "
                "`autodial export` writes, and `autodial convert` does not; make one with `autodial export`"
            )
        try:
            record = parse(metadata[KEY])
        except NotJsonError as error:
            raise _unreadable(path, str(error)) from error
        head = _checked(record, Preamble, path)
        if head["schema"] > SCHEMA:
            raise InputError(
                f"{path} was made by a newer AutoDIAL ({head.get('version', 'unknown version')}, metadata schema "
                f"{head['schema']}; this one reads {SCHEMA}): upgrade autodial"
            )
        if head.get("raw_input"):
            raise InputError(
                f"{path} was exported with `raw_input` and takes preprocessed blobs, not images: "
                "export it again without `raw_input`"
            )
        return cls._from_record(_checked(record, ImageMetadata, path), metadata.get(LICENSE), path)

    @classmethod
    def _from_record(cls, record: ImageMetadata, license: str | None, path: Path) -> ModelInfo:
        stated = {"alpha": ALPHA, **record}
        for entry, known in _KNOWN.items():
            if stated[entry] not in known:
                raise InputError(
                    f"{path}: the metadata asks for {entry} {stated[entry]!r}, and this AutoDIAL "
                    f"knows {' and '.join(map(repr, known))} only: upgrade autodial or export again"
                )
        try:
            check_shapes(record)
        except InputError as error:
            raise _unreadable(path, str(error)) from error
        (height, width), crop, mean, scale = record["size"], record["crop"], record["mean"], record["scale"]
        names = [str(name) for name in record["classes"]]
        check_class_names(names, str(path))
        return cls(
            classes=tell_apart(names),
            size=(height, width),
            channel_order=record["channel_order"],
            crop=None if crop is None else (crop[0], crop[1]),
            mean=mean if isinstance(mean, str) else tuple(float(value) for value in mean),
            scale=tuple(float(value) for value in scale) if isinstance(scale, list) else float(scale),
            statistics=record["statistics"],
            weights_sha256=record["weights_sha256"],
            version=record["version"],
            reference=record.get("reference"),
            license=license,
        )


def _checked(record: Any, schema: type[_T], path: Path) -> _T:
    try:
        return check(record, schema)
    except InputError as error:
        raise _unreadable(path, str(error)) from error


def _unreadable(path: Path, why: str) -> InputError:
    return InputError(f"{path}: the metadata {KEY!r} can't be read ({why}); export the model again")


def _is_fixed(size: int | str | None) -> bool:
    return isinstance(size, int)


def _describe(outputs: Mapping[str, tuple[str, list[Any]]]) -> str:
    shown = ", ".join(f"{name}, {kind} of {shape}" for name, (kind, shape) in outputs.items())
    return shortened(shown) if shown else "nothing"
