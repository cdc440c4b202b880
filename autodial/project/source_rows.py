"""A net whose batches hold the rows of several sources, each of which is aligned with the target on its own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from autodial.netparam.names import free_name
from autodial.proto import messages as pb


def add_sources(net: pb.NetParameter, source: str, paths: Sequence[str], rows: Sequence[int]) -> None:
    """Change a net in place so that the source's rows are those of several sources, one after the other.

    A data layer for each source takes the place of the source's, and Concat layers join their images and their labels.
    Dial layers are told where each source begins, so that each has statistics of its own. All else stays: losses read
    the labelled rows of all sources together.

    Args:
        net: a net whose data layer for the source has tops for images and labels, and the type ImageData.
        source: the name of this layer.
        paths: each source's list.
        rows: each source's rows in a batch.
    """
    number = next(number for number, layer in enumerate(net.layer) if layer.name == source)
    taken = {name for layer in net.layer for name in (layer.name, *layer.top)}
    original = net.layer[number]
    readers = []
    for index, (path, count) in enumerate(zip(paths, rows, strict=True), 1):
        reader = pb.LayerParameter()
        reader.CopyFrom(original)
        reader.name = free_name(f"{source}-{index}", taken)
        reader.top[:] = [free_name(f"{top}-{index}", taken) for top in original.top]
        reader.image_data_param.source, reader.image_data_param.batch_size = path, count
        readers.append(reader)
    joins = []
    for place, top in enumerate(original.top):
        join = pb.LayerParameter(name=free_name(f"{top}-concat", taken), type="Concat", top=[top])
        join.bottom.extend(reader.top[place] for reader in readers)
        join.include.add(phase=pb.TRAIN)
        join.concat_param.axis = 0
        joins.append(join)
    del net.layer[number]
    for layer in reversed([*readers, *joins]):
        net.layer.insert(number, layer)
    for layer in net.layer:
        if layer.type == "Dial":
            layer.dial_param.source_slice_point[:] = list(accumulate(rows))[:-1]
