"""An AutoDIAL net as a template: what of it depends on the data is found, and filled in for a user's images."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from autodial.data.paths import find
from autodial.data.source import BATCH_OPTIONS
from autodial.data.transforms import size_before_crop
from autodial.errors import InputError
from autodial.netparam.graph import Graph, Node
from autodial.netparam.layer_types import NO_IMAGES, PER_CHANNEL, READS_SCORES
from autodial.netparam.net_state import included
from autodial.project.split import Split
from autodial.proto import LayerWeights, Weights, read_blob
from autodial.proto import messages as pb

SOURCE_LIST, TARGET_LIST, TEST_LIST = "source.txt", "target.txt", "test.txt"
"""Names of a project's lists."""

_CLASSIFIERS = ("InnerProduct", "Convolution")


@dataclass(frozen=True)
class Filling:
    """What a template is filled in with.

    Attributes:
        classes: their number.
        split: images in a training batch.
        test_list: name of the TEST phase's list.
        test_batch: images in a test batch.
        labelled: whether that list has labels. Without them, the TEST phase has no accuracy and no loss, but a Softmax.
        size: height and width that images are resized to where the net doesn't say.
        color: whether images are read in colour where the net doesn't say.
        weights: what training starts from; a classifier of another number of classes gets a name that is not in it.
    """

    classes: int
    split: Split
    test_list: str
    test_batch: int
    labelled: bool
    size: tuple[int, int]
    color: bool = True
    weights: Weights | None = None


class NetTemplate:
    """An AutoDIAL train_val net.

    Its TRAIN phase has one data layer for the source and one for the target, which a Concat layer joins along the batch
    axis, and Slice layers that part them again. Data layers of any type become ImageData layers with the transformation
    that they had. A net without data for TEST gets the target's.

    Args:
        net: a NetParameter, brought up to date; it is not changed.
        name: of its file, for messages.
        base_dir: its folder, where relative paths of mean files are looked for after the working directory.

    Attributes:
        split: images in its batches, as it states them; 0 where it states none.
        test_batch: the same for TEST.
        size: height and width that it resizes images to. Where it states none, those of its mean image, or for a crop
            the next multiple of 32 beyond it, such as ImageNet's 256 for 227. None without any of these.
        color: whether it reads images in colour; None where it does not say.
        classifiers: names of the layers that have the classes' weights.

    Raises:
        InputError: it is no such net; it names what is missing.
    """

    def __init__(self, net: Any, name: str, base_dir: Path | None) -> None:
        self._name, self._base_dir = name, base_dir
        if not any(layer.type == "Dial" for layer in net.layer):
            raise InputError(
                f"{name} has no Dial layer: make an AutoDIAL net of it with `autodial dialize`, and take that one"
            )
        self._net = self._completed(net)
        train, test = (self._phase(self._net, phase) for phase in (pb.TRAIN, pb.TEST))
        _, self._source, self._target = self._find_domains(train)
        self._test_data = self._find_test_data(self._net)
        self._slices = self._find_slices(train)
        if not any(node.param.type == "SoftmaxWithLoss" for node in train.graph.nodes):
            raise InputError(f"{name}: its TRAIN phase has no SoftmaxWithLoss layer for the source's labels")
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

    def filled(self, filling: Filling) -> tuple[Any, list[str]]:
        """The net for a data set, a new NetParameter, and notes on what was done to it beyond numbers."""
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
        notes += self._fill_test(net, filling)
        return net, notes

    # --- reading

    def _phase(self, net: Any, phase: pb.Phase) -> _Phase:
        numbers = [i for i, layer in enumerate(net.layer) if included(layer, phase, net.state.level, net.state.stage)]
        try:
            graph = Graph(net.layer[i] for i in numbers)
        except InputError as error:
            raise InputError(f"{self._name}, {'TRAIN' if phase == pb.TRAIN else 'TEST'} phase: {error}") from None
        return _Phase(graph, dict(zip(graph.nodes, numbers, strict=True)))

    def _find_domains(self, train: _Phase) -> tuple[int, int, int]:
        """The numbers of the Concat that joins the domains, and of their data layers."""
        found = {}
        for node in train.graph.nodes:
            if node.param.type == "Concat" and _axis(node.param) == 0 and len(node.bottoms) == 2:
                source, target = (_data(train.graph.ancestors(bottom)) for bottom in node.bottoms)
                if len(source) == len(target) == 1 and source != target:
                    found[train.numbers[source[0]], train.numbers[target[0]]] = train.numbers[node]
        if len(found) != 1:
            raise InputError(
                f"{self._name}: its TRAIN phase must have a Concat layer that joins a source's and a target's data "
                "layer along axis 0, as the nets that ship have"
            )
        (((source_number, target_number), join),) = found.items()
        for node in _data(train.graph.nodes):
            if train.numbers[node] not in (source_number, target_number):
                raise InputError(
                    f"{self._name}: layer \"{node.param.name}\" brings data beside the source's and the target's, and "
                    "there is none for it: remove it"
                )
        return join, source_number, target_number

    def _find_slices(self, train: _Phase) -> list[int]:
        """The numbers of the layers that part the domains."""
        slices = [node for node in train.graph.nodes if node.param.type == "Slice" and _axis(node.param) == 0]
        if not slices:
            raise InputError(
                f"{self._name}: its TRAIN phase has no Slice layer that parts source and target along axis 0"
            )
        for node in slices:
            if len(node.tops) != 2:
                raise InputError(
                    f'{self._name}, layer "{node.param.name}" (Slice) parts the batch in {len(node.tops)}: it must '
                    "part it in two, the source's and then the target's"
                )
        return [train.numbers[node] for node in slices]

    def _find_test_data(self, net: Any) -> int:
        """The number of the TEST phase's data layer, -1 if there is none."""
        found = [
            i
            for i, layer in enumerate(net.layer)
            if included(layer, pb.TEST, net.state.level, net.state.stage)
            and not layer.bottom
            and layer.type not in NO_IMAGES
        ]
        if len(found) > 1 or any(included(net.layer[i], pb.TRAIN, net.state.level, net.state.stage) for i in found):
            raise InputError(f"{self._name}: its TEST phase must have one data layer, which TRAIN does not have")
        return found[0] if found else -1

    def _completed(self, original: Any) -> Any:
        """A copy of the net in which TEST has data, and every data layer gives images and labels."""
        net = _copy(original)
        join, source, target = self._find_domains(self._phase(net, pb.TRAIN))
        if len(net.layer[source].top) < 2:
            raise InputError(f'{self._name}, layer "{net.layer[source].name}": the source\'s data gives no labels')
        label = net.layer[source].top[1]
        if len(net.layer[target].top) < 2:
            net.layer[target].top.append(_free(f"{label}-target", _blobs(net)))
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
        """The classifiers in front of the layers that read class scores."""
        return [self._head(phase, node) for node in phase.graph.nodes if node.param.type in READS_SCORES]

    def _head(self, phase: _Phase, reader: Node) -> _Head:
        per_class = []
        node = phase.graph.producer(reader.bottoms[0])
        while node.param.type not in _CLASSIFIERS:
            if len(node.bottoms) != 1:
                raise InputError(
                    f'{self._name}: the scores that layer "{reader.param.name}" reads are made by "{node.param.name}" '
                    f"({node.param.type}), and no InnerProduct or Convolution alone: which layer has the classes' "
                    "weights can't be told"
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
                    f'{self._name}: remove layer "{node.param.name}" (Split), as nets split their blobs by themselves'
                )
        return [test.numbers[node] for node in readers]

    def _find_logits(self, test: _Phase) -> str:
        """The blob of class scores in TEST; that of the last Slice, where the phase does not say."""
        try:
            return test.graph.names[test.graph.logits()]
        except InputError:
            return str(self._net.layer[self._slices[-1]].bottom[0])

    def _find_size(self, layer: Any) -> tuple[int, int] | None:
        options, transform = layer.image_data_param, layer.transform_param
        if options.new_height and options.new_width:
            return options.new_height, options.new_width
        if transform.mean_file:
            height, width = read_blob(find(transform.mean_file, self._base_dir)).shape[-2:]
            return height, width
        return size_before_crop(transform.crop_size) if transform.crop_size else None

    # --- filling in

    def _fill_classes(self, net: Any, filling: Filling) -> list[str]:
        """Set the classifiers' outputs, and rename what the weights hold for another number of classes."""
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
                        renamed[name] = _free(f"{name}-new", taken)
                        taken.add(renamed[name])
        for layer in net.layer:
            layer.name = renamed.get(layer.name, layer.name)
        if not renamed:
            return []
        pairs = ", ".join(f"{old} is {new}" for old, new in renamed.items())
        return [f"The weights have another number of classes; what depends on it starts anew: {pairs}."]

    def _fill_data(self, layer: Any, source: str, batch: int, filling: Filling) -> None:
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

    def _fill_test(self, net: Any, filling: Filling) -> list[str]:
        """Let TEST read labels if there are any; returns notes on accuracies that ask for more classes."""
        too_many = [layer for layer in net.layer if layer.accuracy_param.top_k > filling.classes]
        notes = [
            f'Layer "{layer.name}" is left out: it counts the best {layer.accuracy_param.top_k} classes, and there are '
            f"{filling.classes}."
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


# --- messages


class _Phase(NamedTuple):
    """The graph of a phase's layers, and each node's number in the net."""

    graph: Graph
    numbers: dict[Node, int]


class _Head(NamedTuple):
    """Numbers in the net: of the layer with the classes' weights, and of those behind it that depend on the classes."""

    classifier: int
    per_class: tuple[int, ...]


def _data(nodes: Iterable[Node]) -> list[Node]:
    """The layers that bring images."""
    return [node for node in nodes if not node.bottoms and node.param.type not in NO_IMAGES]


def _axis(layer: Any) -> int:
    """The axis along which a Concat or Slice layer works."""
    param, old = (layer.concat_param, "concat_dim") if layer.type == "Concat" else (layer.slice_param, "slice_dim")
    return int(getattr(param, old if param.HasField(old) else "axis"))


def _batch_size(layer: Any) -> int:
    """Images in a data layer's batch, 0 where it does not say."""
    options = BATCH_OPTIONS.get(layer.type)
    return int(getattr(layer, options).batch_size) if options else 0


def _color(layer: Any) -> bool | None:
    """Whether a data layer reads images in colour, None where it does not say."""
    transform = layer.transform_param
    if layer.type == "ImageData":
        return bool(layer.image_data_param.is_color)
    if transform.force_gray or transform.force_color:
        return bool(transform.force_color)
    return True if len(transform.mean_value) == 3 else None


def _outputs(stored: LayerWeights, layer: Any) -> int | None:
    """The number of classes that a classifier's weights are for; None if the file does not hold them."""
    blob = stored.blobs[0] if stored.blobs else None
    if blob is None:
        return None
    if layer.type == "Convolution":
        return int(blob.shape[0])
    return int(blob.shape[-1 if layer.inner_product_param.transpose else -2])


def _layer(
    net: pb.NetParameter, kind: str, name: str, *bottoms: str, top: str | None = None, phase: pb.Phase
) -> pb.LayerParameter:
    """A layer for one phase of a net, with a name that is free in it."""
    rule = pb.NetStateRule(phase=phase)
    free = _free(name, {layer.name for layer in net.layer})
    return pb.LayerParameter(name=free, type=kind, bottom=bottoms, top=[top] if top else [], include=[rule])


def _only_in(layer: Any, phase: pb.Phase) -> None:
    layer.ClearField("exclude")
    layer.ClearField("include")
    layer.include.add(phase=phase)


def _blobs(net: Any) -> set[str]:
    return {top for layer in net.layer for top in layer.top}


def _free(name: str, taken: Collection[str]) -> str:
    """The name, or with as many "-new" behind it as it takes to be another."""
    while name in taken:
        name += "-new"
    return name


def _copy(message: Any) -> Any:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy
