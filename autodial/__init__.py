"""AutoDIAL: automatic domain alignment layers, faithful to the Caffe original, on PyTorch."""

import os
from importlib.metadata import version

# ONNX Runtime sends usage data to Microsoft unless it finds this when it is first imported (its Privacy.md).
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

DISTRIBUTION = "autodial-layers"
"""What pip calls this package; the distribution `autodial` on PyPI is another project's."""
__version__ = version(DISTRIBUTION)
