"""Latent domain discovery (mancinimassimiliano/latent_domains_DA)."""

from __future__ import annotations

from autodial.proto.dialects.dialect import Dialect

DIALECT = Dialect(
    "latent_domains",
    {
        "multimodal_batch_norm_param": ("MultiModalBatchNorm",),
    },
)
