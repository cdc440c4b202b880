"""A net whose batches also hold images of the target with labels: they are aligned as the target, and learned from."""

from __future__ import annotations

from autodial.netparam.graph import Graph
from autodial.netparam.names import free_name
from autodial.netparam.net_state import filter_net
from autodial.proto import messages as pb


def add_labelled_rows(net: pb.NetParameter, source: str, target: str, path: str, rows: int) -> None:
    """Change a net in place so that the first of the target's rows are images with labels.

    A batch then holds the source's rows, the labelled rows of the target and its other rows. Concat layers join the
    labelled images with the target's, and their labels with the source's. Layers that normalize domains still find the
    target behind the source's rows. Slice layers in front of losses that read labels now cut behind the labelled rows,
    so that these losses read the source's and the labelled rows, and the entropy loss reads the others.

    Args:
        net: a net with both phases. In TRAIN, a data layer for each domain has tops for images and labels.
        source, target: the names of these layers, both of the type ImageData.
        path: the list of labelled images.
        rows: their number in a batch, less than the target's rows.
    """
    numbers = {layer.name: number for number, layer in enumerate(net.layer)}
    source_data, target_data = net.layer[numbers[source]], net.layer[numbers[target]]
    images, label = target_data.top[0], source_data.top[1]
    taken = {name for layer in net.layer for name in (layer.name, *layer.top)}
    for name in _read_labels(net, label):
        _cut_behind(net.layer[numbers[name]], rows)

    labelled = pb.LayerParameter()
    labelled.CopyFrom(target_data)
    labelled.name = free_name(f"{target}-labelled", taken)
    labelled.top[:] = [free_name(f"{images}-labelled", taken), free_name(f"{label}-labelled", taken)]
    labelled.image_data_param.source, labelled.image_data_param.batch_size = path, rows
    target_data.image_data_param.batch_size -= rows
    target_data.top[0] = free_name(f"{images}-unlabelled", taken)
    source_data.top[1] = free_name(f"{label}-source", taken)
    join = _concat(free_name(f"{target}-concat", taken), [labelled.top[0], target_data.top[0]], images)
    join_labels = _concat(free_name(f"{label}-concat", taken), [source_data.top[1], labelled.top[1]], label)
    for number, layer in sorted(
        [
            (numbers[target], labelled),
            (numbers[target] + 1, join),
            (max(numbers[source], numbers[target]) + 1, join_labels),
        ],
        key=lambda placed: -placed[0],
    ):
        net.layer.insert(number, layer)


def _read_labels(net: pb.NetParameter, label: str) -> list[str]:
    """The Slice layers along the batch axis whose first top leads to a layer of TRAIN that reads labels."""
    graph = Graph(filter_net(net, pb.TRAIN).layer)
    readers = [node for node in graph.nodes if label in (graph.names[bottom] for bottom in node.bottoms)]
    behind = {id(node) for reader in readers for node in graph.ancestors(*reader.bottoms)}
    found = []
    for node in graph.nodes:
        if node.param.type == "Slice" and id(node) in behind and _axis(node.param) == 0:
            found.append(str(node.param.name))
    return found


def _cut_behind(layer: pb.LayerParameter, rows: int) -> None:
    layer.slice_param.slice_point[0] += rows


def _axis(layer: pb.LayerParameter) -> int:
    param = layer.slice_param
    return int(param.slice_dim if param.HasField("slice_dim") else param.axis)


def _concat(name: str, bottoms: list[str], top: str) -> pb.LayerParameter:
    layer = pb.LayerParameter(name=name, type="Concat", bottom=bottoms, top=[top])
    layer.include.add(phase=pb.TRAIN)
    layer.concat_param.axis = 0
    return layer
