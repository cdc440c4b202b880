"""The nets of other methods of domain adaptation, each made from one AutoDIAL net; no torch.

The methods' layers and their options are those of the nets that the methods' authors released (docs/family.md), except
that a new layer starts and learns as the net's own classifier does: the same filler, lr_mult and decay_mult. (RTN's
residual alone must start as released.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autodial.errors import InputError
from autodial.netparam.graph import Graph
from autodial.netparam.names import free_name
from autodial.netparam.net_state import filter_net
from autodial.netparam.variants import apply_variant
from autodial.proto import messages as pb

_CLASSIFIERS = ("InnerProduct", "Convolution")
_MMD_WEIGHT, _CORAL_WEIGHT, _JMMD_WEIGHT = 1.0, 0.8, 0.3
_REVERSAL_WEIGHT, _ENTROPY_WEIGHT = 0.1, 0.1
_KERNELS, _KERNEL_RATIO = 5, 2.0
_SIGMA = 1.68
"""Bandwidth of JAN's kernel of predictions."""
_REVERSAL_BOTTLENECK, _DOMAIN_CLASSIFIER = 256, 1024
_RESIDUAL_BOTTLENECK = 128
_RESIDUAL_SPREAD = 0.01
"""Deviation of RTN's first residual weights. It is so small that both domains' classifiers start out almost equal:
otherwise the source's learns its classes by the residual alone, and the target's, which lacks it, learns nothing."""
_STEEPNESS = 10.0
"""alpha of the GradientScaler layers."""
_REVERSAL_RISE, _RESIDUAL_RISE = 1 / 5, 1 / 10
"""Share of the training in which a GradientScaler's coefficient rises: 10,000 of 50,000 iterations, 2,000 of 20,000."""


def deep_coral(net: pb.NetParameter, iterations: int) -> pb.NetParameter:
    """Deep CORAL (Sun and Saenko, 2016): the distance of the logits' covariances.

    Args:
        net: an AutoDIAL net with both phases; it is not changed.
        iterations: length of the training.

    Raises:
        InputError: the net's classifier can't be found, or the method can't be put behind it.
    """
    edit = _Edit(net)
    source, target = edit.halves(edit.logits)
    edit.loss("CORALLoss", "coral", [source, target], _CORAL_WEIGHT)
    return edit.finished()


def ddc(net: pb.NetParameter, iterations: int) -> pb.NetParameter:
    """DDC (Tzeng et al., 2014): the maximum mean discrepancy of the features, with one Gaussian kernel.

    The arguments and errors are those of `deep_coral`.
    """
    edit = _Edit(net)
    edit.mmd(edit.features, kernels=1)
    return edit.finished()


def dan(net: pb.NetParameter, iterations: int) -> pb.NetParameter:
    """DAN (Long et al., 2015): maximum mean discrepancies of features and of logits, with five Gaussian kernels.

    The arguments and errors are those of `deep_coral`.
    """
    edit = _Edit(net)
    for blob in (edit.features, edit.logits):
        edit.mmd(blob, kernels=_KERNELS)
    return edit.finished()


def jan(net: pb.NetParameter, iterations: int) -> pb.NetParameter:
    """JAN (Long et al., 2017): joint maximum mean discrepancies of features and predictions.

    The arguments and errors are those of `deep_coral`.
    """
    edit = _Edit(net)
    probabilities = edit.add("Softmax", "softmax-domains", [edit.logits])
    predictions = edit.halves(probabilities)
    for name, values in (("jmmd-features", edit.halves(edit.features)), ("jmmd-predictions", predictions)):
        loss = edit.loss("JMMDLoss", name, [*values, *predictions], _JMMD_WEIGHT)
        loss.jmmd_param.kernel_num, loss.jmmd_param.kernel_mul = _KERNELS, _KERNEL_RATIO
        loss.jmmd_param.label_kernel_num, loss.jmmd_param.label_kernel_mul = 1, _KERNEL_RATIO
        loss.jmmd_param.sigma = _SIGMA
    return edit.finished()


def reversegrad(net: pb.NetParameter, iterations: int) -> pb.NetParameter:
    """ReverseGrad (Ganin and Lempitsky, 2015): a domain classifier whose gradient is reversed, behind a bottleneck.

    The arguments and errors are those of `deep_coral`.
    """
    edit = _Edit(net)
    bottleneck = edit.bottleneck("reversegrad", _REVERSAL_BOTTLENECK, relu=False)
    reversed_ = edit.rising("reversal", bottleneck, round(_REVERSAL_RISE * iterations))
    for number in (1, 2):
        hidden = edit.inner_product(f"domain{number}", reversed_, _DOMAIN_CLASSIFIER)
        edit.add("ReLU", f"domain{number}-relu", [hidden], top=hidden)
        edit.add("Dropout", f"domain{number}-drop", [hidden], top=hidden)
        reversed_ = hidden
    scores = edit.inner_product("domain3", reversed_, 1)
    labels = [edit.constant(f"domain-{name}", value) for name, value in (("source", 0), ("target", 1))]
    joined = edit.add("Concat", "domain-labels", labels)
    edit.last.concat_param.axis = 0
    edit.loss("SigmoidCrossEntropyLoss", "domain-loss", [scores, joined], _REVERSAL_WEIGHT)
    return edit.finished()


def rtn(net: pb.NetParameter, iterations: int) -> pb.NetParameter:
    """RTN (Long et al., 2016): a residual source classifier, the target's entropy, and an MMD of fused features.

    The released net fuses two images into each row of the MMD; here a row is one image, as in the paper. The arguments
    and errors are those of `deep_coral`.
    """
    edit = _Edit(net)
    bottleneck = edit.bottleneck("rtn", _RESIDUAL_BOTTLENECK, relu=True)
    source, target = edit.halves(edit.logits)
    first = edit.inner_product("residual1", source, edit.classes, spread=_RESIDUAL_SPREAD)
    edit.add("ReLU", "residual1-relu", [first], top=first)
    second = edit.inner_product("residual2", first, edit.classes, spread=_RESIDUAL_SPREAD)
    edit.read_by_loss(edit.add("Eltwise", "residual-sum", [source, second]))
    probabilities = edit.add("Softmax", "softmax-target", [target])
    rising = edit.rising("entropy-scaler", probabilities, round(_RESIDUAL_RISE * iterations))
    # minus: a GradientScaler reverses the gradient
    entropy = edit.loss("EntropyLoss", "loss-target", [rising], -_ENTROPY_WEIGHT)
    entropy.entropy_param.threshold = 0.001
    fused = edit.add("OuterProduct", "fusion", [bottleneck, edit.logits])
    pooled = edit.add("Pooling", "fusion-pool", [fused])
    edit.last.pooling_param.pool = pb.PoolingParameter.MAX
    edit.last.pooling_param.kernel_size = edit.last.pooling_param.stride = 2
    edit.mmd(pooled, kernels=_KERNELS)
    return edit.finished()


class _Edit:
    """An AutoDIAL net without its alignment and its entropy loss, to which another method's layers are added.

    New layers are for the TRAIN phase, but for the bottleneck's.

    Attributes:
        logits: name of the blob with the class scores.
        features: name of the blob that the classifier reads.
        classes: number of classes.
    """

    def __init__(self, net: pb.NetParameter) -> None:
        self._net = apply_variant(net, "entropy-only")
        kept = [layer for layer in self._net.layer if layer.type != "EntropyLoss"]
        self._replace(kept)
        train = Graph(filter_net(self._net, pb.TRAIN).layer)
        test = Graph(filter_net(self._net, pb.TEST).layer)
        self.logits = test.names[test.logits()]
        value = train.last(self.logits)
        node = None if value is None else train.producer(value)
        while node is not None and node.param.type not in _CLASSIFIERS:
            node = train.producer(node.bottoms[0]) if len(node.bottoms) == 1 else None
        if node is None:
            raise InputError(
                f'the scores "{self.logits}" must come from one InnerProduct or Convolution layer in the TRAIN phase'
            )
        self._classifier = node.param
        self.features = train.names[node.bottoms[0]]
        if train.last(self.features) != node.bottoms[0]:
            raise InputError(
                f'layer "{node.param.name}" reads the blob "{self.features}", which a later layer overwrites in place: '
                "give that layer a top of its own"
            )
        self._split = self._find_split()
        self._halves = {self.logits: (self._split.top[0], self._split.top[1])}
        self.classes = self._options(node.param).num_output

    @property
    def last(self) -> pb.LayerParameter:
        """The layer that was added last."""
        return self._net.layer[-1]

    @property
    def _point(self) -> int:
        """The number of source images in a batch."""
        return int(self._split.slice_param.slice_point[0])

    def halves(self, blob: str) -> tuple[str, str]:
        """The source's and the target's part of a blob."""
        if blob not in self._halves:
            source, target = (self._free_blob(f"{blob}-{domain}") for domain in ("source", "target"))
            self._layer("Slice", f"{blob}-slice", [blob], [source, target])
            self.last.slice_param.axis = 0
            self.last.slice_param.slice_point.append(self._point)
            self._halves[blob] = source, target
        return self._halves[blob]

    def add(self, kind: str, name: str, bottoms: Sequence[str], *, top: str | None = None) -> str:
        """Add a layer; returns the name of its top, which is its own unless `top` names one."""
        made = self._free_blob(name) if top is None else top
        self._layer(kind, name, bottoms, [made])
        return made

    def loss(self, kind: str, name: str, bottoms: Sequence[str], weight: float) -> pb.LayerParameter:
        """Add a loss; returns its layer."""
        self.add(kind, name, bottoms)
        self.last.loss_weight.append(weight)
        return self.last

    def mmd(self, blob: str, *, kernels: int) -> None:
        """Add the maximum mean discrepancy of a blob's two parts."""
        param = self.loss("MMDLoss", f"{blob}-mmd", self.halves(blob), _MMD_WEIGHT).mmd_param
        param.kernel_num, param.kernel_mul = kernels, _KERNEL_RATIO

    def rising(self, name: str, blob: str, iterations: int) -> str:
        """Add a layer that reverses the gradient, at full strength after some iterations."""
        top = self.add("GradientScaler", name, [blob])
        param = self.last.gradient_scaler_param
        param.lower_bound, param.upper_bound, param.alpha = 0, 1, _STEEPNESS
        param.max_iter = max(1, iterations)
        return top

    def constant(self, name: str, value: float) -> str:
        """Add a column with one value for each image of a domain."""
        top = self.add("DummyData", name, [])
        self.last.dummy_data_param.shape.add(dim=[self._point, 1])
        self.last.dummy_data_param.data_filler.add(type="constant", value=value)
        return top

    def inner_product(self, name: str, blob: str, outputs: int, *, spread: float | None = None) -> str:
        """Add an InnerProduct layer that learns as the classifier does, and starts as it does.

        With `spread`, it starts from Gaussian weights of this deviation.
        """
        top = self.add("InnerProduct", name, [blob])
        self._fill(self.last, outputs)
        if spread is not None:
            filler = pb.FillerParameter(type="gaussian", std=spread)
            self.last.inner_product_param.weight_filler.CopyFrom(filler)
        return top

    def bottleneck(self, method: str, outputs: int, *, relu: bool) -> str:
        """Put an InnerProduct layer in front of the classifier, in both phases; returns the name of its blob.

        The classifier gets another name, as its weights now have another shape.
        """
        name = self._classifier.name
        if self._classifier.type != "InnerProduct":
            raise InputError(
                f'layer "{name}" ({self._classifier.type}): {method} puts a bottleneck in front of the classifier, '
                "which must be an InnerProduct layer for that: leave the method out"
            )
        layers = list(self._net.layer)
        place = next(number for number, layer in enumerate(layers) if layer.name == name)
        blob = self._free_blob("bottleneck")
        made = pb.LayerParameter(
            name=self._free_name("bottleneck"), type="InnerProduct", bottom=[self.features], top=[blob]
        )
        self._fill(made, outputs)
        before = [made]
        if relu:
            before.append(
                pb.LayerParameter(name=self._free_name("bottleneck-relu"), type="ReLU", bottom=[blob], top=[blob])
            )
        renamed = self._free_name(f"{name}-{method}")
        for layer in layers:
            if layer.name == name:
                layer.name = renamed
                layer.bottom[0] = blob
        self._replace([*layers[:place], *before, *layers[place:]])
        return blob

    def read_by_loss(self, blob: str) -> None:
        """Make the source's SoftmaxWithLoss layer read other scores; it then stands behind the layers added so far."""
        source = self._halves[self.logits][0]
        losses = [layer for layer in self._net.layer if layer.type == "SoftmaxWithLoss" and layer.bottom[0] == source]
        if len(losses) != 1:
            raise InputError(
                f'one SoftmaxWithLoss layer must read the scores "{source}", and {len(losses)} do: leave rtn out'
            )
        (loss,) = losses
        moved = pb.LayerParameter()
        moved.CopyFrom(loss)
        moved.bottom[0] = blob
        self._replace([*(layer for layer in self._net.layer if layer != loss), moved])

    def finished(self) -> pb.NetParameter:
        """The net; parts of a blob that no layer reads are silenced."""
        read = {bottom for layer in self._net.layer for bottom in layer.bottom}
        idle = [blob for halves in self._halves.values() for blob in halves if blob not in read]
        if idle:
            self._layer("Silence", "domains-silence", idle, [])
        return self._net

    def _find_split(self) -> pb.LayerParameter:
        """The layer that splits the logits into the domains'."""
        for layer in filter_net(self._net, pb.TRAIN).layer:
            halves = len(layer.top) == 2 and len(layer.slice_param.slice_point) == 1
            if layer.type == "Slice" and list(layer.bottom) == [self.logits] and halves:
                return layer
        raise InputError(f'no Slice layer splits the scores "{self.logits}" into those of source and target')

    def _fill(self, layer: pb.LayerParameter, outputs: int) -> None:
        """Give an InnerProduct layer its size, and what the classifier has for its start and its learning rates."""
        for param in self._classifier.param:
            layer.param.add().CopyFrom(param)
            layer.param[-1].ClearField("name")  # by which layers share parameters
        options = self._options(self._classifier)
        layer.inner_product_param.num_output = outputs
        if options.HasField("weight_filler"):
            layer.inner_product_param.weight_filler.CopyFrom(options.weight_filler)
        else:
            layer.inner_product_param.weight_filler.type = "xavier"

    @staticmethod
    def _options(layer: pb.LayerParameter) -> Any:
        return layer.inner_product_param if layer.type == "InnerProduct" else layer.convolution_param

    def _layer(self, kind: str, name: str, bottoms: Sequence[str], tops: Sequence[str]) -> None:
        rule = pb.NetStateRule(phase=pb.TRAIN)
        self._net.layer.add(name=self._free_name(name), type=kind, bottom=bottoms, top=tops, include=[rule])

    def _free_name(self, name: str) -> str:
        return free_name(name, {layer.name for layer in self._net.layer})

    def _free_blob(self, name: str) -> str:
        return free_name(name, {top for layer in self._net.layer for top in layer.top})

    def _replace(self, layers: Sequence[pb.LayerParameter]) -> None:
        copies = []
        for layer in layers:
            copy = pb.LayerParameter()
            copy.CopyFrom(layer)
            copies.append(copy)
        del self._net.layer[:]
        self._net.layer.extend(copies)
