"""An exported predictor as one ONNX file, for `autodial predict` and any ONNX runtime."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autodial.converters.destinations import Destination, ExportOptions
from autodial.system.files import replacing
from autodial.system.outputs import check_output

if TYPE_CHECKING:
    from autodial.converters.prepared import Prepared
    from autodial.converters.verification import ExportReport
    from autodial.proto import messages as pb


@dataclass(frozen=True)
class OnnxFile(Destination):
    """A file, in a folder that exists.

    Attributes:
        path: an existing file is replaced.
        suffixes: the name must end in one of them; empty for any name.
    """

    path: Path
    suffixes: tuple[str, ...] = ()

    @classmethod
    def at(cls, place: Path, net: str, options: ExportOptions, name: str | None = None) -> OnnxFile:
        return cls(place, (".onnx",))

    def check(
        self, options: ExportOptions, net: pb.NetParameter | None = None, inputs: Iterable[str | Path] = ()
    ) -> None:
        check_output(self.path, inputs, suffixes=self.suffixes)

    def write(self, prepared: Prepared) -> ExportReport:
        from autodial.converters.onnx_file import make_verified

        model = make_verified(prepared)
        with replacing(self.path) as file:
            file.write(model.data)
        return model.report(self.path, {self.path.name: len(model.data)})
