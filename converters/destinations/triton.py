"""An exported predictor as the next version of a model in a Triton model repository.

config.pbtxt is written as text: its message's definition comes with tritonclient[grpc], too much for 20 lines.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import onnx
from google.protobuf.text_encoding import CEscape
from onnx import TensorProto

from autodial.converters.destinations import Destination, ExportOptions
from autodial.data.labels import tell_apart
from autodial.errors import InputError, WorkError
from autodial.model_file import KEY, PROBABILITIES
from autodial.system.files import replacing, replacing_files
from autodial.system.json_files import parse
from autodial.system.outputs import check_folder

if TYPE_CHECKING:
    from autodial.converters.prepared import Prepared
    from autodial.converters.verification import ExportReport
    from autodial.proto import messages as pb

MAX_BATCH_SIZE = 32
"""Largest batch of dynamic batching, until config.pbtxt is edited."""

_CONFIG, _LABELS, _MODEL = "config.pbtxt", "labels.txt", "model.onnx"
_TYPES: dict[int, str] = {TensorProto.FLOAT: "TYPE_FP32", TensorProto.UINT8: "TYPE_UINT8"}


class _End(NamedTuple):
    """An input or output: its name, Triton data type, and shape without the batch axis (-1: any size)."""

    name: str
    type: str
    dims: tuple[int, ...]


class _Interface(NamedTuple):
    """What config.pbtxt and clients expect of every version of a model."""

    inputs: tuple[_End, ...]
    outputs: tuple[_End, ...]
    classes: tuple[str, ...]
    statistics: str | None

    @classmethod
    def of(cls, model: onnx.ModelProto) -> _Interface:
        """The interface of an exported file; KeyError if `autodial export` did not make the file."""
        metadata = parse({entry.key: entry.value for entry in model.metadata_props}[KEY])
        inputs, outputs = (tuple(map(_end, values)) for values in (model.graph.input, model.graph.output))
        return cls(inputs, outputs, tell_apart(list(map(str, metadata["classes"]))), metadata["statistics"])


@dataclass(frozen=True)
class TritonModel(Destination):
    """A model in a model repository: `repository`/`name`, with config.pbtxt, labels.txt and a folder per version.

    Attributes:
        repository: the folder that Triton serves; other models in it are left alone.
        name: of the model and its folder.
    """

    repository: Path
    name: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "repository", Path(self.repository))  # callers may give a str
        if not re.fullmatch(r"\w[\w.-]*", self.name, flags=re.ASCII):
            raise InputError(f"a model can't be called {self.name!r}: take letters, digits, _, - and . alone")

    @classmethod
    def named(cls, repository: Path, net: str) -> TritonModel:
        """The model with a net's name, _ replacing what a URL can't hold; target_predictor if the net has no name."""
        return cls(repository, re.sub(r"[^\w.-]+", "_", net, flags=re.ASCII).strip("._-") or "target_predictor")

    @classmethod
    def at(cls, place: Path, net: str, options: ExportOptions, name: str | None = None) -> TritonModel:
        """The model of a net. The source's predictor is a model of its own, not a version of the target's."""
        if name is not None:
            return cls(place, name)
        return cls.named(place, f"{net}-source" if options.domain == "source" else net)

    @property
    def folder(self) -> Path:
        return self.repository / self.name

    def check(
        self, options: ExportOptions, net: pb.NetParameter | None = None, inputs: Iterable[str | Path] = ()
    ) -> None:
        """Raise InputError if no version can be added, as far as this is known before the export."""
        check_folder(self.folder)
        if self._versions():
            self._newest()

    def write(self, prepared: Prepared) -> ExportReport:
        from autodial.converters.onnx_file import make_verified

        model = make_verified(prepared)
        return model.report(self.folder, self.add(model.proto))

    def add(self, model: onnx.ModelProto) -> dict[str, int]:
        """Write a model as the next version: 1, 2, ...

        The version appears at once and complete, after all else, so that a server that polls the repository never
        loads an incomplete one. Existing config.pbtxt and labels.txt stay as they are, with all their settings.

        Args:
            model: from `make_verified`.

        Returns:
            sizes in bytes of the written files, by their paths in `folder`.

        Raises:
            InputError: the existing versions have other inputs, outputs, classes or statistics.
            WorkError: a file can't be written.
        """
        interface, versions = _Interface.of(model), self._versions()
        new = {} if versions else {_LABELS: _labels(interface.classes), _CONFIG: _config(interface)}
        if versions:
            self._check_same(interface)
        else:
            self._check_unwritten(new)
        version = str(max(versions, default=0) + 1)
        data = model.SerializeToString()
        made = [folder for folder in (self.folder, self.repository) if not folder.exists()]
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for name, text in new.items():
                with replacing(self.folder / name) as file:
                    file.write(text)
            # Until the version is complete its folder's name is no number, and Triton ignores it.
            with replacing_files(self.folder / version, last=_MODEL) as aside, replacing(aside / _MODEL) as file:
                file.write(data)
        except BaseException as error:
            if self.folder in made and not self._versions():  # unless another process added one
                shutil.rmtree(self.folder, ignore_errors=True)
            if self.repository in made:
                with suppress(OSError):  # it is not empty
                    self.repository.rmdir()
            if isinstance(error, OSError):
                raise WorkError(f"{self.folder} can't be written: {error.strerror or error}") from error
            raise
        return {**{name: len(text) for name, text in new.items()}, f"{version}/{_MODEL}": len(data)}

    def _versions(self) -> list[int]:
        if not self.folder.is_dir():
            return []
        return [int(path.name) for path in self.folder.iterdir() if re.fullmatch("[1-9][0-9]*", path.name)]

    def _newest(self) -> tuple[Path, _Interface]:
        """The newest version's file, and its interface."""
        path = self.folder / str(max(self._versions())) / _MODEL
        try:
            return path, _Interface.of(onnx.load(path, load_external_data=False))
        except Exception as error:  # there is no file, protobuf can't parse it, or it has no metadata
            raise InputError(
                f"{path} is not a model that `autodial export` wrote, so no version can be added to it: name another "
                "repository"
            ) from error

    def _check_same(self, interface: _Interface) -> None:
        """Raise InputError unless a new version has the newest version's interface."""
        path, old = self._newest()
        for field, what in (
            ("inputs", "takes other images"),
            ("classes", "knows other classes"),
            ("statistics", "was folded for another domain"),
            ("outputs", "gives other outputs"),
        ):
            if getattr(old, field) != getattr(interface, field):
                raise InputError(
                    f"{path} {what}, and all versions of a model share one {_CONFIG}: name another repository or model"
                )

    def _check_unwritten(self, files: dict[str, bytes]) -> None:
        """Raise InputError if a folder without versions has other files under these names."""
        for name, text in files.items():
            path = self.folder / name
            if path.exists() and path.read_bytes() != text:
                raise InputError(f"{path} is there without a version of the model, and differs: move it away first")


def _end(value: onnx.ValueInfoProto) -> _End:
    tensor = value.type.tensor_type
    return _End(value.name, _TYPES[tensor.elem_type], tuple(dim.dim_value or -1 for dim in tensor.shape.dim[1:]))


def _labels(classes: Sequence[str]) -> bytes:
    broken = next((name for name in classes if name.splitlines() != [name]), None)
    if broken is not None:
        raise InputError(f"the class {broken!r} can't be a line of {_LABELS}: rename it")
    return "".join(f"{name}\n" for name in classes).encode()


def _config(interface: _Interface) -> bytes:
    """config.pbtxt, a ModelConfig message as text; it has no name, so that the model's folder may be renamed."""
    lines = ['backend: "onnxruntime"', f"max_batch_size: {MAX_BATCH_SIZE}", "dynamic_batching { }"]
    for end in interface.inputs:
        lines += _block("input", end, *([f"format: {layout}"] if (layout := _layout(end)) else []))
    for end in interface.outputs:
        lines += _block("output", end, *([f'label_filename: "{_LABELS}"'] if end.name == PROBABILITIES else []))
    return "".join(f"{line}\n" for line in lines).encode()


def _block(kind: str, end: _End, *more: str) -> list[str]:
    name = CEscape(end.name.encode(), as_utf8=True)
    dims = ", ".join(map(str, end.dims))
    fields = [f'name: "{name}"', f"data_type: {end.type}", f"dims: [ {dims} ]", *more]
    return [f"{kind} {{", *(f"  {field}" for field in fields), "}"]


def _layout(end: _End) -> str | None:
    if len(end.dims) != 3:
        return None
    return "FORMAT_NHWC" if end.type == "TYPE_UINT8" else "FORMAT_NCHW"
