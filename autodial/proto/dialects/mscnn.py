"""MS-CNN (zhaoweicai/mscnn), but for its own layer types."""

from __future__ import annotations

from autodial.proto.dialects.dialect import Dialect

DIALECT = Dialect(
    "mscnn",
    {
        "roi_pooling_param": ("ROIPooling",),
    },
)
