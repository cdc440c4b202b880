"""OpenCV's reader of Caffe nets (opencv/opencv), on top of SSD."""

from __future__ import annotations

from autodial.proto.dialects.dialect import Dialect

DIALECT = Dialect("opencv", {})
