"""Finds the image classifier in a Caffe net: the layers between the data and the logits, and what surrounds them."""

from __future__ import annotations

from dataclasses import dataclass

from autodial.errors import InputError
from autodial.netparam.graph import Graph, Node
from autodial.netparam.layer_types import NO_IMAGES, PER_CHANNEL, READS_SCORES
from autodial.netparam.net_state import included
from autodial.proto import messages as pb

_CLASSIFIERS = ("InnerProduct", "Convolution")
_BEHIND_CLASSIFIERS = (
    "BatchNorm", "Bias", "Dropout", "Flatten", "Pooling", "Power", "ReLU", "Reshape", "Scale", "Split",
)  # fmt: skip
"""Layers that may stand between the layer with the classes' weights and the logits."""


@dataclass(frozen=True)
class Head:
    """The logits of one classifier, and the layers that they come from.

    Attributes:
        logits: the blob's name.
        classifier: number of the InnerProduct or Convolution layer with the classes' weights.
        per_class: numbers of the layers behind it that have parameters or statistics for each class.
        loss: the SoftmaxWithLoss layer that reads the logits; None in a net without losses.
    """

    logits: str
    classifier: int
    per_class: tuple[int, ...]
    loss: pb.LayerParameter | None


@dataclass(frozen=True)
class Classification:
    """The parts of a net that classifies images; layers are numbered as in the net.

    Attributes:
        heads: the main head, then the auxiliary heads, whose losses only help training.
        body: numbers of the layers between data and logits, in order.
        auxiliary: numbers of the body's layers that only auxiliary heads need.
        data: by phase, the data layer and the blob of images that it makes.
        label: name of the blob of labels.
        softmax: the TEST phase's Softmax layers that read the main logits.
        test: Graph of the TEST phase, or of TRAIN where the net has no other.
        scores: the value in `test` that holds the main logits.
    """

    heads: tuple[Head, ...]
    body: tuple[int, ...]
    auxiliary: frozenset[int]
    data: dict[pb.Phase, tuple[pb.LayerParameter, str]]
    label: str
    softmax: tuple[pb.LayerParameter, ...]
    test: Graph
    scores: int


def read_classification(net: pb.NetParameter, logits: str | None = None) -> Classification:
    """Find the parts of a train_val or deploy net.

    The logits are what SoftmaxWithLoss layers read in TRAIN; the main logits have the largest loss_weight. Without such
    a layer, the logits are what Softmax or Accuracy layers read.

    Args:
        net: NetParameter, brought up to date.
        logits: name of the main logits' blob, where the net leaves a choice.

    Raises:
        InputError: the net is no image classifier, and why.
    """
    phases, problems = {}, []
    for phase in (pb.TRAIN, pb.TEST):
        try:
            phases[phase] = _phase(net, phase)
        except InputError as error:  # in a file for the other phase alone, layers have nothing to read
            problems.append(error)
    if not phases:
        raise problems[0]
    train, numbers = phases.get(pb.TRAIN) or phases[pb.TEST]
    test, test_numbers = phases.get(pb.TEST) or phases[pb.TRAIN]
    main, losses = _main(train, logits)
    name = train.names[main]
    scores = main if test is train else test.logits(name)
    values = [main, *(value for value in losses if value != main)]
    heads = tuple(_head(train, value, losses.get(value), numbers) for value in values)

    needed = {numbers[node] for node in train.ancestors(main)}
    needed.update(test_numbers[node] for node in test.ancestors(scores))
    auxiliary = {numbers[node] for value in values[1:] for node in train.ancestors(value)} - needed
    data = {
        phase: _data(graph, [node for value in ends for node in graph.ancestors(value)])
        for phase, graph, ends in ((pb.TRAIN, train, values), (pb.TEST, test, [scores]))
    }
    makers = {numbers[data[pb.TRAIN][0]], test_numbers[data[pb.TEST][0]]}
    labels = [train.names[node.bottoms[1]] for node in losses.values()]
    return Classification(
        heads=heads,
        body=tuple(sorted((needed | auxiliary) - makers)),
        auxiliary=frozenset(auxiliary - makers),
        data={phase: (node.param, blob) for phase, (node, blob) in data.items()},
        label=labels[0] if labels else "label",
        softmax=tuple(node.param for node in test.consumers(scores) if node.param.type == "Softmax"),
        test=test,
        scores=scores,
    )


def _phase(net: pb.NetParameter, phase: pb.Phase) -> tuple[Graph, dict[Node, int]]:
    """The graph of a phase's layers, and each node's number in the net."""
    numbers = [i for i, layer in enumerate(net.layer) if included(layer, phase, net.state.level, net.state.stage)]
    graph = Graph(net.layer[i] for i in numbers)
    return graph, dict(zip(graph.nodes, numbers, strict=True))


def _main(graph: Graph, logits: str | None) -> tuple[int, dict[int, Node]]:
    """The main logits, and the SoftmaxWithLoss layer of every value that such a layer reads as logits."""
    losses: dict[int, Node] = {}
    for node in graph.nodes:
        if node.param.type == "SoftmaxWithLoss" and len(node.bottoms) == 2:
            losses.setdefault(node.bottoms[0], node)
    labels = {graph.names[node.bottoms[1]]: None for node in losses.values()}
    if len(labels) > 1:
        raise InputError(
            f"the net learns several kinds of labels ({', '.join(labels)}), and AutoDIAL aligns the classification by "
            "one: remove the other losses"
        )
    if logits is not None:
        return graph.logits(logits), losses
    if losses:
        weights = {value: (node.param.loss_weight or [1.0])[0] for value, node in losses.items()}
        main = [value for value in losses if weights[value] == max(weights.values())]
        if len(main) > 1:
            names = ", ".join(graph.names[value] for value in main)
            raise InputError(f"the losses of {names} have the same weight: name the main logits in `logits`")
        return main[0], losses
    if not any(node.param.type in READS_SCORES and node.bottoms for node in graph.nodes):
        raise InputError(
            "no SoftmaxWithLoss, Softmax or Accuracy layer reads scores of classes, so the net is no classification "
            "net; if it is one, name its logits in `logits`"
        )
    return graph.logits(), losses


def _head(graph: Graph, value: int, loss: Node | None, numbers: dict[Node, int]) -> Head:
    """Walk from the logits back to the layer that has the classes' weights."""
    name = graph.names[value]
    per_class = []
    node = graph.producer(value)
    while node.param.type not in _CLASSIFIERS:
        if node.param.type not in _BEHIND_CLASSIFIERS or len(node.bottoms) != 1:
            raise InputError(
                f'the logits "{name}" come from layer "{node.param.name}" ({node.param.type}) rather than from an '
                "InnerProduct or Convolution, so the net does not give one set of class scores for each image"
            )
        if node.param.type in PER_CHANNEL:
            per_class.append(numbers[node])
        node = graph.producer(node.bottoms[0])
    return Head(name, numbers[node], tuple(per_class), None if loss is None else loss.param)


def _data(graph: Graph, nodes: list[Node]) -> tuple[Node, str]:
    """The one layer that brings the images, and the blob that it makes of them."""
    read = {value for node in nodes for value in node.bottoms}
    found = {value: node for node in nodes if not node.bottoms for value in node.tops if value in read}
    images = {value: node for value, node in found.items() if node.param.type not in NO_IMAGES} or found
    if len(images) != 1:
        names = ", ".join(graph.names[value] for value in images) or "none"
        raise InputError(f"the logits must depend on one blob of images, and depend on {names}")
    ((value, node),) = images.items()
    return node, graph.names[value]
