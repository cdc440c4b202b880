"""An exported predictor as an ONNX file, for `autodial predict` and any ONNX runtime."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autodial.converters.destinations import Destination, ExportOptions
from autodial.system.files import replacing, replacing_files
from autodial.system.outputs import check_output

if TYPE_CHECKING:
    from autodial.converters.precision import Precision
    from autodial.converters.prepared import Prepared
    from autodial.converters.verification import ExportReport
    from autodial.proto import messages as pb


@dataclass(frozen=True)
class OnnxFile(Destination):
    """A file, in a folder that exists. Weights above 2 GiB go to a second file, of the same name and `.data`.

    Where a smaller model replaces one with a second file, that file is removed.

    Attributes:
        path: an existing file is replaced.
        suffixes: the name must end in one of them; empty for any name.
    """

    path: Path
    suffixes: tuple[str, ...] = ()

    @classmethod
    def at(cls, place: Path, net: str, options: ExportOptions, name: str | None = None) -> OnnxFile:
        return cls(place, (".onnx",))

    def limit(self, precision: Precision) -> str | None:
        return None if precision == "float32" else super().limit(precision)

    def check(
        self, options: ExportOptions, net: pb.NetParameter | None = None, inputs: Iterable[str | Path] = ()
    ) -> None:
        check_output(self.path, inputs, suffixes=self.suffixes)

    def write(self, prepared: Prepared) -> ExportReport:
        from autodial.converters.onnx_file import to_onnx, verified
        from autodial.converters.onnx_weights import remove_unused, weights_path, written_weights

        precision = "float32" if prepared.lowering is None else prepared.lowering.precision
        exported = to_onnx(prepared, self.limit(precision))
        if not exported.weights:
            model, second = verified(prepared, exported), written_weights(self.path)
            with replacing(self.path) as file:
                file.write(model.data)
            remove_unused(second, [self.path.name])
            return model.report(self.path, {self.path.name: len(model.data)})
        with replacing_files(self.path.parent, last=self.path.name) as aside:
            path = aside / self.path.name
            model = verified(prepared, exported, path)
            sizes = {file.name: file.stat().st_size for file in (path, weights_path(path))}
        return model.report(self.path, sizes)
