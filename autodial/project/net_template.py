"""An AutoDIAL net as a template: the parts that depend on the data are found, then filled in for a user's images."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from google.protobuf.message import Message

from autodial.data.paths import find
from autodial.data.source import BATCH_OPTIONS
from autodial.data.transforms import size_before_crop
from autodial.errors import InputError
from autodial.netparam.graph import Graph, Node
from autodial.netparam.layer_types import NO_IMAGES, PER_CHANNEL, READS_SCORES
from autodial.netparam.names import free_name
from autodial.netparam.net_state import included
from autodial.project.labelled_rows import add_labelled_rows
from autodial.project.latent_domains import add_latent_domains
from autodial.project.source_rows import add_sources
from autodial.project.split import Split
from autodial.proto import LayerWeights, Weights, read_blob
from autodial.proto import messages as pb

SOURCE_LIST, TARGET_LIST, TEST_LIST = "source.txt", "target.txt", "test.txt"
LABELLED_LIST = "target_labelled.txt"
"""Names of a project's lists."""


def source_lists(sources: int) -> list[str]:
    """The names of the sources' lists: SOURCE_LIST, or source_1.txt and so on for several."""
    return [SOURCE_LIST] if sources == 1 else [f"source_{number}.txt" for number in range(1, sources + 1)]


_CLASSIFIERS = ("InnerProduct", "Convolution")
_M = TypeVar("_M", bound=Message)


@dataclass(frozen=True)
class Filling:
    """The values for a template's open places.

    Attributes:
        classes: the number of classes.
        split: the source and target images in a training batch.
        test_list: the name of the TEST phase's list.
        test_batch: images in a test batch.
        labelled: whether that list has labels. Otherwise the TEST phase gets a Softmax, but no accuracy and no loss.
        size: height and width to which images are resized if the net doesn't state them.
        color: whether images are read in colour if the net doesn't say.
        weights: the weights that training starts from. If they have another number of classes, the classifier gets a
            name that they don't contain.
        labelled_rows: how many of the target's images in a batch have labels, from LABELLED_LIST; less than all.
        sources: each source's images in a training batch, if there are several.
        latent: the number of latent domains to find among the source's images; 0 for Dial layers.
    """

    classes: int
    split: Split
    test_list: str
    test_batch: int
    labelled: bool
    size: tuple[int, int]
    color: bool = True
    weights: Weights | None = None
    labelled_rows: int = 0
    sources: tuple[int, ...] = ()
    latent: int = 0


class NetTemplate:
    """An AutoDIAL train_val net.

    Its TRAIN phase has one data layer for the source and one for the target. A Concat layer joins them along the batch
    axis, and Slice layers split them again. Data layers of any type become ImageData layers with the same
    transformation. A net without data in TEST gets a copy of the target's data layer.

    Args:
        net: the net, in the current format; it is not changed.
        name: the name of the net's file, for messages.
        base_dir: the net's folder; relative paths of mean files start from it if the working directory lacks them.

    Attributes:
        split: the source and target images in a batch, each 0 if the net doesn't state it.
        test_batch: the same for the TEST phase.
        size: height and width to which the net resizes images. If it doesn't state them, the size of its mean image,
            or the multiple of 32 above the crop, such as ImageNet's 256 for 227. None without any of these.
        color: whether the net reads images in colour; None if it doesn't say.
        classifiers: names of the layers with the classes' weights.

    Raises:
        InputError: the net is not an AutoDIAL train_val net; the message names what is missing.
    """

    def __init__(self, net: pb.NetParameter, name: str, base_dir: Path | None) -> None:
        self._name, self._base_dir = name, base_dir
        if not any(layer.type == "Dial" for layer in net.layer):
            raise InputError(f"{name} has no Dial layer: convert it with `autodial dialize`, and use the result")
        self._net = self._completed(net)
        train, test = (self._phase(self._net, phase) for phase in (pb.TRAIN, pb.TEST))
        _, self._source, self._target = self._find_domains(train)
        self._test_data = self._find_test_data(self._net)
        self._slices = self._find_slices(train)
        if not any(node.param.type == "SoftmaxWithLoss" for node in train.graph.nodes):
            raise InputError(f"{name}: the TRAIN phase has no SoftmaxWithLoss layer for the source's labels")
        self._heads = [*self._find_heads(train), *self._find_heads(test)]
        self._label_readers = self._find_label_readers(test)
        self._logits = self._find_logits(test)
        self._has_softmax = any(node.param.type == "Softmax" for node in test.graph.nodes)

        layers = self._net.layer
        self.classifiers = tuple(dict.fromkeys(layers[head.classifier].name for head in self._heads))
        self.split = Split(_batch_size(layers[self._source]), _batch_size(layers[self._target]))
        self.test_batch = _batch_size(layers[self._test_data])
        self.color = _color(layers[self._source])
        self.size = self._find_size(layers[self._source])

    def filled(self, filling: Filling) -> tuple[pb.NetParameter, list[str]]:
        """The net for a user's images, a new message, and notes on changes other than numbers."""
        net = _copy(self._net)
        notes = self._fill_classes(net, filling)
        for i in self._slices:
            net.layer[i].slice_param.slice_point[:] = [filling.split.source]
        for layer in net.layer:
            if layer.type == "Dial":
                layer.dial_param.slice_point = filling.split.source
        for i, source, batch in (
            (self._source, SOURCE_LIST, filling.split.source),
            (self._target, TARGET_LIST, filling.split.target),
            (self._test_data, filling.test_list, filling.test_batch),
        ):
            self._fill_data(net.layer[i], source, batch, filling)
            if i != self._test_data:
                net.layer[i].image_data_param.shuffle = True
        if net.layer[self._test_data].transform_param.mirror:
            net.layer[self._test_data].transform_param.ClearField("mirror")
        domains = net.layer[self._source].name, net.layer[self._target].name
        classifier = net.layer[self._heads[0].classifier].name
        notes += self._fill_test(net, filling)
        if filling.labelled_rows:
            add_labelled_rows(net, *domains, LABELLED_LIST, filling.labelled_rows)
        if len(filling.sources) > 1:
            add_sources(net, domains[0], source_lists(len(filling.sources)), filling.sources)
        if filling.latent:
            add_latent_domains(net, filling.latent, filling.split.source, classifier)
        return net, notes

    # --- reading

    def _phase(self, net: pb.NetParameter, phase: pb.Phase) -> _Phase:
        numbers = [i for i, layer in enumerate(net.layer) if included(layer, phase, net.state.level, net.state.stage)]
        try:
            graph = Graph(net.layer[i] for i in numbers)
        except InputError as error:
            raise InputError(f"{self._name}, {'TRAIN' if phase == pb.TRAIN else 'TEST'} phase: {error}") from None
        return _Phase(graph, dict(zip(graph.nodes, numbers, strict=True)))

    def _find_domains(self, train: _Phase) -> tuple[int, int, int]:
        """The numbers of the Concat layer that joins the domains, the source's data layer and the target's."""
        found = {}
        for node in train.graph.nodes:
            if node.param.type == "Concat" and _axis(node.param) == 0 and len(node.bottoms) == 2:
                source, target = (_data(train.graph.ancestors(bottom)) for bottom in node.bottoms)
                if len(source) == len(target) == 1 and source != target:
                    found[train.numbers[source[0]], train.numbers[target[0]]] = train.numbers[node]
        if len(found) != 1:
            raise InputError(
                f"{self._name}: the TRAIN phase needs a Concat layer that joins the data layers of source and target "
                "along axis 0, as in the nets that come with AutoDIAL"
            )
        (((source_number, target_number), join),) = found.items()
        for node in _data(train.graph.nodes):
            if train.numbers[node] not in (source_number, target_number):
                raise InputError(
                    f'{self._name}: data layer "{node.param.name}" belongs to neither source nor target: remove it'
                )
        return join, source_number, target_number

    def _find_slices(self, train: _Phase) -> list[int]:
        """The numbers of the layers that split the domains."""
        slices = [node for node in train.graph.nodes if node.param.type == "Slice" and _axis(node.param) == 0]
        if not slices:
            raise InputError(
                f"{self._name}: the TRAIN phase has no Slice layer that splits source and target along axis 0"
            )
        for node in slices:
            if len(node.tops) != 2:
                raise InputError(
                    f'{self._name}, layer "{node.param.name}" (Slice) splits the batch into {len(node.tops)} parts: it '
                    "must have two tops, source and target"
                )
        return [train.numbers[node] for node in slices]

    def _find_test_data(self, net: pb.NetParameter) -> int:
        """The number of the TEST phase's data layer; -1 if there is none."""
        found = [
            i
            for i, layer in enumerate(net.layer)
            if included(layer, pb.TEST, net.state.level, net.state.stage)
            and not layer.bottom
            and layer.type not in NO_IMAGES
        ]
        if len(found) > 1 or any(included(net.layer[i], pb.TRAIN, net.state.level, net.state.stage) for i in found):
            raise InputError(f"{self._name}: the TEST phase must have one data layer, which is not in TRAIN")
        return found[0] if found else -1

    def _completed(self, original: pb.NetParameter) -> pb.NetParameter:
        """A copy of the net in which TEST has data, and every data layer has tops for images and labels."""
        net = _copy(original)
        join, source, target = self._find_domains(self._phase(net, pb.TRAIN))
        if len(net.layer[source].top) < 2:
            raise InputError(
                f'{self._name}, layer "{net.layer[source].name}": the source\'s data layer has no top for labels'
            )
        label = net.layer[source].top[1]
        if len(net.layer[target].top) < 2:
            net.layer[target].top.append(free_name(f"{label}-target", _blobs(net)))
            net.layer.append(_layer(net, "Silence", "target-silence", net.layer[target].top[1], phase=pb.TRAIN))
        test = self._find_test_data(net)
        if test < 0:
            data = _layer(net, "ImageData", "data-test", top=net.layer[join].top[0], phase=pb.TEST)
            data.transform_param.CopyFrom(net.layer[target].transform_param)
            data.image_data_param.batch_size = _batch_size(net.layer[target])
            net.layer.insert(test := join + 1, data)
        if len(net.layer[test].top) < 2:
            net.layer[test].top.append(label)
        return net

    def _find_heads(self, phase: _Phase) -> list[_Head]:
        """The classifiers whose scores the layers of a phase read."""
        return [self._head(phase, node) for node in phase.graph.nodes if node.param.type in READS_SCORES]

    def _head(self, phase: _Phase, reader: Node) -> _Head:
        per_class = []
        node = phase.graph.producer(reader.bottoms[0])
        while node.param.type not in _CLASSIFIERS:
            if len(node.bottoms) != 1:
                raise InputError(
                    f'{self._name}: layer "{reader.param.name}" reads scores from "{node.param.name}" '
                    f"({node.param.type}), which joins several layers: it must read those of a single InnerProduct or "
                    "Convolution layer"
                )
            if node.param.type in PER_CHANNEL:
                per_class.append(phase.numbers[node])
            node = phase.graph.producer(node.bottoms[0])
        return _Head(phase.numbers[node], tuple(per_class))

    def _find_label_readers(self, test: _Phase) -> list[int]:
        """The numbers of the layers that read labels in TEST."""
        (data,) = (node for node in test.graph.nodes if test.numbers[node] == self._test_data)
        readers = [node for node in test.graph.nodes if data.tops[1] in node.bottoms]
        for node in readers:
            if node.param.type == "Split":
                raise InputError(
                    f'{self._name}: remove layer "{node.param.name}" (Split); several layers may read a blob without it'
                )
        return [test.numbers[node] for node in readers]

    def _find_logits(self, test: _Phase) -> str:
        """The blob with the class scores in TEST; the input of the last Slice if the phase leaves it open."""
        try:
            return test.graph.names[test.graph.logits()]
        except InputError:
            return str(self._net.layer[self._slices[-1]].bottom[0])

    def _find_size(self, layer: pb.LayerParameter) -> tuple[int, int] | None:
        options, transform = layer.image_data_param, layer.transform_param
        if options.new_height and options.new_width:
            return options.new_height, options.new_width
        if transform.mean_file:
            height, width = read_blob(find(transform.mean_file, self._base_dir)).shape[-2:]
            return height, width
        return size_before_crop(transform.crop_size) if transform.crop_size else None

    # --- filling in

    def _fill_classes(self, net: pb.NetParameter, filling: Filling) -> list[str]:
        """Set the classifiers' outputs; rename layers that have another number of classes in the weights."""
        stored = {layer.name: layer for layer in filling.weights.layers} if filling.weights else {}
        taken = {*stored, *(layer.name for layer in net.layer)}
        renamed: dict[str, str] = {}
        for head in self._heads:
            layer = net.layer[head.classifier]
            options = layer.inner_product_param if layer.type == "InnerProduct" else layer.convolution_param
            options.num_output = filling.classes
            if layer.name in stored and _outputs(stored[layer.name], layer) not in (None, filling.classes):
                for name in (net.layer[i].name for i in (head.classifier, *head.per_class)):
                    if name in stored and name not in renamed:
                        renamed[name] = free_name(f"{name}-new", taken)
                        taken.add(renamed[name])
        for layer in net.layer:
            layer.name = renamed.get(layer.name, layer.name)
        if not renamed:
            return []
        pairs = ", ".join(f"{old} is now {new}" for old, new in renamed.items())
        return [f"The weights are for another number of classes: these layers get new names and new weights: {pairs}"]

    def _fill_data(self, layer: pb.LayerParameter, source: str, batch: int, filling: Filling) -> None:
        """Make a data layer read a list."""
        options = pb.ImageDataParameter(source=source, batch_size=batch)
        stated = layer.image_data_param if layer.type == "ImageData" else options
        options.new_height, options.new_width = self.size or filling.size
        if stated.new_height and stated.new_width:
            options.new_height, options.new_width = stated.new_height, stated.new_width
        if not (filling.color if self.color is None else self.color):
            options.is_color = False
        if layer.transform_param.mean_file:
            found = find(layer.transform_param.mean_file, self._base_dir)
            layer.transform_param.mean_file = str(found.resolve())
        for field in (*BATCH_OPTIONS.values(), "input_param", "dummy_data_param"):
            layer.ClearField(field)
        layer.type = "ImageData"
        layer.image_data_param.CopyFrom(options)

    def _fill_test(self, net: pb.NetParameter, filling: Filling) -> list[str]:
        """Make TEST read labels if there are any; returns notes on accuracies that need more classes."""
        too_many = [layer for layer in net.layer if layer.accuracy_param.top_k > filling.classes]
        notes = [
            f'Layer "{layer.name}" is removed: it measures the top-{layer.accuracy_param.top_k} accuracy of only '
            f"{filling.classes} classes"
            for layer in too_many
        ]
        label = net.layer[self._test_data].top[1]
        gone = list(too_many)
        added = []
        readers = [net.layer[i] for i in self._label_readers if net.layer[i] not in too_many]
        if filling.labelled:
            if not any(layer.type == "Accuracy" for layer in readers):
                added.append(_layer(net, "Accuracy", "accuracy", self._logits, label, top="accuracy", phase=pb.TEST))
        else:
            for layer in readers:
                if included(layer, pb.TRAIN, net.state.level, net.state.stage):
                    _only_in(layer, pb.TRAIN)
                else:
                    gone.append(layer)
            added.append(_layer(net, "Silence", "label-silence", label, phase=pb.TEST))
            if not self._has_softmax:
                added.append(_layer(net, "Softmax", "prob", self._logits, top="prob", phase=pb.TEST))
        kept = [_copy(layer) for layer in net.layer if layer not in gone]
        del net.layer[:]
        net.layer.extend([*kept, *added])
        return notes


# --- layers


class _Phase(NamedTuple):
    """The graph of a phase's layers, and the number of each node in the net."""

    graph: Graph
    numbers: dict[Node, int]


class _Head(NamedTuple):
    """The numbers of the layer with the classes' weights and of the layers behind it with a parameter per class."""

    classifier: int
    per_class: tuple[int, ...]


def _data(nodes: Iterable[Node]) -> list[Node]:
    """The layers that provide images."""
    return [node for node in nodes if not node.bottoms and node.param.type not in NO_IMAGES]


def _axis(layer: pb.LayerParameter) -> int:
    """The axis along which a Concat or Slice layer works."""
    param, old = (layer.concat_param, "concat_dim") if layer.type == "Concat" else (layer.slice_param, "slice_dim")
    return int(getattr(param, old if param.HasField(old) else "axis"))


def _batch_size(layer: pb.LayerParameter) -> int:
    """Images in a data layer's batch; 0 if it doesn't say."""
    options = BATCH_OPTIONS.get(layer.type)
    return int(getattr(layer, options).batch_size) if options else 0


def _color(layer: pb.LayerParameter) -> bool | None:
    """Whether a data layer reads images in colour; None if it doesn't say."""
    transform = layer.transform_param
    if layer.type == "ImageData":
        return bool(layer.image_data_param.is_color)
    if transform.force_gray or transform.force_color:
        return bool(transform.force_color)
    return True if len(transform.mean_value) == 3 else None


def _outputs(stored: LayerWeights, layer: pb.LayerParameter) -> int | None:
    """The number of classes in a classifier's stored weights; None if nothing is stored."""
    blob = stored.blobs[0] if stored.blobs else None
    if blob is None:
        return None
    if layer.type == "Convolution":
        return int(blob.shape[0])
    return int(blob.shape[-1 if layer.inner_product_param.transpose else -2])


def _layer(
    net: pb.NetParameter, kind: str, name: str, *bottoms: str, top: str | None = None, phase: pb.Phase
) -> pb.LayerParameter:
    """A layer for one phase of a net, with a name that no layer of the net has."""
    rule = pb.NetStateRule(phase=phase)
    free = free_name(name, {layer.name for layer in net.layer})
    return pb.LayerParameter(name=free, type=kind, bottom=bottoms, top=[top] if top else [], include=[rule])


def _only_in(layer: pb.LayerParameter, phase: pb.Phase) -> None:
    layer.ClearField("exclude")
    layer.ClearField("include")
    layer.include.add(phase=phase)


def _blobs(net: pb.NetParameter) -> set[str]:
    return {top for layer in net.layer for top in layer.top}


def _copy(message: _M) -> _M:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy
