"""LRN against torch's and against numerical gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from autodial.layers import LRN, LayerError


@pytest.mark.parametrize(("channels", "size"), [(8, 5), (3, 7), (1, 3), (96, 5)])
def test_across_channels_is_torchs(channels: int, size: int) -> None:
    x = torch.randn(2, channels, 4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3
    layer = LRN(channels, size, alpha=0.3, beta=0.75, k=2).double()
    torch.testing.assert_close(layer(x), F.local_response_norm(x, size, 0.3, 0.75, 2))


def test_within_channel_takes_k_as_one() -> None:
    x = torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mean = F.avg_pool2d(x * x, 3, 1, padding=1)
    layer = LRN(3, 3, alpha=0.5, beta=0.6, k=7, within_channel=True).double()
    torch.testing.assert_close(layer(x), x / (1 + 0.5 * mean) ** 0.6)


@pytest.mark.parametrize("within", [False, True])
def test_gradient(within: bool) -> None:
    x = torch.randn(2, 4, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(LRN(4, 3, alpha=0.5, k=1.5, within_channel=within).double(), x)


def test_no_state() -> None:
    assert LRN(4).state_dict() == {}


def test_refused(build) -> None:
    with pytest.raises(LayerError, match="local_size must be odd, not 4"):
        build('type: "LRN" lrn_param { local_size: 4 }', (2, 3, 4, 4))
    with pytest.raises(LayerError, match="4 axes"):
        build('type: "LRN"', (2, 3))
    with pytest.raises(LayerError, match="has 5 channels, the layer expects 3"):
        LRN(3).top_shapes([(2, 5, 4, 4)])
