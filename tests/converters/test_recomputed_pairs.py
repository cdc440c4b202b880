"""Gradients of several pairs in one backward pass, with activations recomputed and with all of them kept."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from autodial.converters import AutoDIAL, convert_batchnorm
from autodial.layers import DomainAlignment, LayerError

REENTRANT = pytest.mark.parametrize("reentrant", [False, True])
PAIRS = [(5, 3), (3, 5)]


def block(channels: int = 4) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 1)
    )


class Body(nn.Module):
    """Blocks that `run(block, x)` runs, behind one that is run as it is."""

    def __init__(self, run: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.stem, self.blocks = block(3), nn.ModuleList([block(), nn.Sequential(block(), block())])
        self.head = nn.Linear(4, 3)
        self.run = run

    def forward(self, x: Tensor) -> Any:
        x = self.stem(x)
        for each in self.blocks:
            x = each(x) if self.run is None else self.run(each, x)
        return self.head(x.mean((2, 3)))


def nets(body: type[nn.Module] = Body, *arguments: Any) -> tuple[AutoDIAL, AutoDIAL]:
    """A net that keeps its activations, and one of the same parameters with `run`, both in float64."""
    torch.manual_seed(0)
    plain, other = body(), body(*arguments)
    other.load_state_dict(plain.state_dict())
    made = []
    for module in (plain, other):
        net = AutoDIAL(convert_batchnorm(module).double())
        for i, layer in enumerate(layer for layer in net.modules() if isinstance(layer, DomainAlignment)):
            layer.alpha.data.fill_(0.6 + 0.03 * i)
        made.append(net)
    return made[0], made[1]


def images(count: int) -> Tensor:
    return torch.randn(count, 3, 6, 6, dtype=torch.float64) * torch.rand(1, dtype=torch.float64) * 3


def batches(sizes: list[tuple[int, int]] = PAIRS) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(1)
    return [(images(source), images(target) + 2) for source, target in sizes]


def loss(outputs: tuple[Tensor, Tensor]) -> Tensor:
    source, target = outputs
    return source.square().sum() + target.sin().sum()


def gradients(net: nn.Module, of_pairs: Callable[[nn.Module], Tensor]) -> list[Tensor | None]:
    net.zero_grad()
    of_pairs(net).backward()
    return [parameter.grad for parameter in net.parameters()]


def all_pairs(net: nn.Module) -> Tensor:
    return torch.stack([loss(net(*pair)) for pair in batches()]).sum()


@REENTRANT
def test_two_pairs_in_one_backward_pass(reentrant: bool) -> None:
    plain, recomputed = nets(Body, partial(checkpoint, use_reentrant=reentrant))
    expected = gradients(plain, all_pairs)
    torch.testing.assert_close(gradients(recomputed, all_pairs), expected)
    # and the backward passes one by one, the first pair's last
    recomputed.zero_grad()
    for each in reversed([loss(recomputed(*pair)) for pair in batches()]):
        each.backward()
    torch.testing.assert_close([parameter.grad for parameter in recomputed.parameters()], expected)


class Whole(Body):
    """All of it in one checkpoint, from the images on, which must need a gradient for a reentrant one."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x) if self.run is None else self.run(self.whole, x.requires_grad_())

    def whole(self, x: Tensor) -> Any:
        for each in (self.stem, *self.blocks):
            x = each(x)
        return self.head(x.mean((2, 3)))


@REENTRANT
def test_one_checkpoint_of_the_whole_module(reentrant: bool) -> None:
    plain, recomputed = nets(Whole, partial(checkpoint, use_reentrant=reentrant))
    torch.testing.assert_close(gradients(recomputed, all_pairs), gradients(plain, all_pairs))


@REENTRANT
def test_a_checkpoint_of_the_net_itself(reentrant: bool) -> None:
    plain, other = nets()

    def checkpointed(net: nn.Module) -> Tensor:
        made = [checkpoint(net, *(x.requires_grad_() for x in pair), use_reentrant=reentrant) for pair in batches()]
        return torch.stack([loss(each) for each in made]).sum()

    torch.testing.assert_close(gradients(other, checkpointed), gradients(plain, all_pairs))


def test_checkpoints_inside_of_checkpoints() -> None:
    def run(module: nn.Module, x: Tensor) -> Any:
        def inner(x: Tensor) -> Any:
            for each in module:  # type: ignore[attr-defined]
                x = checkpoint(each, x, use_reentrant=False)
            return x

        return checkpoint(inner, x, use_reentrant=False)

    plain, recomputed = nets(Body, run)
    torch.testing.assert_close(gradients(recomputed, all_pairs), gradients(plain, all_pairs))


def test_reentrant_checkpoints_inside_of_checkpoints_are_refused() -> None:
    def run(module: nn.Module, x: Tensor) -> Any:
        inner = partial(checkpoint, module, use_reentrant=True)
        return checkpoint(inner, x, use_reentrant=True)

    _, recomputed = nets(Body, run)
    with pytest.raises(LayerError, match=r"AlignedBatchNorm of 4 channels is run again .* set use_reentrant=False"):
        all_pairs(recomputed).backward()


def test_branches_of_a_checkpoint() -> None:
    class Branches(Body):
        def forward(self, x: Tensor) -> Any:
            def both(x: Tensor) -> Tensor:
                return self.blocks[0](x) + self.blocks[1](x) * self.head.weight.sum().sigmoid()

            x = self.stem(x)
            x = both(x) if self.run is None else self.run(both, x)
            return self.head(x.mean((2, 3)))

    plain, recomputed = nets(Branches, partial(checkpoint, use_reentrant=False))
    torch.testing.assert_close(gradients(recomputed, all_pairs), gradients(plain, all_pairs))


@REENTRANT
def test_what_a_hook_takes_from_inside_of_the_module(reentrant: bool) -> None:
    """An auxiliary classifier of which the outputs know nothing."""

    class Auxiliary(Body):
        taken: list[Tensor]

        def forward(self, x: Tensor) -> Any:
            x = self.stem(x)
            self.taken.append(self.blocks[1](x) if self.run is None else self.run(self.blocks[1], x))
            return self.head(self.blocks[0](x).mean((2, 3)))

    def taken(net: Any) -> Tensor:
        net.module.taken = []
        outputs = [net(*pair)[1].sum() for pair in batches()]
        squares = [features.square().sum() for features in net.module.taken]
        return torch.stack([*outputs, *squares]).sum()

    plain, recomputed = nets(Auxiliary, partial(checkpoint, use_reentrant=reentrant))
    torch.testing.assert_close(gradients(recomputed, taken), gradients(plain, taken))


def test_a_forward_hook() -> None:
    def hooked(net: Any) -> Tensor:
        features: list[Tensor] = []
        handle = net.module.blocks[1][0].register_forward_hook(lambda module, x, y: features.append(y))
        total = all_pairs(net)
        handle.remove()
        return total + torch.stack([each.square().sum() for each in features]).sum()

    plain, recomputed = nets(Body, partial(checkpoint, use_reentrant=False))
    torch.testing.assert_close(gradients(recomputed, hooked), gradients(plain, hooked))


def test_a_forward_pass_in_a_hook_of_a_backward_pass() -> None:
    plain, recomputed = nets(Body, partial(checkpoint, use_reentrant=False))
    first, second = batches()

    def nested(net: nn.Module) -> Tensor:
        outputs = net(*first)
        total = loss(outputs)

        def hook(grad: Tensor) -> Tensor:
            with torch.enable_grad():
                again = loss(net(*second))
                (by_head,) = torch.autograd.grad(again, [net.module.head.bias])  # type: ignore[union-attr]
            return grad + by_head

        outputs[0].register_hook(hook)
        return total

    torch.testing.assert_close(gradients(recomputed, nested), gradients(plain, nested))


@REENTRANT
def test_several_threads_that_call_one_net(reentrant: bool) -> None:
    plain, recomputed = nets(Body, partial(checkpoint, use_reentrant=reentrant))
    sizes = [(5, 3), (3, 5), (2, 6), (6, 2)]
    pairs = batches(sizes)
    expected = [gradients(plain, lambda net, pair=pair: loss(net(*pair))) for pair in pairs]  # type: ignore[misc]
    total = [sum(grads) for grads in zip(*expected, strict=True)]  # type: ignore[arg-type]

    together = threading.Barrier(len(pairs))

    def forward(pair: tuple[Tensor, Tensor]) -> Tensor:
        together.wait()
        return loss(recomputed(*pair))

    with ThreadPoolExecutor(len(pairs)) as pool:
        losses = list(pool.map(forward, pairs))
    # backward passes in threads of their own, none that of its forward pass
    for each in reversed(losses):
        thread = threading.Thread(target=each.backward)
        thread.start()
        thread.join()
    torch.testing.assert_close([parameter.grad for parameter in recomputed.parameters()], total)


def test_a_thread_that_the_module_starts_is_refused() -> None:
    def run(module: nn.Module, x: Tensor) -> Any:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(module, x).result()

    _, threaded = nets(Body, run)
    with pytest.raises(
        LayerError, match=r"AlignedBatchNorm of 4 channels belongs to an AutoDIAL, .* another caller, a thread"
    ):
        threaded(*batches()[0])
    with pytest.raises(LayerError, match="gets a batch of 8 that the AutoDIAL did not make"):
        threaded.module(torch.cat(batches()[0]))


def test_an_exception_midway_leaves_nothing_behind() -> None:
    fails = [True]

    def run(module: nn.Module, x: Tensor) -> Any:
        if fails:
            raise RuntimeError(fails.pop())
        return checkpoint(module, x, use_reentrant=False)

    plain, recomputed = nets(Body, run)
    with pytest.raises(RuntimeError):
        recomputed(images(2), images(6))
    # statistics moved, but nothing else; gradients are taken from the batches' own
    torch.testing.assert_close(gradients(recomputed, all_pairs), gradients(plain, all_pairs))


class Nested(nn.Module):
    """A module with an AutoDIAL inside, whose pairs are others."""

    def __init__(self, run: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.outer, self.head = Body(run), nn.Linear(3, 3)
        self.inner = AutoDIAL(convert_batchnorm(Body(run)))

    def forward(self, x: Tensor) -> Any:
        once, again = self.inner(x[:2], x[2:])
        return self.head((torch.cat((once, again)) + self.outer(x)).tanh())


@REENTRANT
def test_a_net_inside_of_a_net(reentrant: bool) -> None:
    plain, recomputed = nets(Nested, partial(checkpoint, use_reentrant=reentrant))
    torch.testing.assert_close(gradients(recomputed, all_pairs), gradients(plain, all_pairs))


class Small(nn.Module):
    def __init__(self, run: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.fc, self.run = nn.Linear(3, 4), run
        self.block = nn.Sequential(nn.BatchNorm1d(4), nn.Sigmoid(), nn.Linear(4, 2))

    def forward(self, x: Tensor) -> Any:
        x = self.fc(x.mean((2, 3)))
        return self.block(x) if self.run is None else self.run(self.block, x)


@pytest.fixture
def nothing_compiled() -> None:
    """Forget what earlier tests compiled: above its recompile limit torch.compile runs code as it is."""
    torch.compiler.reset()


@pytest.mark.usefixtures("nothing_compiled")
def test_compiled() -> None:
    plain, recomputed = nets(Small, partial(checkpoint, use_reentrant=False))
    recomputed.compile(backend="aot_eager")
    torch.testing.assert_close(gradients(recomputed, all_pairs), gradients(plain, all_pairs))
    torch.testing.assert_close(recomputed.module.block[0].alpha, plain.module.block[0].alpha)  # type: ignore[union-attr, index]


@pytest.mark.usefixtures("nothing_compiled")
def test_a_compiled_block_of_a_net() -> None:
    plain, other = nets(Small)
    other.module.block.compile(backend="aot_eager")  # type: ignore[union-attr]
    torch.testing.assert_close(gradients(other, all_pairs), gradients(plain, all_pairs))
    other.module.run = partial(checkpoint, use_reentrant=False)  # type: ignore[assignment]
    with pytest.raises(LayerError, match=r"belongs to an AutoDIAL, .* or a checkpoint around compiled layers"):
        gradients(other, all_pairs)


def test_a_slice_point_of_ones_own() -> None:
    torch.manual_seed(0)
    body = convert_batchnorm(Body(), slice_point=5).double()
    other = copy.deepcopy(body)
    other.run = partial(checkpoint, use_reentrant=False)
    batch = torch.cat(batches()[0])
    grads = [gradients(net, lambda net: net(batch).square().sum()) for net in (body, other)]
    torch.testing.assert_close(grads[1], grads[0])


def test_recomputed_statistics_count_as_often_as_those_of_batch_norm() -> None:
    """Once in the forward pass, once where it is recomputed."""

    class Within(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4))

        def forward(self, x: Tensor) -> Any:
            return checkpoint(self.net, x, use_reentrant=False)

    norm = Within()
    net = AutoDIAL(convert_batchnorm(copy.deepcopy(norm)))
    norm(torch.randn(8, 3)).sum().backward()
    source, target = net(torch.randn(4, 3), torch.randn(4, 3))
    (source + target).sum().backward()
    assert norm.net[1].num_batches_tracked == 2
    assert net.module.net[1].normalizer.item() == pytest.approx(0.9 * 0.9 + 0.9 + 1)  # type: ignore[union-attr, index]
