"""What the domain alignment layer is timed against: itself as autograd differentiates it, and batch normalization."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from autodial.layers import DomainAlignment


class PlainAlignment(DomainAlignment):
    """DomainAlignment's training pass step by step: (N, C, ...) -> the same shape."""

    def forward(self, x: Tensor) -> Tensor:
        slice_point = x.shape[0] // 2 if self.slice_point is None else self.slice_point
        axes = [0, *range(2, x.dim())]
        rows = (1, -1, *[1] * (x.dim() - 2))
        with torch.no_grad():
            self.alpha.clamp_(0.5, 1)
        source, target = x[:slice_point], x[slice_point:]
        means = [half.mean(axes) for half in (source, target)]
        normalized, mixed = [], []
        for half, share in ((source, self.alpha), (target, 1 - self.alpha)):
            mean = share * means[0] + (1 - share) * means[1]
            spread = [(part - mean.view(rows)).square().mean(axes) for part in (source, target)]
            var = share * spread[0] + (1 - share) * spread[1]
            normalized.append((half - mean.view(rows)) / (var.view(rows) + self.eps).sqrt())
            mixed.append((mean, var))
        mean, var = (torch.stack(moments).detach() for moments in zip(*mixed, strict=True))
        self._store(mean, var, x.numel() // self.num_features)
        return torch.cat(normalized)


class BatchNormalization(DomainAlignment):
    """torch's batch normalization of both domains together, in the layer's place: (N, C, ...) -> the same shape."""

    def forward(self, x: Tensor) -> Tensor:
        momentum = 1 - self.moving_average_fraction
        return F.batch_norm(x, self.mean[0], self.variance[0], training=True, momentum=momentum, eps=self.eps)
