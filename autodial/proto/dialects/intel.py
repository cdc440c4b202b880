"""Intel's Caffe (intel/caffe), which contains SSD."""

from __future__ import annotations

from autodial.proto.dialects import ssd
from autodial.proto.dialects.dialect import Dialect

DIALECT = Dialect(
    "intel",
    {
        **ssd.DIALECT.types,
        "split_param": ("Split",),
        "roi_pooling_param": ("ROIPooling",),
    },
    without_effect=frozenset({"engine", "multinode"}),
)
