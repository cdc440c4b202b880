"""NVIDIA's Caffe (NVIDIA/caffe, from 0.15 on), with SSD and DetectNet."""

from __future__ import annotations

from autodial.proto.dialects import ssd
from autodial.proto.dialects.dialect import Dialect

DIALECT = Dialect(
    "nvcaffe",
    {
        **ssd.DIALECT.types,
        "detectnet_groundtruth_param": ("DetectNetTransformation",),
        "detectnet_augmentation_param": ("DetectNetTransformation",),
    },
    without_effect=frozenset(
        {
            "backward_math",
            "backward_type",
            "cache",
            "conv_algos_override",
            "cudnn_convolution_algo_seeker",
            "cudnn_math_override",
            "debug",
            "default_backward_math",
            "default_backward_type",
            "default_conv_algos_override",
            "default_cudnn_math_override",
            "default_forward_math",
            "default_forward_type",
            "engine",
            "forward_math",
            "forward_type",
            "parser_threads",
            "reduce_buckets",
            "solver_data_type",
            "store_blobs_in_old_format",
            "threads",
            "use_gpu_transform",
        }
    ),
)
