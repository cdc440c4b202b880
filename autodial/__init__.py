"""AutoDIAL: automatic domain alignment layers, faithful to the Caffe original, on PyTorch."""

from importlib.metadata import version

__version__ = version("autodial")
