"""Which layers of a prototxt belong to a phase (Caffe: Net::FilterNet and Net::StateMeetsRule)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from autodial.errors import InputError
from autodial.proto import messages as pb


def meets(rule: pb.NetStateRule, phase: pb.Phase, level: int, stages: Collection[str]) -> bool:
    """Whether a net in this phase, at this level and in these stages meets a NetStateRule."""
    if rule.HasField("phase") and rule.phase != phase:
        return False
    if rule.HasField("min_level") and level < rule.min_level:
        return False
    if rule.HasField("max_level") and level > rule.max_level:
        return False
    return all(stage in stages for stage in rule.stage) and not any(stage in stages for stage in rule.not_stage)


def included(layer: pb.LayerParameter, phase: pb.Phase, level: int, stages: Collection[str]) -> bool:
    """Whether a layer's include and exclude rules let it into a net in this phase, at this level and in these stages.

    Raises:
        InputError: the layer has both kinds of rules.
    """
    if layer.include and layer.exclude:
        raise InputError(f'layer "{layer.name}": give either include rules or exclude rules, not both')
    if layer.include:
        return any(meets(rule, phase, level, stages) for rule in layer.include)
    return not any(meets(rule, phase, level, stages) for rule in layer.exclude)


def filter_net(
    net: pb.NetParameter, phase: pb.Phase, *, level: int | None = None, stages: Collection[str] = ()
) -> pb.NetParameter:
    """A copy of a NetParameter with the layers of one phase, its `state` and every layer's `phase` filled in.

    Args:
        level: for the layers' rules; None takes the level of the prototxt's `state`.
        stages: for the layers' rules, in addition to those of `state`.

    Raises:
        InputError: a layer with both include and exclude rules.
    """
    level = net.state.level if level is None else level
    stages = {*stages, *net.state.stage}
    filtered = pb.NetParameter()
    filtered.CopyFrom(net)
    del filtered.layer[:]
    filtered.state.phase = phase
    filtered.state.level = level
    filtered.state.ClearField("stage")
    filtered.state.stage.extend(sorted(stages))
    for layer in net.layer:
        if included(layer, phase, level, stages):
            kept = filtered.layer.add()
            kept.CopyFrom(layer)
            if not kept.HasField("phase"):
                kept.phase = phase
    return filtered


def put_in_state(net: pb.NetParameter, level: int, stages: Iterable[str]) -> None:
    """Set a NetParameter's level and add stages, in place, as Caffe's flags -level and -stage do.

    Args:
        stages: names; one string may hold several, separated by commas.
    """
    net.state.level = level
    net.state.stage.extend(filter(None, ",".join(stages).split(",")))


def insert_splits(net: pb.NetParameter) -> pb.NetParameter:
    """A copy of a filtered NetParameter in which every blob has one consumer (Caffe: InsertSplits).

    A blob that several layers read, or a loss that a layer reads, passes a Split layer with a top for each.

    Raises:
        InputError: a bottom that no earlier layer produces.
    """
    source: dict[tuple[int, int], tuple[int, int]] = {}
    uses: Counter[tuple[int, int]] = Counter()
    last_top: dict[str, tuple[int, int]] = {}
    for i, layer in enumerate(net.layer):
        for j, name in enumerate(layer.bottom):
            if name not in last_top:
                raise InputError(
                    f'layer "{layer.name}" ({layer.type}): bottom blob "{name}" is produced by no earlier layer of the '
                    f"{'TRAIN' if net.state.phase == pb.TRAIN else 'TEST'} phase"
                )
            source[i, j] = last_top[name]
            uses[last_top[name]] += 1
        last_top.update((name, (i, j)) for j, name in enumerate(layer.top))
        uses.update((i, j) for j, weight in enumerate(layer.loss_weight[: len(layer.top)]) if weight)

    def split_top(top: tuple[int, int], k: int) -> str:
        i, j = top
        return f"{net.layer[i].top[j]}_{net.layer[i].name}_{j}_split_{k}"

    result = pb.NetParameter()
    result.CopyFrom(net)
    del result.layer[:]
    used: Counter[tuple[int, int]] = Counter()
    for i, layer in enumerate(net.layer):
        copy = result.layer.add()
        copy.CopyFrom(layer)
        for j in range(len(layer.bottom)):
            top = source[i, j]
            if uses[top] > 1:
                copy.bottom[j] = split_top(top, used[top])
                used[top] += 1
        for j, name in enumerate(layer.top):
            if uses[i, j] < 2:
                continue
            split = result.layer.add(name=f"{name}_{layer.name}_{j}_split", type="Split", bottom=[name])
            split.phase = copy.phase
            split.top.extend(split_top((i, j), k) for k in range(uses[i, j]))
            if j < len(layer.loss_weight) and layer.loss_weight[j]:
                split.loss_weight.extend([layer.loss_weight[j]] + [0.0] * (uses[i, j] - 1))
                copy.loss_weight[j] = 0
                used[i, j] += 1
    return result
