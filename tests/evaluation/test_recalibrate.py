"""Recalibration against the paper's formulas in float64, and against one training pass over everything at once."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from originals import shared
from torch import Tensor

from autodial.errors import InputError, WorkError
from autodial.evaluation.domains import data_in_test, fed_net
from autodial.evaluation.recalibrate import Progress, Recalibration, recalibrate, with_statistics
from autodial.layers import DomainAlignment
from autodial.net.net import Net
from autodial.proto import messages as pb
from autodial.proto import parse_net, read_net

SOURCE, TARGET = 13, 8
ALPHAS = {"dial1": 0.9, "dial2a": 0.7, "dial2b": 1.0, "dial3b": 0.5, "dial4": 0.8}

# two branches, one of them with two Dial layers: 5 layers, 4 depths; dial1 works in place, dial2a does not
TEXT = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 21 dim: 3 dim: 8 dim: 8 } } }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
  convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "gaussian" std: 0.5 } } }
layer { name: "dial1" type: "Dial" bottom: "conv1" top: "conv1" dial_param { slice_point: 13 } }
layer { name: "scale1" type: "Scale" bottom: "conv1" top: "conv1"
  scale_param { bias_term: true filler { type: "uniform" min: 0.5 max: 2 } bias_filler { value: 0.3 } } }
layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }
layer { name: "conv2a" type: "Convolution" bottom: "conv1" top: "conv2a"
  convolution_param { num_output: 3 kernel_size: 1 weight_filler { type: "gaussian" std: 0.5 } } }
layer { name: "dial2a" type: "Dial" bottom: "conv2a" top: "dial2a" dial_param { slice_point: 13 } }
layer { name: "conv2b" type: "Convolution" bottom: "conv1" top: "conv2b"
  convolution_param { num_output: 3 kernel_size: 1 weight_filler { type: "gaussian" std: 0.5 } } }
layer { name: "dial2b" type: "Dial" bottom: "conv2b" top: "conv2b" dial_param { slice_point: 13 } }
layer { name: "relu2b" type: "ReLU" bottom: "conv2b" top: "conv2b" }
layer { name: "conv3b" type: "Convolution" bottom: "conv2b" top: "conv3b"
  convolution_param { num_output: 2 kernel_size: 3 pad: 1 weight_filler { type: "gaussian" std: 0.5 } } }
layer { name: "dial3b" type: "Dial" bottom: "conv3b" top: "conv3b" dial_param { slice_point: 13 } }
layer { name: "join" type: "Concat" bottom: "dial2a" bottom: "conv3b" top: "join" }
layer { name: "fc" type: "InnerProduct" bottom: "join" top: "fc"
  inner_product_param { num_output: 3 weight_filler { type: "gaussian" std: 0.2 } } }
layer { name: "dial4" type: "Dial" bottom: "fc" top: "fc" dial_param { slice_point: 13 } }
"""


def build(phase: int = pb.TEST, text: str = TEXT, alphas: dict[str, float] = ALPHAS) -> Net:
    net = Net(parse_net(text), phase)
    for name, alpha in alphas.items():
        dial = net.layer(name)
        assert isinstance(dial, DomainAlignment)
        dial.alpha.data.fill_(alpha)
    return net


def images(count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 3, 8, 8, generator=generator)
    return x * (1 + seed) + torch.tensor([0.5, -1.0, 2.0]).view(3, 1, 1) * seed


XS, XT = images(SOURCE, 0), images(TARGET, 1)


def batches(x: Tensor, *sizes: int) -> list[dict[str, Tensor]]:
    return [{"data": part} for part in x.split(list(sizes) or [len(x)])]


def stored(net: Net) -> dict[str, list[Tensor]]:
    return {name: [blob.clone() for blob in net.layer(name).blobs[1:]] for name in net.alphas()}


def assert_same(ours: dict[str, list[Tensor]], theirs: dict[str, list[Tensor]], rtol: float = 1e-5) -> None:
    assert ours.keys() == theirs.keys()
    for name, blobs in ours.items():
        for blob, other in zip(blobs, theirs[name], strict=True):
            torch.testing.assert_close(blob, other, rtol=rtol, atol=rtol, msg=lambda text, name=name: f"{name}: {text}")


def test_the_papers_formulas_over_the_whole_data_in_float64() -> None:
    net = build()
    expected: dict[str, list[Tensor]] = {}

    def dial(name: str, xs: Tensor, xt: Tensor) -> tuple[Tensor, Tensor]:
        """Appendix A, line by line; every position of a map is a sample."""
        rows = [x.movedim(1, -1).reshape(-1, x.shape[1]) for x in (xs, xt)]
        normalized, means, variances = [], [], []
        for a, x in ((ALPHAS[name], xs), (1 - ALPHAS[name], xt)):
            mean = a * rows[0].sum(0) / len(rows[0]) + (1 - a) * rows[1].sum(0) / len(rows[1])
            variance = a * ((rows[0] - mean) ** 2).sum(0) / len(rows[0])
            variance += (1 - a) * ((rows[1] - mean) ** 2).sum(0) / len(rows[1])
            shape = [1, -1] + [1] * (x.dim() - 2)
            normalized.append((x - mean.view(shape)) / (variance.view(shape) + 1e-5).sqrt())
            means.append(mean)
            variances.append(variance)
        expected[name] = [torch.stack(means).float(), torch.stack(variances).float(), torch.ones(1)]
        return normalized[0], normalized[1]

    def both(name: str, xs: Tensor, xt: Tensor, padding: int = 0) -> tuple[Tensor, Tensor]:
        weight, bias = (blob.detach().double() for blob in net.layer(name).blobs)
        if weight.dim() == 4:
            return F.conv2d(xs, weight, bias, padding=padding), F.conv2d(xt, weight, bias, padding=padding)
        return F.linear(xs.flatten(1), weight, bias), F.linear(xt.flatten(1), weight, bias)

    factor, shift = (blob.detach().double().view(1, -1, 1, 1) for blob in net.layer("scale1").blobs)
    first = dial("dial1", *both("conv1", XS.double(), XT.double()))
    first = F.relu(first[0] * factor + shift), F.relu(first[1] * factor + shift)
    a = dial("dial2a", *both("conv2a", *first))
    b = dial("dial2b", *both("conv2b", *first))
    b = dial("dial3b", *both("conv3b", F.relu(b[0]), F.relu(b[1]), padding=1))
    dial("dial4", *both("fc", torch.cat([a[0], b[0]], 1), torch.cat([a[1], b[1]], 1)))

    result = recalibrate(net, batches(XS, 4, 4, 5), batches(XT, 3, 5))
    assert_same(stored(net), expected)
    assert [layer.name for layer in result.layers] == list(ALPHAS)
    assert (result.source_samples, result.target_samples, result.passes) == (SOURCE, TARGET, 4)
    first_layer = result.layers[0]
    assert (first_layer.source_values, first_layer.target_values) == (SOURCE * 36, TARGET * 36)


def test_one_training_pass_over_a_batch_of_everything_stores_the_same() -> None:
    training = build(pb.TRAIN)
    training({"data": torch.cat([XS, XT])})
    net = build()
    net.load_weights(training.weights())
    recalibrate(net, batches(XS, 5, 8), batches(XT, 8))
    expected = stored(training)
    for name, blobs in expected.items():
        m = (SOURCE + TARGET) * math.prod(net.blob_shapes[net.tops(name)[0]][2:])
        blobs[1] *= (m - 1) / m
    assert_same(stored(net), expected)


@pytest.mark.slow
def test_the_69_layers_of_the_released_inception_net() -> None:
    param = read_net(shared("reference/autodial/inception_train_val.prototxt"))
    blob = data_in_test(param).blob
    pruned, logits = fed_net(param, blob, (5, 3, 256, 256))
    generator = torch.Generator().manual_seed(0)
    source, target = (torch.randn(n, 3, 256, 256, generator=generator) * s for n, s in ((3, 50), (2, 30)))
    net = Net(pruned, pb.TEST)
    for layer in pruned.layer:
        layer.ClearField("include")
        layer.phase = pb.TRAIN
        if layer.type == "Dial":
            layer.dial_param.slice_point = 3
            net.layer(layer.name).blobs[0].data.uniform_(0.5, 1, generator=generator)
    training = Net(pruned, pb.TRAIN)
    training.load_weights(net.weights())
    with torch.no_grad():
        training({blob: torch.cat([source, target])})
    result = recalibrate(net, [{blob: source[:2]}, {blob: source[2:]}], [{blob: target}], logits=logits)
    assert (len(result.layers), result.passes) == (69, 34)
    for change in result.layers:
        ours, theirs = net.layer(change.name), training.layer(change.name)
        m = change.source_values + change.target_values
        deviation = (ours.variance + 1e-5).sqrt()
        torch.testing.assert_close(ours.mean / deviation, theirs.mean / deviation, rtol=0, atol=1e-4)
        ratio = (theirs.variance * (m - 1) / m + 1e-5).sqrt() / deviation
        torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=0, atol=1e-4)


@pytest.mark.parametrize("memory", [0, 80_000, 2**31])  # of what lies between passes nothing is kept, some, all
def test_batches_order_and_memory_make_no_difference(memory: int) -> None:
    net, other = build(), build()
    recalibrate(net, batches(XS), batches(XT), logits="fc")
    order = torch.randperm(SOURCE, generator=torch.Generator().manual_seed(3))
    recalibrate(other, batches(XS[order], 1, 2, 10), batches(XT.flip(0), 7, 1), logits="fc", memory=memory)
    assert_same(stored(other), stored(net))


class Counted:
    """Batches that count how often they are gone through."""

    def __init__(self, batches: list[dict[str, Tensor]]) -> None:
        self.batches, self.times = batches, 0

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        self.times += 1
        return iter(self.batches)


@pytest.mark.parametrize(("memory", "source_times", "target_times"), [(2**31, 1, 1), (0, 4, 5)])
def test_samples_are_read_once_where_memory_suffices(memory: int, source_times: int, target_times: int) -> None:
    source, target = Counted(batches(XS, 6, 7)), Counted(batches(XT))
    seen: list[Progress] = []
    result = recalibrate(build(), source, target, logits="fc", memory=memory, report=seen.append)
    assert (source.times, target.times) == (source_times, target_times)
    assert result.passes == 5  # one for each depth, and the target's to the logits
    assert [progress.number for progress in seen] == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5]
    shares = [progress.share for progress in seen]
    assert shares == sorted(shares) and shares[-1] == pytest.approx(1)


ONE = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 4 dim: 2 } } }
layer { name: "dial" type: "Dial" bottom: "data" top: "dial" dial_param { eps: 0 } }
"""


def one(alpha: float) -> tuple[Net, DomainAlignment]:
    net = build(text=ONE, alphas={"dial": alpha})
    dial = net.layer("dial")
    assert isinstance(dial, DomainAlignment)
    return net, dial


def test_a_mean_ten_thousand_times_the_deviation() -> None:
    rng = np.random.default_rng(0)
    values = {domain: (1e4 + rng.standard_normal((5000, 2))).astype(np.float32) for domain in ("source", "target")}
    net, dial = one(1)
    recalibrate(net, *(batches(torch.from_numpy(x), *[50] * 100) for x in values.values()))
    for row, x in enumerate(values.values()):
        exact = x.astype(np.float64)
        np.testing.assert_allclose(dial.mean[row], exact.mean(0), rtol=1e-7)
        np.testing.assert_allclose(dial.variance[row], exact.var(0), rtol=1e-6)


def test_distances_worked_by_hand() -> None:
    # channel 0: means 0 and 4, deviations 1 and 3; channel 1 is the same in both domains, mean 5 and deviation 2
    xs = torch.tensor([[-1.0, 3], [1, 7]])
    xt = torch.tensor([[1.0, 3], [7, 7]])
    net, dial = one(1)
    dial.mean.copy_(torch.tensor([[0.0, 0], [2 * 10, 2 * 5]]))
    dial.variance.copy_(torch.tensor([[0.0, 0], [2 * 1, 2 * 4]]))
    dial.normalizer.fill_(2)
    (change,) = recalibrate(net, batches(xs), batches(xt)).layers
    # the target's mean moved from 10 to 4 and its deviation from 1 to 3, in deviations of 3
    assert change.moved_target is not None and change.apart is not None and change.aligned is not None
    assert change.moved_target.worst == pytest.approx(math.hypot(6, 2) / 3)
    assert (change.moved_target.channel, change.moved_target.mean) == (0, pytest.approx(math.hypot(6, 2) / 6))
    # the even mixture has the variance (1 + 9) / 2 + 2^2 = 9
    assert change.apart.worst == pytest.approx(math.hypot(4, 2) / 3)
    assert change.aligned.worst == pytest.approx(0, abs=1e-12)
    assert dial.mean.tolist() == [[0, 5], [4, 5]] and dial.variance.tolist() == [[1, 4], [9, 4]]
    assert (dial.normalizer.item(), dial.alpha.item()) == (1, 1)

    net, dial = one(0.5)
    (change,) = recalibrate(net, batches(xs), batches(xt)).layers
    assert change.moved_target is change.moved_source is None  # nothing was stored
    assert change.aligned == change.apart
    assert dial.mean.tolist() == [[2, 5], [2, 5]] and dial.variance.tolist() == [[9, 4], [9, 4]]


def test_alpha_is_clipped_and_stays_as_it_is_stored() -> None:
    (net, dial), (inside, _) = one(1.3), one(1)
    (change,) = recalibrate(net, batches(XS[:, :2, 0, 0]), batches(XT[:, :2, 0, 0])).layers
    recalibrate(inside, batches(XS[:, :2, 0, 0]), batches(XT[:, :2, 0, 0]))
    assert (change.alpha, dial.alpha.item()) == (1, pytest.approx(1.3))
    assert_same(stored(net), stored(inside))


ONES = dict.fromkeys(ALPHAS, 1.0)


def trained(alphas: dict[str, float]) -> Net:
    """A net with the moving averages of two training steps."""
    training = build(pb.TRAIN, alphas=alphas)
    for seed in (2, 3):
        training({"data": images(SOURCE + TARGET, seed)})
    net = build()
    net.load_weights(training.weights())
    return net


def test_a_target_alone_where_every_alpha_is_1() -> None:
    net, with_source, before = trained(ONES), trained(ONES), stored(trained(ONES))
    result = recalibrate(net, None, batches(XT, 5, 3), logits="fc")
    recalibrate(with_source, batches(XS), batches(XT))
    for name, (mean, variance, normalizer) in stored(net).items():
        total = before[name][2]
        torch.testing.assert_close(mean[0], before[name][0][0] / total)  # the source's as it was
        torch.testing.assert_close(variance[0], before[name][1][0] / total)
        torch.testing.assert_close(mean[1], stored(with_source)[name][0][1], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(variance[1], stored(with_source)[name][1][1], rtol=1e-5, atol=1e-5)
        assert normalizer.item() == 1
    assert result.source_samples is None
    assert all(layer.moved_source is layer.apart is layer.aligned is None for layer in result.layers)
    assert all(layer.moved_target is not None for layer in result.layers)


def test_a_target_that_is_a_rescaled_source_is_classified_like_it() -> None:
    text = (
        TEXT.replace('bottom: "data" top: "conv1"', 'bottom: "first" top: "conv1"')
        + 'layer { name: "dummy" type: "Split" bottom: "fc" top: "scores" }'
    )
    head = 'layer { name: "dial0" type: "Dial" bottom: "data" top: "first" dial_param { slice_point: 13 } }'
    text = text.replace('layer { name: "conv1"', head + 'layer { name: "conv1"')
    net = build(text=text, alphas={"dial0": 1.0, **ONES})
    target = XS * torch.tensor([3.0, 0.2, 1.0]).view(3, 1, 1) - 7
    recalibrate(net, batches(XS), batches(target))
    scores = []
    for domain, x in (("source", XS), ("target", target)):
        for name in net.alphas():
            net.layer(name).test_stats = domain
        scores.append(net.blobs({"data": x}, ["scores"])["scores"])
    torch.testing.assert_close(scores[1], scores[0], rtol=1e-3, atol=1e-3)  # eps counts more for small channels


def test_the_share_of_target_samples_with_another_class() -> None:
    net = trained(ALPHAS)
    before = net.blobs({"data": XT}, ["fc"])["fc"].argmax(1)
    result = recalibrate(net, batches(XS), batches(XT, 4, 4), logits="fc")
    after = net.blobs({"data": XT}, ["fc"])["fc"].argmax(1)
    assert result.changed == (before != after).double().mean().item()
    assert 0 < result.changed < 1
    assert recalibrate(build(), batches(XS), batches(XT), logits="fc").changed is None  # nothing was stored before


def test_only_the_statistics_of_weights_change() -> None:
    net = trained(ALPHAS)
    weights = net.weights()
    old = {layer.name: [np.array(blob) for blob in layer.blobs] for layer in weights.layers}
    recalibrate(net, batches(XS), batches(XT))
    for layer in with_statistics(weights, net).layers:
        for i, blob in enumerate(layer.blobs):
            expected = net.layer(layer.name).blobs[i].detach() if layer.type == "Dial" and i else old[layer.name][i]
            np.testing.assert_array_equal(blob, expected)


class StopError(Exception):
    pass


def test_an_interrupted_run_leaves_the_net_as_it_was() -> None:
    net = trained(ALPHAS)
    before = stored(net)

    def stop(progress: Progress) -> None:
        if progress.number == 3:
            raise StopError

    with pytest.raises(StopError):
        recalibrate(net, batches(XS), batches(XT), report=stop)
    assert_same(stored(net), before, rtol=0)
    assert {net.layer(name).test_stats for name in ALPHAS} == {"target"}


def refused(net: Net, source: Tensor | None = XS, **options: str) -> Recalibration:
    return recalibrate(net, None if source is None else batches(source), batches(XT), **options)  # type: ignore[arg-type]


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match="TRAIN phase"):
        refused(build(pb.TRAIN))
    with pytest.raises(InputError, match="no Dial layer"):
        refused(build(text=TEXT.replace("Dial", "ReLU").replace("dial_param { slice_point: 13 }", ""), alphas={}))
    with pytest.raises(InputError, match=r'layer "dial2a" \(Dial\) has use_global_stats: false'):
        refused(build(text=TEXT.replace('"dial2a" dial_param {', '"dial2a" dial_param { use_global_stats: false')))
    with pytest.raises(InputError, match=r'layer "dial1" has alpha 0\.9,'):
        refused(trained(ALPHAS), None)
    with pytest.raises(InputError, match='layer "dial1" has never stored statistics'):
        refused(build(alphas=ONES), None)
    with pytest.raises(InputError, match="the target has no samples"):
        recalibrate(build(), batches(XS), [])
    with pytest.raises(InputError, match='no blob "fc9"'):
        refused(build(), logits="fc9")
    with pytest.raises(InputError, match='blob "data", which the Dial layers depend on, must be fed'):
        recalibrate(build(), [{"image": XS}], batches(XT))
    names = "param {} " + "".join(f'param {{ name: "{n}" lr_mult: 0 }} ' for n in "mvn") + "dial_param"
    with pytest.raises(InputError, match='layers "dial2a" and "dial2b" share their statistics'):
        refused(
            build(
                text=TEXT.replace('top: "dial2a" dial_param', f'top: "dial2a" {names}').replace(
                    'bottom: "conv2b" top: "conv2b" dial_param', f'bottom: "conv2b" top: "conv2b" {names}'
                )
            )
        )


def test_values_that_are_not_finite() -> None:
    net = trained(ALPHAS)
    before = stored(net)
    net.layer("conv2a").blobs[0].data.fill_(float("nan"))
    with pytest.raises(WorkError, match='not finite reach layer "dial2a" from the source'):
        refused(net)
    assert_same(stored(net), before, rtol=0)


def test_scores_that_are_not_finite() -> None:
    classifier = """layer { name: "scores" type: "InnerProduct" bottom: "fc" top: "scores"
        inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }"""
    net = build(text=TEXT + classifier)
    recalibrate(net, batches(XS), batches(XT), logits="scores")
    before = stored(net)
    net.layer("scores").blobs[1].data[1] = math.nan
    with pytest.raises(WorkError, match=r'the scores in blob "scores" are not finite \(NaN or infinite\)'):
        recalibrate(net, batches(XS), batches(XT), logits="scores")
    assert_same(stored(net), before, rtol=0)
