"""The samples of a net's two domains, each once, in order, and prepared as the TEST phase prepares images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from autodial.data.source import FILE_OPTIONS
from autodial.errors import InputError
from autodial.layers import Shape, layer_class
from autodial.net.data_checks import check_data
from autodial.net.feed import Feed, sources
from autodial.net.net import Net
from autodial.netparam.graph import Graph, Node
from autodial.netparam.net_state import filter_net, put_in_state
from autodial.proto import messages as pb

_TRANSFORMING = ("ImageData", "Data")
FileOptions: TypeAlias = pb.ImageDataParameter | pb.DataParameter | pb.HDF5DataParameter
"""The messages that say which files a data layer reads."""


class DataTop(NamedTuple):
    """A data layer and the name of its top that holds the images."""

    layer: pb.LayerParameter
    blob: str


def data_in_test(net: pb.NetParameter, *, aligned: bool = True) -> DataTop:
    """The data top that a NetParameter's Dial layers depend on in the TEST phase.

    Args:
        net: the net.
        aligned: whether the net must have Dial layers; otherwise the data of its logits counts where it has none.

    Raises:
        InputError: there is no Dial layer, as in a net with latent domains, or it does not depend on one top of one
            data layer.
    """
    if aligned and has_latent_domains(net):
        raise InputError(
            "the net has latent domains (MultiModalBatchNorm), and only Dial layers' statistics can be computed over "
            "all images: keep those that training stored, with which the net can be exported as it is"
        )
    graph = Graph(filter_net(net, pb.TEST).layer)
    dials = _dial_tops(graph) if aligned else _tops_of_dials(graph)
    found = _data_tops(graph, dials or [graph.logits()])
    if len(found) != 1:
        names = ", ".join(f'"{data.blob}" of layer "{data.layer.name}"' for data in found) or "none"
        reader = "Dial layers" if dials else "logits"
        raise InputError(f"the TEST phase's {reader} must depend on one blob of one data layer; it is {names}")
    return found[0]


class TrainData(NamedTuple):
    """The data tops of a TRAIN phase: those of the sources, in the order of the batch's rows, and the target's."""

    sources: tuple[DataTop, ...]
    target: DataTop


def data_in_train(net: pb.NetParameter) -> TrainData | None:
    """The data tops of the sources and the target in a NetParameter's TRAIN phase.

    They are the tops of data layers behind the first and the last bottom of the Concat layer that joins source and
    target along the batch axis in front of a Dial layer. Several sources, as many as the Dial layers align, are the
    bottoms but the last, or another Concat layer joined them before. If another such layer joined several parts of the
    target, images with labels and images without, the target's top is that of the last part. None if there is no such
    layer, as in a net with a TEST phase only. In a net with latent domains MultiModalBatchNorm layers stand for Dial
    layers, and the source is one.
    """
    try:
        graph = Graph(filter_net(net, pb.TRAIN).layer)
    except InputError:
        return None
    latent = [top for node in graph.nodes if node.param.type == "MultiModalBatchNorm" for top in node.tops]
    joins = [node for node in _ancestors(graph, latent or _dial_tops(graph)) if _joins_rows(node)]
    # the last that joins what data layers make: the parts of one domain are joined before the domains
    for node in reversed(joins):
        tops = [_data_tops(graph, [part]) for part in _joined(graph, node.tops[0])]
        if all(len(some) == 1 for some in tops):
            of_target = len(_joined(graph, node.bottoms[-1]))
            found = [some[0] for some in (*tops[:-of_target], tops[-1])]
            repeated = any(top in found[:i] for i, top in enumerate(found))
            return None if repeated or len(found) != 1 + sources_of(net) else TrainData(tuple(found[:-1]), found[-1])
    return None


def has_latent_domains(net: pb.NetParameter) -> bool:
    """Whether MultiModalBatchNorm layers find latent domains among the source's images, in place of Dial layers."""
    types = {layer.type for layer in net.layer}
    return "MultiModalBatchNorm" in types and "Dial" not in types


def sources_of(net: pb.NetParameter) -> int:
    """How many sources a NetParameter's Dial layers align with the target; 1 for a net without such layers."""
    return 1 + max((len(layer.dial_param.source_slice_point) for layer in net.layer), default=0)


def has_target_batch_norm(net: pb.NetParameter) -> bool:
    """Whether a net with latent domains normalizes in its TEST phase with the target's BatchNorm layers alone."""
    if not has_latent_domains(net):
        return False
    types = {layer.type for layer in filter_net(net, pb.TEST).layer}
    return "BatchNorm" in types and "MultiModalBatchNorm" not in types


def data_in_both_phases(net: pb.NetParameter, *, level: int = 0, stages: Sequence[str] = ()) -> bool:
    """Whether a NetParameter names files for the statistics of both domains, as `autodial export --recalibrate` needs.

    Args:
        level, stages: the net's state, in addition to its own.
    """
    whole = pb.NetParameter()
    whole.CopyFrom(net)
    put_in_state(whole, level, stages)
    try:
        test, trained = data_in_test(whole), data_in_train(whole)
        data = () if trained is None else (*trained.sources, trained.target, test)
        return trained is not None and all(file_options(each.layer).source for each in data)
    except InputError:
        return False


def without_augmentation(data: DataTop, test: DataTop, batch_size: int | None = None) -> DataTop:
    """A data layer that reads its files in their order and neither mirrors nor crops at random.

    Images are prepared as `data` states, except for the crop, which is the TEST phase's: a net that crops with a layer
    of its own does so in that phase only.

    Args:
        data: a data layer of any phase.
        test: the data layer of the TEST phase.
        batch_size: images per batch; None: as in the TEST phase, or as in `data` if no file feeds the TEST phase.

    Raises:
        InputError: it is a layer that gets its data from a program.
    """
    layer = pb.LayerParameter()
    layer.CopyFrom(data.layer)
    layer.phase = pb.TEST
    for field in ("include", "exclude"):
        layer.ClearField(field)
    options = file_options(layer)
    for field in ("shuffle", "rand_skip"):
        if field in options.DESCRIPTOR.fields_by_name:
            options.ClearField(field)
    like = file_options(test.layer) if test.layer.type in FILE_OPTIONS else options
    options.batch_size = batch_size or like.batch_size
    if layer.type in _TRANSFORMING:
        layer.transform_param.mirror = False
        if test.layer.type in _TRANSFORMING:
            layer.transform_param.crop_size = test.layer.transform_param.crop_size
    return DataTop(layer, data.blob)


def reading(data: DataTop, path: Path, size: tuple[int, int] | None = None) -> DataTop:
    """A data layer that reads other files: a list of images, a list of HDF5 files, or an LMDB, depending on its type.

    Args:
        path: the list or database. Relative paths in a list mean the working directory, then the list's folder.
        size: height and width to resize images to where the layer states none.

    Raises:
        InputError: it is a layer that gets its data from a program.
    """
    layer = pb.LayerParameter()
    layer.CopyFrom(data.layer)
    options = file_options(layer)
    options.source = str(path.absolute())
    if isinstance(options, pb.ImageDataParameter):
        options.ClearField("root_folder")
        if size is not None and not options.new_height:
            options.new_height, options.new_width = size
    return DataTop(layer, data.blob)


def fed_net(net: pb.NetParameter, blob: str, shape: Shape) -> tuple[pb.NetParameter, str | None]:
    """The part of a NetParameter's TEST phase that its Dial layers and logits need, with an Input layer for its data.

    Args:
        blob: name of the data's blob, as `data_in_test` finds it.
        shape: that blob's shape, with the batch axis.

    Returns:
        a NetParameter, and the name of the logits, which the loss, Accuracy or Softmax layer reads. The name is None if
        the TEST phase has no such blob, or several, or overwrites it in place.
    """
    graph = Graph(filter_net(net, pb.TEST).layer)
    dials = _tops_of_dials(graph)
    try:
        logits = graph.logits()
        behind = _data_tops(graph, [*dials, logits])
        known = len(behind) == 1 and graph.last(graph.names[logits]) == logits
    except InputError:
        known = False
    for value in [value for value, name in enumerate(graph.names) if name == blob]:
        if layer_class(graph.producer(value).param.type).is_data:
            graph.feed(value, shape)
    pruned = pb.NetParameter(name=net.name)
    for node in _ancestors(graph, [*dials, logits] if known else dials):
        layer = pruned.layer.add()
        layer.CopyFrom(node.param)
        layer.ClearField("loss_weight")
        del layer.top[:]
        layer.top.extend(graph.names[top] for top in node.tops)
    return pruned, graph.names[logits] if known else None


class DomainBatches:
    """Every row of a data layer's files once, in batches on a device; the last batch may be smaller.

    It can be iterated over any number of times; each iteration starts its own worker processes.

    Args:
        data: a layer `without_augmentation`.
        blob: the images' name in the batches.
        device: the batches' device.
        workers: processes that read images ahead.
        base_dir: folder of the prototxt.

    Attributes:
        path: the list or database, as the layer names it.
        rows: number of rows.
        shape: shape of a batch, (N, C, H, W).

    Raises:
        InputError: files that can't be read; it names the layer. Iterating: also the row.
    """

    def __init__(self, data: DataTop, blob: str, *, device: torch.device, workers: int, base_dir: Path | None) -> None:
        self._net = Net(pb.NetParameter(layer=[data.layer]), pb.TEST, base_dir=base_dir)
        self._top, self._blob = data.blob, blob
        self._device, self._workers = device, workers
        self.path: str = file_options(data.layer).source
        (source,) = sources(self._net).values()
        self.rows = len(source)
        self.shape: Shape = self._net.blob_shapes[self._top]

    def check(self) -> None:
        """Raise InputError if a file of an image list is missing or no image."""
        check_data(self._net)

    def __len__(self) -> int:
        return -(-self.rows // self.shape[0])

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        feed = Feed(self._net, range(len(self)), device=self._device, workers=self._workers)
        with closing(feed):
            for index, tops in enumerate(feed):
                yield {self._blob: tops[self._top][: self.rows - index * self.shape[0]]}


def file_options(layer: pb.LayerParameter) -> FileOptions:
    """The message that says which files a data layer reads; InputError if a program feeds it."""
    if layer.type not in FILE_OPTIONS:
        raise InputError(
            f'layer "{layer.name}" ({layer.type}) gets its data from a program, so that nothing says how to prepare '
            "images for it: use a net whose data layer has the type ImageData, Data or HDF5Data"
        )
    options: FileOptions = getattr(layer, FILE_OPTIONS[layer.type])
    return options


def _tops_of_dials(graph: Graph) -> list[int]:
    return [top for node in graph.nodes if node.param.type == "Dial" for top in node.tops]


def _joins_rows(node: Node) -> bool:
    return bool(node.param.type == "Concat" and node.param.concat_param.axis == 0)


def _joined(graph: Graph, value: int) -> list[int]:
    """The values that Concat layers join, along the batch axis, to a value; itself if another layer makes it."""
    node = graph.producer(value)
    if not _joins_rows(node):
        return [value]
    return [part for bottom in node.bottoms for part in _joined(graph, bottom)]


def _dial_tops(graph: Graph) -> list[int]:
    tops = _tops_of_dials(graph)
    if not tops:
        raise InputError(
            "the net has no Dial layer, so there are no statistics of domains: `autodial dialize` adds Dial layers to "
            "a net with BatchNorm layers"
        )
    return tops


def _ancestors(graph: Graph, values: Iterable[int]) -> list[Node]:
    """The nodes that values depend on, in the net's order."""
    needed = {id(node) for value in values for node in graph.ancestors(value)}
    return [node for node in graph.nodes if id(node) in needed]


def _data_tops(graph: Graph, values: Sequence[int]) -> list[DataTop]:
    """The tops of data layers among values and what these depend on."""
    nodes = _ancestors(graph, values)
    read = {bottom for node in nodes for bottom in node.bottoms}.union(values)
    return [
        DataTop(node.param, graph.names[top])
        for node in nodes
        if layer_class(node.param.type).is_data
        for top in node.tops
        if top in read
    ]
