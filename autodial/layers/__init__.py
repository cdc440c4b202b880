"""Caffe's layers as torch modules, and the registry that finds them by Caffe type name.

Every module in this folder is imported, so that a layer in a new one is registered without being named here. What is
named is what users import from here.
"""

from __future__ import annotations

import importlib
import pkgutil

import autodial.system._torch  # noqa: F401
from autodial.layers.accuracy import Accuracy
from autodial.layers.activations import BNLL, ELU, Dropout, PReLU, ReLU, Sigmoid, Softmax, TanH
from autodial.layers.base import Layer, LayerContext, LayerError, Shape, layer_class, registry
from autodial.layers.batch_norm import BatchNorm
from autodial.layers.convolution import Convolution, Deconvolution
from autodial.layers.data import DummyData, Input
from autodial.layers.data_sources import DataLayer, HDF5DataLayer, ImageDataLayer, MemoryDataLayer
from autodial.layers.dial import DomainAlignment
from autodial.layers.elementwise import AbsVal, Exp, Log, Power, Threshold
from autodial.layers.eltwise import Eltwise
from autodial.layers.embed import Embed
from autodial.layers.entropy_loss import EntropyLoss
from autodial.layers.hdf5_output import HDF5Output
from autodial.layers.inner_product import InnerProduct
from autodial.layers.loss import HingeLoss, InfogainLoss, MultinomialLogisticLoss, SoftmaxWithLoss
from autodial.layers.lrn import LRN
from autodial.layers.mvn import MVN
from autodial.layers.pair_loss import ContrastiveLoss, EuclideanLoss, SigmoidCrossEntropyLoss
from autodial.layers.parameter import ParameterLayer
from autodial.layers.pooling import Pooling
from autodial.layers.python_layer import PythonLayer
from autodial.layers.reduction import ArgMax, Reduction
from autodial.layers.scale import Bias, Scale
from autodial.layers.shape import Concat, Crop, Flatten, Reshape, Silence, Slice, Split, Tile

__all__ = [
    "BNLL",
    "ELU",
    "LRN",
    "MVN",
    "AbsVal",
    "Accuracy",
    "ArgMax",
    "BatchNorm",
    "Bias",
    "Concat",
    "ContrastiveLoss",
    "Convolution",
    "Crop",
    "DataLayer",
    "Deconvolution",
    "DomainAlignment",
    "Dropout",
    "DummyData",
    "Eltwise",
    "Embed",
    "EntropyLoss",
    "EuclideanLoss",
    "Exp",
    "Flatten",
    "HDF5DataLayer",
    "HDF5Output",
    "HingeLoss",
    "ImageDataLayer",
    "InfogainLoss",
    "InnerProduct",
    "Input",
    "Layer",
    "LayerContext",
    "LayerError",
    "Log",
    "MemoryDataLayer",
    "MultinomialLogisticLoss",
    "PReLU",
    "ParameterLayer",
    "Pooling",
    "Power",
    "PythonLayer",
    "ReLU",
    "Reduction",
    "Reshape",
    "Scale",
    "Shape",
    "Sigmoid",
    "SigmoidCrossEntropyLoss",
    "Silence",
    "Slice",
    "Softmax",
    "SoftmaxWithLoss",
    "Split",
    "TanH",
    "Threshold",
    "Tile",
    "layer_class",
    "registry",
]

for _module in pkgutil.iter_modules(__path__):
    if not _module.name.startswith("alignment_"):  # ways to compute DomainAlignment, of which one needs Triton
        importlib.import_module(f"{__name__}.{_module.name}")
