"""AutoDIAL: automatic domain alignment layers, faithful to the Caffe original, on PyTorch."""

from importlib.metadata import version

DISTRIBUTION = "autodial-layers"
"""What pip calls this package; the distribution `autodial` on PyPI is another project's."""
__version__ = version(DISTRIBUTION)
