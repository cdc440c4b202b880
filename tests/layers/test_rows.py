"""BatchReindex, Filter and SPP, against indexing and torch's pooling."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from autodial.layers.base import LayerError


def test_batch_reindex(build) -> None:
    layer = build('type: "BatchReindex"', (4, 3, 2), (6,))
    x = torch.arange(24.0).view(4, 3, 2).requires_grad_()
    top = layer(x, torch.tensor([3.0, 0, 0, 1.9, 3, 0]))
    assert torch.equal(top, x[[3, 0, 0, 1, 3, 0]])
    top.sum().backward()
    assert x.grad[:, 0, 0].tolist() == [3, 1, 0, 2]
    with pytest.raises(LayerError, match="index 4 is out of range for 4 rows"):
        layer(x, torch.tensor([4.0]))
    with pytest.raises(LayerError, match="index -1 is out of range"):
        layer(x, torch.tensor([-1.0]))
    with pytest.raises(LayerError, match="rows and their indices"):
        layer.top_shapes([(4, 3), (6, 1)])


def test_filter(build) -> None:
    layer = build('type: "Filter"', (4, 3), (4, 2, 2), (4, 1), tops=2)
    x, y = torch.randn(4, 3, requires_grad=True), torch.randn(4, 2, 2)
    tops = layer(x, y, torch.tensor([[0.0], [1], [0], [-2]]))
    assert torch.equal(tops[0], x[[1, 3]]) and torch.equal(tops[1], y[[1, 3]])
    tops[0].sum().backward()
    assert x.grad[:, 0].tolist() == [0, 1, 0, 1]
    assert [top.shape for top in layer(x, y, torch.zeros(4))] == [(0, 3), (0, 2, 2)]
    for bottoms, message in {
        ((4, 3), (4, 2), (4, 2)): "one value per row",
        ((4, 3), (3, 2), (4,)): "must have the 4 rows",
    }.items():
        with pytest.raises(LayerError, match=message):
            layer.top_shapes(bottoms)
    with pytest.raises(LayerError, match="a top for each bottom but the last"):
        build('type: "Filter"', (4, 3), (4,), tops=2)


@pytest.mark.parametrize(("method", "pool"), [("MAX", F.max_pool2d), ("AVE", F.avg_pool2d)])
def test_spp_of_bins_that_divide_the_image(build, method: str, pool) -> None:
    layer = build(f'type: "SPP" spp_param {{ pyramid_height: 3 pool: {method} }}', (2, 3, 8, 12))
    for size in ((8, 12), (4, 8)):  # of either size: the bins follow the image
        x = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0))
        want = [pool(x, (size[0] // bins, size[1] // bins)).flatten(1) for bins in (1, 2, 4)]
        torch.testing.assert_close(layer(x), torch.cat(want, 1))
        assert layer.top_shapes([tuple(x.shape)]) == [(2, 63)]


def test_spp_of_one_level_keeps_the_axes(build) -> None:
    layer = build('type: "SPP" spp_param { pyramid_height: 1 }', (2, 3, 5, 4))
    x = torch.randn(2, 3, 5, 4)
    assert torch.equal(layer(x), x.amax((2, 3), keepdim=True))
    assert layer.top_shapes([(2, 3, 5, 4)]) == [(2, 3, 1, 1)]


def test_stochastic_spp_depends_on_its_seed(build) -> None:
    layer = build('type: "SPP" spp_param { pyramid_height: 2 pool: STOCHASTIC }', (20, 3, 8, 8))
    x = torch.rand(20, 3, 8, 8)
    layer.reseed(1)
    top = layer(x)
    assert torch.isin(top, x).all()
    layer.reseed(1)
    assert torch.equal(layer(x), top)
    layer.reseed(2)
    assert not torch.equal(layer(x), top)


@pytest.mark.parametrize(
    ("height", "message"), [(0, "pyramid_height must be"), (40, "pyramid_height must be"), (4, "makes 4 x 4 bins, too")]
)
def test_spp_refuses(build, height: int, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        build(f'type: "SPP" spp_param {{ pyramid_height: {height} }}', (2, 3, 5, 5))
