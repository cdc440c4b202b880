"""A net that finds latent domains among the source's images (Mancini et al., CVPR 2018), in place of Dial layers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from autodial.errors import InputError
from autodial.netparam.graph import Graph, Node
from autodial.netparam.layer_types import NO_IMAGES
from autodial.netparam.names import free_name
from autodial.netparam.net_state import included
from autodial.proto import messages as pb

_WEIGHTED = ("Convolution", "InnerProduct")
_ENTROPY = 0.1
"""The weight of the entropy of the predicted domains, as in the released nets."""


def add_latent_domains(net: pb.NetParameter, domains: int, source_rows: int, like: str) -> None:
    """Change a net in place so that its source is normalized as a mixture of latent domains, and the target by itself.

    The layers are those of the nets that Mancini et al. released. A side branch predicts how much each source image
    belongs to each domain: a global average, an InnerProduct layer and a Softmax, with the entropy of the prediction as
    a loss. It reads what the layer in front of the first Dial layer reads or, where that is the image, what the first
    Dial layer reads. In the place of each Dial layer, a MultiModalBatchNorm layer for each domain normalizes the
    source's rows, weighted by the prediction, and a BatchNorm layer the target's. TEST has this BatchNorm layer alone.

    Args:
        net: a net with both phases, whose Dial layers are in both and mark off the source's rows, which come first.
        domains: the number of latent domains, at least 2.
        source_rows: the number of these rows.
        like: the name of the layer whose multipliers of learning rate and decay the predictor gets.

    Raises:
        InputError: a Dial layer belongs to one phase only.
    """
    for layer in net.layer:
        if layer.type == "Dial" and not all(
            included(layer, phase, net.state.level, net.state.stage) for phase in (pb.TRAIN, pb.TEST)
        ):
            raise InputError(f'layer "{layer.name}" (Dial) belongs to one phase only, and latent domains need both')
    names = _Names({name for layer in net.layer for name in (layer.name, *layer.top)})
    weights = [names.free(f"domain-{number}") for number in range(1, domains + 1)]
    branch = _branch(net, weights, source_rows, like, names)
    made: list[pb.LayerParameter] = []
    renamed: dict[str, str] = {}
    for layer in net.layer:
        copy = pb.LayerParameter()
        copy.CopyFrom(layer)
        copy.bottom[:] = [renamed.get(blob, blob) for blob in layer.bottom]
        if layer.type != "Dial":
            copy.top[:] = [renamed.get(blob, blob) if blob in layer.bottom else blob for blob in layer.top]
            for blob in layer.top:
                if blob not in layer.bottom:
                    renamed.pop(blob, None)
            made.append(copy)
            continue
        if branch:
            made += branch
            branch = []
        if layer.top[0] == layer.bottom[0]:
            # what was in place becomes a blob of its own, as several layers read the one before it
            renamed[layer.top[0]] = names.free(f"{layer.top[0]}-aligned")
            copy.top[0] = renamed[layer.top[0]]
        made += _aligned(copy, weights, source_rows, names)
    del net.layer[:]
    net.layer.extend(made)


@dataclass
class _Names:
    """Names of layers and blobs that are taken."""

    taken: set[str]

    def free(self, name: str) -> str:
        """The name with "-new" appended until it is free; it is taken then."""
        name = free_name(name, self.taken)
        self.taken.add(name)
        return name


def _branch(
    net: pb.NetParameter, weights: list[str], source_rows: int, like: str, names: _Names
) -> list[pb.LayerParameter]:
    """The layers that predict the domains of the source's rows, with a top for each domain, (rows, 1)."""
    graph = Graph(layer for layer in net.layer if included(layer, pb.TRAIN, net.state.level, net.state.stage))
    features, spatial = _features(graph)
    branch = []
    if spatial:
        relu, pool_name = names.free("domain-relu"), names.free("domain-pool")
        branch.append(_layer("ReLU", relu, [features], [relu]))
        pool = _layer("Pooling", pool_name, [relu], [pool_name])
        pool.pooling_param.pool = pb.PoolingParameter.AVE
        pool.pooling_param.global_pooling = True
        branch.append(pool)
        features = pool_name
    parts = [names.free(f"domain-features-{part}") for part in ("source", "target")]
    cut = _layer("Slice", names.free("domain-slice"), [features], parts)
    cut.slice_param.axis = 0
    cut.slice_param.slice_point.append(source_rows)
    scores = names.free("domain-scores")
    predictor = _layer("InnerProduct", names.free("domain-predictor"), [parts[0]], [scores])
    model = next(layer for layer in net.layer if layer.name == like)
    predictor.param.extend(model.param)
    for param in predictor.param:
        param.ClearField("name")
    predictor.inner_product_param.num_output = len(weights)
    predictor.inner_product_param.weight_filler.CopyFrom(pb.FillerParameter(type="gaussian", std=0.01))
    entropy = names.free("domain-entropy")
    loss = _layer("EntropyLoss", entropy, [scores], [entropy])
    loss.loss_weight.append(_ENTROPY)
    loss.softmax_param.axis = 1
    probabilities = names.free("domain-probabilities")
    softmax = _layer("Softmax", names.free("domain-softmax"), [scores], [probabilities])
    split = _layer("Slice", names.free("domain-weights"), [probabilities], weights)
    split.slice_param.axis = 1
    unread = _layer("Silence", names.free("domain-target-silence"), [parts[1]], [])
    return [*branch, cut, unread, predictor, loss, softmax, split]


def _features(graph: Graph) -> tuple[str, bool]:
    """The blob that the side branch reads, and whether it has positions, as a layer with weights does not say."""
    first = next(node for node in graph.nodes if node.param.type == "Dial")
    before = graph.ancestors(first.bottoms[0])
    maker = next((node for node in reversed(before) if node.param.type in _WEIGHTED), None)
    if maker is None:
        return graph.names[first.bottoms[0]], False
    behind = graph.ancestors(maker.bottoms[0])
    if any(node.param.type in _WEIGHTED for node in behind):
        return graph.names[maker.bottoms[0]], _is_spatial(behind)
    return graph.names[first.bottoms[0]], _is_spatial(before)


def _is_spatial(before: list[Node]) -> bool:
    """Whether the last of some layers that changes the number of axes leaves positions."""
    for node in reversed(before):
        if node.param.type in ("InnerProduct", "Flatten", "Reshape"):
            return False
        if node.param.type == "Convolution" or (not node.bottoms and node.param.type not in NO_IMAGES):
            return True
    return False


def _aligned(dial: pb.LayerParameter, weights: list[str], source_rows: int, names: _Names) -> list[pb.LayerParameter]:
    """What takes a Dial layer's place."""
    name, blob, top = dial.name, dial.bottom[0], dial.top[0]
    parts = [names.free(f"{name}-{part}-in") for part in ("source", "target")]
    cut = _layer("Slice", names.free(f"{name}-slice"), [blob], parts)
    cut.slice_param.axis = 0
    cut.slice_param.slice_point.append(source_rows)
    mixed = []
    for number, weight in enumerate(weights, 1):
        one = names.free(f"{name}-domain-{number}")
        norm = _layer("MultiModalBatchNorm", one, [parts[0], weight], [one])
        _copy_options(dial, norm.multimodal_batch_norm_param)
        mixed.append(norm)
    of_source = names.free(f"{name}-source")
    total = _layer("Eltwise", names.free(f"{name}-sum"), [norm.name for norm in mixed], [of_source])
    total.eltwise_param.operation = pb.EltwiseParameter.SUM
    norm_name, normal = names.free(f"{name}-target"), names.free(f"{name}-target-out")
    target, test = (_layer("BatchNorm", norm_name, [parts[1]], [normal]) for _ in range(2))
    for norm in (target, test):
        _copy_options(dial, norm.batch_norm_param)
    test.bottom[0], test.top[0], test.include[0].phase = blob, top, pb.TEST
    join = _layer("Concat", names.free(f"{name}-concat"), [of_source, normal], [top])
    join.concat_param.axis = 0
    return [cut, *mixed, total, target, join, test]


def _copy_options(dial: pb.LayerParameter, options: pb.BatchNormParameter | pb.MultiModalBatchNormParameter) -> None:
    for field in ("eps", "moving_average_fraction", "use_global_stats"):
        if dial.dial_param.HasField(field):
            setattr(options, field, getattr(dial.dial_param, field))


def _layer(kind: str, name: str, bottoms: Collection[str], tops: Collection[str]) -> pb.LayerParameter:
    """A layer of the TRAIN phase."""
    layer = pb.LayerParameter(name=name, type=kind, bottom=bottoms, top=tops)
    layer.include.add(phase=pb.TRAIN)
    return layer
