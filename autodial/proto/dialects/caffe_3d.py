"""3D-Caffe (yulequan/3D-Caffe), for nets that segment volumes."""

from __future__ import annotations

from autodial.proto.dialects.dialect import Dialect

DIALECT = Dialect("caffe_3d", {"pooling_nd_param": ("PoolingND",)})
