"""C3D (facebookarchive/C3D), versions 1.0 and 1.1; the numbers of its own fields are not the fork's."""

from __future__ import annotations

from autodial.proto.dialects.dialect import Dialect

DIALECT = Dialect(
    "c3d",
    {
        "convolution3d_param": ("Convolution3D",),
        "pooling3d_param": ("Pooling3D",),
    },
    v1_types={
        "CONVOLUTION3D": "Convolution3D",
        "POOLING3D": "Pooling3D",
    },
)
