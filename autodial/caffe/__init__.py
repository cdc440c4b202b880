"""What a pycaffe script knows: `import autodial.caffe as caffe`."""

from autodial.caffe.net import Net
from autodial.caffe.solver import SGDSolver, get_solver
from autodial.proto.messages import TEST, TRAIN

__all__ = ["TEST", "TRAIN", "Net", "SGDSolver", "get_solver"]
