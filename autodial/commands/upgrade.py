"""The command `autodial upgrade`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autodial.errors import InputError


def upgrade(
    source: Annotated[Path, typer.Argument(metavar="IN", help="A net's or solver's prototxt, or a .caffemodel.")],
    output: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write; for weights, .h5 makes it HDF5.")],
) -> None:
    """Bring an old net, solver or caffemodel up to date, as Caffe's upgrade tools do.

    V0 and V1 layers, inputs outside of a layer, transformations inside of data_param, and solver_type are replaced.
    Every other command reads the old forms as well. Comments in a prototxt are not carried over.
    """
    from autodial import proto
    from autodial.proto import binary, text
    from autodial.system import files
    from autodial.system.outputs import check_output

    check_output(output, [source])
    old: list[str] = []
    hdf5 = files.is_hdf5(source, "prototxt or caffemodel")
    if hdf5 or files.is_binary(files.read_bytes(source, "prototxt or caffemodel")):
        if output.suffix == ".prototxt":
            raise InputError(f"{source} holds weights, which {output} can't be: name a .caffemodel or .h5 to write")
        weights, old = (proto.read_weights(source), []) if hdf5 else binary.read_old_weights(source)
        proto.write_weights(weights, output)
    else:
        message, old = text.read_old_text(source)
        if output.suffix in (".h5", ".caffemodel"):
            raise InputError(f"{source} is a prototxt, which {output} can't be: name a prototxt to write")
        proto.write_text(message, output)
    typer.echo(f"Wrote {output}; " + (f"old in {source}: {', '.join(old)}" if old else f"nothing in {source} was old"))
