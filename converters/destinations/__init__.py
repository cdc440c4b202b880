"""Where an export goes, and in which form: each module here is one destination, which is found by the module's name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, ClassVar

from autodial.errors import InputError

if TYPE_CHECKING:
    from autodial.converters.fold import Domain
    from autodial.converters.precision import Precision
    from autodial.converters.prepared import Prepared
    from autodial.converters.verification import ExportReport


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """What is asked of an export, whatever its destination.

    Attributes:
        logits: name of the logits' blob; None: what the TEST phase's SoftmaxWithLoss, Accuracy or Softmax layer reads.
        labels: text file with one class name per line; None: labels.txt in `base_dir` if it has as many lines as
            there are classes, else the names are "0", "1", ...
        keep_affine: leave the folded statistics as layers of their own instead of merging them into weights.
        raw_input: take the net's input blob, float32 (batch, C, h, w), under its own name: what the ImageData layer,
            and a Crop layer right behind it, make of an image.
        domain: whose stored statistics every layer normalizes with; None: what each one's test_stats says.
        precision: of the weights and the computation, "float32", "fp16" or "int8"; inputs and outputs are the same.
        calibration: a folder of images of the domain, or a list of them, to calibrate int8 on and to compare a lower
            precision with float32 on; None: those that the net was trained on.
        min_agreement: share of these images that must keep their most probable class, in [0, 1]; None: 0.99.
        base_dir: folder of the prototxt.
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


class Destination(ABC):
    """A place that an export is written to, in the destination's form.

    A class that writes an ONNX file in some way makes it with `autodial.converters.onnx_file.make_verified`, and keeps
    `limit` and `refused` as they are.
    """

    limit: ClassVar[str] = (
        "an ONNX file holds at most 2 GiB, and so does the float32 file that fp16 and int8 are made of"
    )
    """To what the form can hold, as the end of a sentence."""
    refused: ClassVar[Mapping[str, str]] = {
        "ArgMax": "ONNX does not say which of several equal values it puts first",
        "Python": "an ONNX file can't hold a Python class",
    }
    """Types of layers that the form can't hold, and why."""
    takes_blobs: ClassVar[bool] = False
    """Whether the form takes the net's input blob, whatever `raw_input` says."""

    @classmethod
    @abstractmethod
    def at(cls, place: Path, net: str, options: ExportOptions, name: str | None = None) -> Destination:
        """The destination at a place, as a command line names it.

        Args:
            net: the net's name.
            name: what to call the model there, where a form has models with names; None for the form's choice.

        Raises:
            InputError: no model there can have that name.
        """

    @abstractmethod
    def check(self, options: ExportOptions, net: Any = None, inputs: Iterable[str | Path] = ()) -> None:
        """Refuse, before any work, what can't be written there.

        Args:
            net: the NetParameter; None for a torch module.
            inputs: files that the same command reads, and so must not write over.

        Raises:
            InputError: the place or the form doesn't go with what is asked for.
        """

    @abstractmethod
    def write(self, prepared: Prepared) -> ExportReport:
        """Write a net, all of it or, where that fails or it differs from the unfolded net, nothing.

        Raises:
            InputError: the net can't be written in this form.
            WorkError: it can't be written, or what was made of it differs from the unfolded net.
        """


def find_destination(name: str) -> type[Destination]:
    """The class of a destination: the one that the module of this name has.

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
    """A destination as it is; a path is that of an ONNX file."""
    if isinstance(output, Destination):
        return output
    from autodial.converters.destinations.onnx import OnnxFile

    return OnnxFile(Path(output))
