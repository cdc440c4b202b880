"""PSPNet, on top of DeepLab (hszhao/PSPNet)."""

from __future__ import annotations

from .dialect import Dialect

DIALECT = Dialect(
    "pspnet",
    {
        "interp_param": ("Interp",),
    },
)
