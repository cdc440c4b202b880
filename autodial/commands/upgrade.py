"""The command `autodial upgrade`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autodial.errors import InputError


def upgrade(
    source: Annotated[Path, typer.Argument(metavar="IN", help="The prototxt of a net or solver, or a .caffemodel.")],
    output: Annotated[
        Path, typer.Argument(metavar="OUT", help="The file to write; weights become HDF5 if it ends in .h5.")
    ],
) -> None:
    """Convert an old net, solver or caffemodel to the current format.

    The command does what Caffe's upgrade tools do: it replaces V0 and V1 layers, inputs outside of layers,
    transformations in data_param, and solver_type. All other commands read the old formats, too. Comments in a
    prototxt are lost.
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
            raise InputError(f"{source} holds weights: name a .caffemodel or .h5 file to write, not {output}")
        weights, old = (proto.read_weights(source), []) if hdf5 else binary.read_old_weights(source)
        proto.write_weights(weights, output)
    else:
        message, old = text.read_old_text(source)
        if output.suffix in (".h5", ".caffemodel"):
            raise InputError(f"{source} is a prototxt: name a prototxt to write, not {output}")
        proto.write_text(message, output)
    typer.echo(f"Wrote {output}; " + (f"upgraded: {', '.join(old)}" if old else f"nothing in {source} was old"))
