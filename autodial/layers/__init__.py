"""Caffe's layers as torch modules, and the registry that finds them by Caffe type name."""

from __future__ import annotations

from autodial.layers.accuracy import Accuracy
from autodial.layers.activations import Dropout, Power, ReLU, Softmax
from autodial.layers.base import Layer, LayerContext, LayerError, Shape, layer_class, registry
from autodial.layers.batch_norm import BatchNorm
from autodial.layers.convolution import Convolution
from autodial.layers.data import DummyData, Input
from autodial.layers.dial import DomainAlignment
from autodial.layers.eltwise import Eltwise
from autodial.layers.entropy_loss import EntropyLoss
from autodial.layers.image_data import ImageDataLayer
from autodial.layers.inner_product import InnerProduct
from autodial.layers.loss import SoftmaxWithLoss
from autodial.layers.lrn import LRN
from autodial.layers.pooling import Pooling
from autodial.layers.scale import Scale
from autodial.layers.shape import Concat, Crop, Flatten, Silence, Slice, Split

__all__ = [
    "LRN",
    "Accuracy",
    "BatchNorm",
    "Concat",
    "Convolution",
    "Crop",
    "DomainAlignment",
    "Dropout",
    "DummyData",
    "Eltwise",
    "EntropyLoss",
    "Flatten",
    "ImageDataLayer",
    "InnerProduct",
    "Input",
    "Layer",
    "LayerContext",
    "LayerError",
    "Pooling",
    "Power",
    "ReLU",
    "Scale",
    "Shape",
    "Silence",
    "Slice",
    "Softmax",
    "SoftmaxWithLoss",
    "Split",
    "layer_class",
    "registry",
]
