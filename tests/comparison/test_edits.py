"""Every method's net: that it learns, and that its layers are those of the net that the method's authors released."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from autodial import proto
from autodial.comparison import edits
from autodial.comparison.methods import METHODS, Method
from autodial.errors import InputError
from autodial.netparam.net_state import filter_net
from autodial.netparam.shipped import shipped_net
from autodial.proto import messages as pb
from autodial.training.solver import Solver

FORKS = Path(__file__).parents[3] / "shared/reference/da_forks"
NETS = [name for name, method in METHODS.items() if isinstance(method, Method)]
RELEASED = {
    "deep-coral": ("dcoral/a_w_trainval_coral_fc8_loss_0.8_full_source.prototxt", 2000, "fc8_office"),
    "dan": ("xlearn/DAN/alexnet/train_val.prototxt", 20_000, "fc8_source"),
    "jan": ("xlearn/JAN/alexnet/train_val.prototxt", 30_000, "fc8_1"),
    "rtn": ("xlearn/RTN/alexnet/train_val.prototxt", 20_000, "lp_fc8"),
    "reversegrad": ("filled/grl_train_val.prototxt", 50_000, "lp_fc8"),
}
"""By method: the released net, the iterations of its solver, and its classifier."""
LOSSES = ("SoftmaxWithLoss", "MMDLoss", "JMMDLoss", "CORALLoss", "EntropyLoss", "SigmoidCrossEntropyLoss")
OTHERS = ("GradientScaler",)
OPTIONS = ("mmd_param", "jmmd_param", "gradient_scaler_param")


def made(name: str, net: pb.NetParameter, iterations: int = 12) -> pb.NetParameter:
    method = METHODS[name]
    assert isinstance(method, Method)
    return method.make(net, iterations)


@pytest.mark.parametrize("name", NETS)
def test_every_net_takes_gradient_steps(name: str, stripes: Path, tmp_path: Path) -> None:
    """After three steps, whatever has a learning rate is another; TEST reads the images that it read before."""
    param = made(name, proto.read_net(stripes / "net.prototxt"))
    for layer in param.layer:
        if layer.type == "ImageData":
            layer.image_data_param.source = str(stripes / layer.image_data_param.source)
    proto.write_text(param, tmp_path / "net.prototxt")
    solver = Solver(
        pb.SolverParameter(net=str(tmp_path / "net.prototxt"), base_lr=0.05, lr_policy="fixed", max_iter=3),
        device="cpu",
        base_dir=tmp_path,
    )
    before = [blob.tensor.detach().clone() for blob in solver.net.params]
    solver.step(3)
    changed = [not torch.equal(old, blob.tensor) for old, blob in zip(before, solver.net.params, strict=True)]
    learning = [blob.lr_mult > 0 for blob in solver.net.params]
    assert any(learning) and all(new for new, learns in zip(changed, learning, strict=True) if learns)
    solver.close()


def adaptation(net: pb.NetParameter) -> Counter[tuple[Any, ...]]:
    """Type, weight and options of the losses and of what belongs to them, in TRAIN."""
    found: Counter[tuple[Any, ...]] = Counter()
    for layer in filter_net(net, pb.TRAIN).layer:
        if layer.type in (*LOSSES, *OTHERS):
            weight = (list(layer.loss_weight) or [1.0])[0] if layer.type in LOSSES else None
            options = {name: getattr(layer, name) for name in OPTIONS if layer.HasField(name)}
            values = {
                (name, field.name, getattr(message, field.name))
                for name, message in options.items()
                for field in message.DESCRIPTOR.fields
            }
            found[layer.type, weight, frozenset(values)] += 1
    return found


def rates(net: pb.NetParameter, name: str, body: str) -> list[float]:
    """lr_mult of a layer's blobs, as multiples of what a layer in the network's body has."""
    own, others = (
        next(layer for layer in net.layer if layer.name == wanted and layer.param).param for wanted in (name, body)
    )
    return [a.lr_mult / b.lr_mult for a, b in zip(own, others, strict=True)]


@pytest.mark.parametrize("name", RELEASED)
@pytest.mark.skipif(not FORKS.is_dir(), reason="the released nets are not in ../shared")
def test_layers_are_those_of_the_released_net(name: str) -> None:
    file, iterations, classifier = RELEASED[name]
    released = proto.read_net(FORKS / file)
    ours = made(name, proto.read_net(shipped_net("alexnet")), iterations)
    fusions = [{layer.type for layer in net.layer} & {"OuterProduct"} for net in (ours, released)]
    assert fusions[0] == fusions[1]  # ours fuses both domains in one layer
    assert adaptation(ours) == adaptation(released)
    (own,) = (layer.name for layer in ours.layer if layer.name.startswith("fc8-new") and layer.param)
    assert rates(ours, own, "fc7") == pytest.approx(rates(released, classifier, "fc7"))


@pytest.mark.skipif(not FORKS.is_dir(), reason="the released nets are not in ../shared")
@pytest.mark.parametrize(
    "name, layers",
    [
        ("rtn", {"bottleneck": "bottleneck", "residual1": "fc8_source_res1", "residual2": "fc8_source_res2"}),
        (
            "reversegrad",
            {"bottleneck": "bottleneck", "domain1": "dc_ip1", "domain2": "dc_ip2", "domain3": "dc_ip3"},
        ),
    ],
)
def test_new_layers_have_the_released_sizes_and_rates(name: str, layers: dict[str, str]) -> None:
    file, iterations, _ = RELEASED[name]
    released = proto.read_net(FORKS / file)
    ours = made(name, proto.read_net(shipped_net("alexnet")), iterations)
    sizes = [{x.name: x.inner_product_param.num_output for x in net.layer} for net in (ours, released)]
    for own, other in layers.items():
        assert rates(ours, own, "fc7") == pytest.approx(rates(released, other, "fc7"))
        assert sizes[0][own] == sizes[1][other]


def test_the_residual_starts_from_almost_nothing() -> None:
    """As in the released net, whatever the classifier starts from."""
    layers = {layer.name: layer for layer in made("rtn", proto.read_net(shipped_net("digits"))).layer}
    for name in ("residual1", "residual2"):
        filler = layers[name].inner_product_param.weight_filler
        assert (filler.type, round(filler.std, 6)) == ("gaussian", 0.01)


def test_ddc_is_dan_with_one_kernel_and_one_layer() -> None:
    net = proto.read_net(shipped_net("digits"))
    (loss,) = (layer for layer in made("ddc", net).layer if layer.type == "MMDLoss")
    first, second = (layer for layer in made("dan", net).layer if layer.type == "MMDLoss")
    assert loss.bottom == first.bottom == ["fc3-source", "fc3-target"] and second.bottom == ["fc4-source", "fc4-target"]
    assert [x.mmd_param.kernel_num for x in (loss, first, second)] == [1, 5, 5]


def test_a_bottleneck_renames_the_classifier_whose_weights_no_longer_fit() -> None:
    net = proto.read_net(shipped_net("digits"))
    for name, outputs in (("rtn", 128), ("reversegrad", 256)):
        layers = {layer.name: layer for layer in made(name, net).layer}
        assert "fc4" not in layers and layers[f"fc4-{name}"].bottom == ["bottleneck"]
        assert layers["bottleneck"].bottom == ["fc3"] and not layers["bottleneck"].include
        assert layers["bottleneck"].inner_product_param.num_output == outputs
        assert layers["bottleneck"].inner_product_param.weight_filler.type == "xavier"


def test_nothing_of_the_base_net_changes() -> None:
    net = proto.read_net(shipped_net("digits"))
    before = proto.to_text(net)
    for name in NETS:
        made(name, net)
    assert proto.to_text(net) == before


def test_a_classifier_by_convolution_has_no_bottleneck(stripes: Path) -> None:
    net = proto.read_net(stripes / "net.prototxt")
    for layer in net.layer:
        if layer.name == "fc":
            layer.type = "Convolution"
            layer.ClearField("inner_product_param")
            layer.convolution_param.num_output = 3
            layer.convolution_param.kernel_size.append(6)
    assert any(layer.type == "MMDLoss" for layer in edits.dan(net, 10).layer)
    with pytest.raises(InputError, match=r'layer "fc" \(Convolution\): rtn puts a bottleneck'):
        edits.rtn(net, 10)


def test_features_that_a_later_layer_overwrites(stripes: Path) -> None:
    net = proto.read_net(stripes / "net.prototxt")
    number = next(i for i, layer in enumerate(net.layer) if layer.name == "fc")
    net.layer.insert(number + 1, pb.LayerParameter(name="late", type="ReLU", bottom=["conv"], top=["conv"]))
    with pytest.raises(InputError, match='layer "fc" reads the blob "conv", which a later layer overwrites'):
        edits.ddc(net, 10)


def test_a_loss_that_does_not_read_the_scores_themselves(stripes: Path) -> None:
    """A temperature in front of the loss: nothing says where RTN's residual would have to be added."""
    net = proto.read_net(stripes / "net.prototxt")
    place = next(i for i, layer in enumerate(net.layer) if layer.type == "SoftmaxWithLoss")
    net.layer[place].bottom[0] = "cool"
    cool = pb.LayerParameter(name="cool", type="Power", bottom=["fc-source"], top=["cool"])
    cool.include.add(phase=pb.TRAIN)
    net.layer.insert(place, cool)
    with pytest.raises(InputError, match='must read the scores "fc-source", and 0 do: leave rtn out'):
        edits.rtn(net, 10)
