"""Group normalization (blankWorld/GroupNorm-caffe, niezhongliang/GroupNormalization-caffe, and hujie's)."""

from __future__ import annotations

from autodial.proto.dialects.dialect import Dialect

DIALECT = Dialect("group_norm", {"group_norm_param": ("GroupNorm",)})
