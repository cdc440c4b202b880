"""Which layers of a net a file can hold, and which blobs are its outputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from autodial.converters.net_inputs import is_data
from autodial.errors import InputError
from autodial.layers import layer_class, registry
from autodial.layers.base import NOT_SUPPORTED
from autodial.layers.python_layer import COMPUTED, published_as, refused_options
from autodial.netparam.graph import Graph, Node
from autodial.proto import messages as pb
from autodial.wording import alternatives

_SCORES = ("Accuracy", "DetectionEvaluate", "EvalDetection", "MatWrite", "SegAccuracy")
"""Types of layers that rate or store what their first bottom holds."""


def readable(
    layers: Sequence[pb.LayerParameter], outputs: Sequence[str] | None, everything: Sequence[pb.LayerParameter]
) -> list[pb.LayerParameter]:
    """The layers whose bottoms there are; the others are left out if outputs are named that don't need them.

    Args:
        layers: of one phase and state.
        outputs: names of blobs, or None.
        everything: the layers of all phases and states.

    Raises:
        InputError: a layer that is needed reads a blob that is not made, or has no type or a top without a name.
    """
    made: set[str] = set()
    kept = []
    problem = None
    for number, layer in enumerate(layers, 1):
        if not layer.type:
            raise InputError(f'layer "{layer.name}", number {number} of the net, states no type')
        if "" in layer.top:
            raise InputError(f'layer "{layer.name}" ({layer.type}) has a top without a name')
        missing = [name for name in layer.bottom if name not in made]
        if missing:
            problem = problem or (
                f'layer "{layer.name}" reads blob "{missing[0]}", which no layer before it makes'
                + _made_elsewhere(missing[0], everything)
            )
            made.difference_update(layer.top)
        else:
            kept.append(layer)
            made.update(layer.top)
    if problem is not None and (outputs is None or not made.issuperset(outputs)):
        around = "; to convert layers that don't need it, name their blobs in `outputs`" if kept and not outputs else ""
        raise InputError(f"{problem}{around}")
    if not kept:
        raise InputError("the net has no layers in this phase and state")
    return kept


def _made_elsewhere(blob: str, layers: Sequence[pb.LayerParameter]) -> str:
    """The end of a message about a blob that a layer makes in another phase or state, if one does."""
    maker = next((layer.name for layer in layers if blob in layer.top and (layer.include or layer.exclude)), None)
    if maker is None:
        return ""
    return f': layer "{maker}" does, and its include or exclude leaves it out; choose its phase, level or stage'


def take_known_python_layers(graph: Graph) -> dict[str, str]:
    """Let copies of published Python layers be those that are computed here; by layer, a sentence about it."""
    notes = {}
    for node in graph.nodes:
        param = node.param.python_param
        known = published_as(param.module, param.layer)
        if node.param.type == "Python" and known not in (None, param.module):
            notes[node.param.name] = (
                f'layer "{node.param.name}" (Python): {param.layer} of {param.module} is taken for that of {known}, '
                "which AutoDIAL computes; if it is another, name what comes before it in `outputs`"
            )
            param.module = known
    return notes


def chosen_outputs(graph: Graph, names: Sequence[str] | None) -> dict[str, int]:
    """The values to give, by name."""
    if names is not None:
        chosen: dict[str, int] = {}
        lost = _lost(graph)
        for name in names:
            value = _last(graph, name, lost)
            if value is None:
                others = alternatives(name, list(dict.fromkeys(graph.names)))
                raise InputError(f'the net has no blob "{name}" to be an output{others}')
            maker = graph.producer(value).param
            if is_data(maker):
                raise InputError(f'blob "{name}" is an input of the net: name what layers make in `outputs`')
            chosen[name] = value
        if not chosen:
            raise InputError("`outputs` names no blob")
        for node in graph.ancestors(*chosen.values()):
            if not is_data(node.param):
                _check_computed(graph, node)
        return chosen
    kept = []
    scored: list[int] = []
    for node in graph.nodes:
        if _scores(node):
            scored += node.bottoms[:1]
        elif not is_data(node.param) and not _is_idle(node):
            _check_computed(graph, node)
            kept.append(node)
    read = {value for node in kept for value in node.bottoms}
    made = {value for node in kept for value in node.tops}
    left = [value for node in kept for value in node.tops if value not in read]
    ends = [value for value in dict.fromkeys([*left, *scored]) if value in made]
    if not ends:
        raise InputError("no layer of the net makes an output")
    return {graph.names[value]: value for value in ends}


def _check_computed(graph: Graph, node: Node) -> None:
    """Raise InputError, with a way around it, if a layer is of a type that is not computed, or a user's class."""
    problem = _problem(node)
    if problem is None:
        return
    kept = _before_unwritten(graph)
    around = f"; to convert what comes before such layers, name in `outputs`: {','.join(kept)}" if kept else ""
    raise InputError(f'layer "{node.param.name}": {problem}{around}')


def _problem(node: Node) -> str | None:
    """Why no file can hold a layer, wherever it stands in the net; None if one can."""
    param = node.param
    if param.type == "Python":
        if (param.python_param.module, param.python_param.layer) not in COMPUTED:
            return "an ONNX file can't hold a Python class"
        if (problem := refused_options(param.python_param)) is not None:
            return problem
    if param.type not in registry:
        remedy = f": {NOT_SUPPORTED[param.type]}" if param.type in NOT_SUPPORTED else ""
        return f"AutoDIAL does not compute layers of the type {param.type}{remedy}"
    if param.foreign_text:
        return f"{param.foreign_text[0]}; correct its name, or remove it if it changes nothing"
    return None


def _scores(node: Node) -> bool:
    """Whether a layer rates or stores what its first bottom holds: a loss, or one of _SCORES."""
    param = node.param
    if param.type in registry and layer_class(param.type).is_loss:
        return True
    unwritten = _problem(node) is not None
    return param.type in _SCORES or (unwritten and (any(param.loss_weight) or param.type.endswith("Loss")))


def _is_idle(node: Node) -> bool:
    """Whether no output can depend on a layer that no file can hold, as it has no top."""
    return not node.tops and not _scores(node) and _problem(node) is not None


def describe_left_out(graph: Graph) -> list[str]:
    """A sentence about each layer that is left out because nothing depends on it."""
    return [
        f'layer "{node.param.name}" ({node.param.type}) is left out: it has no top, so no output depends on it'
        for node in graph.nodes
        if _is_idle(node)
    ]


def _lost(graph: Graph) -> set[int]:
    """The values that layers make which no file can hold, or that depend on these."""
    lost: set[int] = set()
    for node in graph.nodes:
        if not is_data(node.param) and (_problem(node) is not None or lost.intersection(node.bottoms)):
            lost.update(node.tops)
    return lost


def _last(graph: Graph, name: str, lost: set[int]) -> int | None:
    """The last version of a blob that a file can hold; if there is none, the last version, or None."""
    written = [value for value, other in enumerate(graph.names) if other == name and value not in lost]
    return written[-1] if written else graph.last(name)


def earlier_versions(graph: Graph, ends: Mapping[str, int]) -> list[str]:
    """A sentence about each output that is not the last version of its blob."""
    following = {
        name: next((later for later, other in enumerate(graph.names) if other == name and later > value), None)
        for name, value in ends.items()
    }
    return [
        f'"{name}" is given as it is before layer "{graph.producer(later).param.name}" makes it anew: no file can hold '
        "that layer, or what it reads"
        for name, later in following.items()
        if later is not None
    ]


def _before_unwritten(graph: Graph) -> list[str]:
    """The blobs of layers that a file can hold which are scored, or which other layers read, or none."""
    lost = _lost(graph)
    made: list[int] = []
    read: set[int] = set()
    wanted: set[int] = set()
    for node in graph.nodes:
        if is_data(node.param) or _is_idle(node):
            continue
        if _scores(node):
            wanted.update(node.bottoms[:1])
        elif _problem(node) is not None or lost.intersection(node.bottoms):
            wanted.update(node.bottoms)
        else:
            read.update(node.bottoms)
            made += node.tops if node.bottoms else []  # what has no bottoms is a constant
    ends = [value for value in made if value in wanted or value not in read]
    return list(dict.fromkeys(graph.names[value] for value in ends))


def made_by(graph: Graph, ends: Mapping[str, int], types: Collection[str]) -> set[str]:
    """The outputs that layers of some types make, or Python layers of some classes."""
    makers = {name: graph.producer(value).param for name, value in ends.items()}
    return {
        name
        for name, maker in makers.items()
        if (maker.python_param.layer if maker.type == "Python" else maker.type) in types
    }
