"""What a user must know about the regions that a net proposes."""

from __future__ import annotations

from collections.abc import Mapping

from autodial.layers.proposal import Proposal
from autodial.net.net import Net
from autodial.netparam.graph import Graph


def describe_regions(graph: Graph, ends: Mapping[str, int], net: Net) -> list[str]:
    """Sentences about settings that no prototxt states, and about regions that are no output.

    Args:
        graph: of the whole net.
        ends: values of the graph that are outputs, by name.
        net: of the layers that these depend on.
    """
    notes = []
    missing = []
    for node in graph.ancestors(*ends.values()):
        layer = net.layer(node.param.name)
        if not isinstance(layer, Proposal):
            continue
        if node.param.type == "Python":
            notes.append(
                f"layer \"{node.param.name}\" has py-faster-rcnn's settings, as the prototxt can't state them: "
                f"{layer.before} boxes, {layer.after} after suppression, overlap {layer.threshold:g}, minimum size "
                f"{layer.min_size:g}; a net that was trained with others gives other regions"
            )
        if node.tops[0] not in ends.values():
            missing.append(graph.names[node.tops[0]])
    if missing:
        notes.append(
            "rows of the outputs belong to regions, which the file does not give; to have these, too, name in "
            f"`outputs`: {','.join([*missing, *ends])}"
        )
    return notes
