"""PSPNet, and DeepLab's second version within it (hszhao/PSPNet)."""

from __future__ import annotations

from autodial.proto.dialects.dialect import Dialect

DIALECT = Dialect(
    "pspnet",
    {
        "adaptive_bias_channel_param": ("AdaptiveBiasChannel",),
        "bias_channel_param": ("BiasChannel",),
        "bn_param": ("BN",),
        "dense_crf_param": ("DenseCRF",),
        "domain_transform_param": ("DomainTransform",),
        "interp_param": ("Interp",),
        "mat_read_param": ("MatRead",),
        "mat_write_param": ("MatWrite",),
        "seg_accuracy_param": ("SegAccuracy",),
        "unique_label_param": ("UniqueLabel",),
    },
)
