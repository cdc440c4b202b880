"""A net's layers as a graph in which every version of a blob is a value of its own.

In Caffe an in-place layer writes the blob that it reads, so a blob's name means different things to the layers before
and after it. The graph numbers the versions, which makes it safe to cut, remove and merge layers; `net` restores the
names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autodial.errors import InputError
from autodial.netparam.layer_types import READS_SCORES
from autodial.proto import messages as pb
from autodial.wording import alternatives


@dataclass(eq=False)
class Node:
    """One layer: its LayerParameter, and the values that it reads and makes."""

    param: pb.LayerParameter
    bottoms: list[int]
    tops: list[int]


class Graph:
    """Nodes in the net's order, and the blob name of each value.

    Args:
        layers: LayerParameters of one phase, in the net's order; they are copied.

    Raises:
        InputError: a layer reads a blob that no layer before it makes.
    """

    def __init__(self, layers: Iterable[pb.LayerParameter]) -> None:
        self.nodes: list[Node] = []
        self.names: list[str] = []
        latest: dict[str, int] = {}
        for layer in layers:
            for bottom in layer.bottom:
                if bottom not in latest:
                    raise InputError(f'layer "{layer.name}" reads blob "{bottom}", which no layer before it makes')
            bottoms = [latest[bottom] for bottom in layer.bottom]
            tops = []
            for top in layer.top:
                latest[top] = len(self.names)
                tops.append(latest[top])
                self.names.append(top)
            param = pb.LayerParameter()
            param.CopyFrom(layer)
            self.nodes.append(Node(param, bottoms, tops))

    def producer(self, value: int) -> Node:
        """The node that makes a value."""
        return next(node for node in self.nodes if value in node.tops)

    def consumers(self, value: int) -> list[Node]:
        """The nodes that read a value."""
        return [node for node in self.nodes if value in node.bottoms]

    def last(self, blob: str) -> int | None:
        """The last version of a blob; None if there is no such blob."""
        return max((value for value, name in enumerate(self.names) if name == blob), default=None)

    def logits(self, blob: str | None = None) -> int:
        """The value that layers read as scores of classes: losses on them, Accuracy, ArgMax or Softmax layers.

        A layer that reads a Softmax layer's top counts as a reader of the Softmax layer's bottom.

        Args:
            blob: name of the blob, where the net leaves a choice.

        Raises:
            InputError: no such blob, no such layer, or several candidates.
        """
        candidates: list[int] = []
        for node in self.nodes:
            if node.param.type not in READS_SCORES or not node.bottoms:
                continue
            value = node.bottoms[0]
            producer = self.producer(value)
            if producer.param.type == "Softmax":
                value = producer.bottoms[0]
            if value not in candidates:
                candidates.append(value)
        if blob is not None:
            named = [value for value in candidates if self.names[value] == blob]
            chosen = named[0] if len(named) == 1 else self.last(blob)
            if chosen is None:
                others = alternatives(blob, list(dict.fromkeys(self.names)))
                raise InputError(f'the TEST phase has no blob "{blob}" to take the logits from{others}')
            return chosen
        if not candidates:
            raise InputError(
                "the TEST phase has no SoftmaxWithLoss, Accuracy or Softmax layer that says which blob holds the "
                "logits: name the blob with `logits`"
            )
        if len(candidates) > 1:
            # scores of latent domains, which only say how much a row belongs to each
            norms = [node for node in self.nodes if node.param.type == "MultiModalBatchNorm" and len(node.bottoms) > 1]
            weighing = [maker for node in norms for maker in self.ancestors(node.bottoms[1])]
            candidates = [value for value in candidates if self.producer(value) not in weighing] or candidates
        if len(candidates) > 1:
            names = ", ".join(self.names[value] for value in candidates)
            raise InputError(
                f"the TEST phase has several candidates for the logits ({names}): choose one with `logits`"
            )
        return candidates[0]

    def feed(self, value: int, shape: Sequence[int]) -> None:
        """Replace the layer that makes a value by an Input layer of this shape; the layer's other tops disappear."""
        producer = self.producer(value)
        param = pb.LayerParameter(name=producer.param.name, type="Input")
        param.input_param.shape.add().dim.extend(shape)
        self.nodes[self.nodes.index(producer)] = Node(param, [], [value])

    def ancestors(self, *values: int) -> list[Node]:
        """The nodes that values depend on, in the net's order; of one value, the last node makes it."""
        needed = set(values)
        found = []
        for node in reversed(self.nodes):
            if needed.intersection(node.tops):
                needed.update(node.bottoms)
                found.append(node)
        return found[::-1]

    def bypass(self, node: Node) -> None:
        """Drop a node of one bottom and one top whose top equals its bottom."""
        (bottom,), (top,) = node.bottoms, node.tops
        self.nodes.remove(node)
        for other in self.nodes:
            other.bottoms = [bottom if value == top else value for value in other.bottoms]

    def absorb(self, node: Node, follower: Node) -> None:
        """Drop `follower`, the only reader of `node`'s only top, and let `node` make the tops of `follower`."""
        self.nodes.remove(follower)
        node.tops = follower.tops

    def net(self, name: str, *values: int) -> pb.NetParameter:
        """A NetParameter of the nodes that values depend on: one phase, without what only training reads."""
        net = pb.NetParameter(name=name)
        for node in self.ancestors(*values):
            layer = net.layer.add()
            layer.CopyFrom(node.param)
            for field in ("bottom", "top", "include", "exclude", "loss_weight", "propagate_down", "blobs"):
                layer.ClearField(field)
            layer.bottom.extend(self.names[bottom] for bottom in node.bottoms)
            layer.top.extend(self.names[top] for top in node.tops)
        return net
