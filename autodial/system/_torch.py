"""Imported first where PyTorch is needed: if it is missing, the error says how to install it."""

from __future__ import annotations

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "training, autodial.caffe and autodial.layers need PyTorch, which is not installed: "
        "pip install '.[train]' in AutoDIAL's checkout brings it",
        name="torch",
    ) from None
