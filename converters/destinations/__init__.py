"""Destinations of an export: each module defines one class, which is found by the module's name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, ClassVar

from autodial.converters.licenses import check_license
from autodial.errors import InputError

if TYPE_CHECKING:
    from autodial.converters.precision import Precision
    from autodial.converters.prepared import Prepared
    from autodial.converters.verification import ExportReport
    from autodial.model_file import Domain
    from autodial.proto import messages as pb


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Options of an export that every destination knows.

    Attributes:
        logits: name of the logits' blob; None: what the TEST phase's SoftmaxWithLoss, Accuracy or Softmax layer reads.
        labels: text file with one class name per line; None: labels.txt in `base_dir` if it has as many lines as
            there are classes, else the names are "0", "1", ...
        keep_affine: leave the folded statistics as layers of their own instead of merging them into weights.
        raw_input: the file takes the net's input blob, float32 (batch, C, h, w), under the blob's name: what the
            ImageData layer, and a Crop layer right behind it, make from an image.
        domain: whose stored statistics every layer normalizes with; None: each layer's test_stats decides.
        precision: of weights and computation, "float32", "fp16" or "int8"; inputs and outputs stay the same.
        calibration: a folder of images of the domain, or a list of them, to calibrate int8 on and to compare a lower
            precision with float32 on; None: those that the net was trained on.
        min_agreement: share of these images that must keep their most probable class, in [0, 1]; None: 0.99.
        base_dir: the prototxt's folder.
        ensemble: whether there are several nets, whose probabilities are averaged.
        transform, size: how an image becomes a deploy net's input blob, see `ImageInput.for_blob`; None for both: the
            net has a data layer that says it, or `raw_input` is asked for.
        license: an SPDX license expression, such as "Apache-2.0", that is written into the file; None: the file names
            no license.
    """

    logits: str | None = None
    labels: Path | None = None
    keep_affine: bool = False
    raw_input: bool = False
    domain: Domain | None = None
    precision: Precision = "float32"
    calibration: Path | None = None
    min_agreement: float | None = None
    base_dir: Path | None = None
    ensemble: bool = False
    transform: pb.TransformationParameter | None = None
    size: tuple[int, int] | None = None
    license: str | None = None

    def __post_init__(self) -> None:
        if self.license is not None:
            object.__setattr__(self, "license", check_license(self.license))


class Destination(ABC):
    """A place that an export is written to, in the destination's format.

    A destination that writes ONNX makes the model with `autodial.converters.onnx_file.make_verified`, and does not
    override `limit` and `refused`.
    """

    refused: ClassVar[Mapping[str, str]] = {
        "ArgMax": "ONNX does not say which of several equal values it puts first",
        "Python": "an ONNX file can't hold a Python class",
    }
    """Layer types that the format can't hold, and why."""
    takes_blobs: ClassVar[bool] = False
    """Whether the written net always takes the input blob."""

    @classmethod
    @abstractmethod
    def at(cls, place: Path, net: str, options: ExportOptions, name: str | None = None) -> Destination:
        """The destination at a place that a command line names.

        Args:
            net: the net's name.
            name: the model's name in formats with named models; None: the destination chooses.

        Raises:
            InputError: no model can have that name.
        """

    def limit(self, precision: Precision) -> str | None:
        """What the format can hold, as the end of a sentence; None if it holds weights of any size."""
        if precision == "float32":
            return "one ONNX file holds at most 2 GiB"
        return f"{precision} is made of one float32 ONNX file, which holds at most 2 GiB"

    @abstractmethod
    def check(
        self, options: ExportOptions, net: pb.NetParameter | None = None, inputs: Iterable[str | Path] = ()
    ) -> None:
        """Refuse, before any work, what can't be written.

        Args:
            net: the Caffe net; None for a torch module.
            inputs: files that the same command reads and must not overwrite.

        Raises:
            InputError: the place or the format doesn't fit the options or the net.
        """

    @abstractmethod
    def write(self, prepared: Prepared) -> ExportReport:
        """Write a net completely, or nothing if that fails or the result differs from the unfolded net.

        Raises:
            InputError: the format can't hold the net.
            WorkError: a file can't be written, or the result differs from the unfolded net.
        """


def find_destination(name: str) -> type[Destination]:
    """The destination class of the module with this name.

    Raises:
        InputError: there is none of this name.
    """
    names = sorted(module.name for module in iter_modules(__path__))
    if name not in names:
        raise InputError(f'there is no destination "{name}": choose one of {", ".join(names)}')
    module = import_module(f"{__name__}.{name}")
    (found,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Destination) and value.__module__ == module.__name__
    )
    return found


def as_destination(output: str | Path | Destination) -> Destination:
    """A destination as it is; a path as an ONNX file's."""
    if isinstance(output, Destination):
        return output
    from autodial.converters.destinations.onnx import OnnxFile

    return OnnxFile(Path(output))
