"""Which layer types there are, and what is said about those that there aren't."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import autodial.layers
from autodial.errors import InputError
from autodial.layers import Layer, layer_class, registry
from autodial.layers.base import NOT_SUPPORTED
from autodial.layers.shares import Rows
from autodial.netparam import layer_types


class Facts(NamedTuple):
    """What a class must say of itself; autodial.layers.base explains each."""

    rows: Rows
    reads_scores: bool = False
    reads_labels: bool = False
    per_channel: bool = False
    backward_reads_bottoms: bool = False
    """Whether its Backward_cpu in Caffe calls data() of its bottoms, but for labels."""


FACTS = {
    "AbsVal": Facts(Rows.INDEPENDENT, backward_reads_bottoms=True),
    "Accum": Facts(Rows.INDEPENDENT),
    "Accuracy": Facts(Rows.SUMMED, reads_scores=True, reads_labels=True),
    "ArgMax": Facts(Rows.INDEPENDENT),
    "Axpy": Facts(Rows.INDEPENDENT, backward_reads_bottoms=True),
    "AxpyFast": Facts(Rows.INDEPENDENT, backward_reads_bottoms=True),
    "BN": Facts(Rows.NONE, per_channel=True),
    "BNLL": Facts(Rows.INDEPENDENT, backward_reads_bottoms=True),
    "BReLU": Facts(Rows.INDEPENDENT, backward_reads_bottoms=True),
    "BatchNorm": Facts(Rows.STATISTICS, per_channel=True),
    "BatchReindex": Facts(Rows.NONE, backward_reads_bottoms=True),
    "Bias": Facts(Rows.INDEPENDENT, per_channel=True),
    "CORALLoss": Facts(Rows.NONE, backward_reads_bottoms=True),
    "ChannelNorm": Facts(Rows.INDEPENDENT, backward_reads_bottoms=True),
    "Clip": Facts(Rows.INDEPENDENT, backward_reads_bottoms=True),
    "Concat": Facts(Rows.INDEPENDENT),
    "ContinuationIndicator": Facts(Rows.NONE),
    "ContrastiveLoss": Facts(Rows.SUMMED),
    "ConvLSTM": Facts(Rows.NONE),
    "Convolution": Facts(Rows.INDEPENDENT, backward_reads_bottoms=True),
    "Convolution3D": Facts(Rows.INDEPENDENT, backward_reads_bottoms=True),
    "ConvolutionDepthwise": Facts(Rows.INDEPENDENT, per_channel=True, backward_reads_bottoms=True),
    "Correlation": Facts(Rows.INDEPENDENT),
    "Correlation1D": Facts(Rows.INDEPENDENT),
    "Crop": Facts(Rows.INDEPENDENT),
    "CropCenter": Facts(Rows.INDEPENDENT),
    "Data": Facts(Rows.MADE),
    "DataAugmentation": Facts(Rows.INDEPENDENT),
    "Deconvolution": Facts(Rows.INDEPENDENT, backward_reads_bottoms=True),
    "DepthwiseConvolution": Facts(Rows.INDEPENDENT, backward_reads_bottoms=True),
    "DetectionOutput": Facts(Rows.NONE),
    "Dial": Facts(Rows.STATISTICS, per_channel=True),
    "Downsample": Facts(Rows.INDEPENDENT),
    "Dropout": Facts(Rows.INDEPENDENT),
    "DummyData": Facts(Rows.MADE),
    "ELU": Facts(Rows.INDEPENDENT, backward_reads_bottoms=True),
    "Eltwise": Facts(Rows.INDEPENDENT),  # of a product it reads them
    "Embed": Facts(Rows.INDEPENDENT, backward_reads_bottoms=True),
    "EntropyLoss": Facts(Rows.SUMMED, reads_scores=True),
    "EuclideanLoss": Facts(Rows.SUMMED),
    "Exp": Facts(Rows.INDEPENDENT),
    "Filter": Facts(Rows.NONE),
    "Flatten": Facts(Rows.INDEPENDENT),
    "FlowWarp": Facts(Rows.INDEPENDENT, backward_reads_bottoms=True),
    "GradientScaler": Facts(Rows.INDEPENDENT),
    "GroupNorm": Facts(Rows.INDEPENDENT, per_channel=True),
    "HDF5Data": Facts(Rows.MADE),
    "HDF5Output": Facts(Rows.ALL_IN_ONE_PROCESS),
    "HingeLoss": Facts(Rows.SUMMED, reads_scores=True),
    "Im2col": Facts(Rows.INDEPENDENT),
    "ImageData": Facts(Rows.MADE),
    "InfogainLoss": Facts(Rows.SUMMED_FIRST, reads_scores=True, reads_labels=True),
    "InnerProduct": Facts(Rows.INDEPENDENT, backward_reads_bottoms=True),
    "Input": Facts(Rows.MADE),
    "JMMDLoss": Facts(Rows.NONE, backward_reads_bottoms=True),
    "Interp": Facts(Rows.INDEPENDENT),
    "LRN": Facts(Rows.INDEPENDENT, backward_reads_bottoms=True),
    "LSTM": Facts(Rows.NONE),
    "Lstm": Facts(Rows.NONE),
    "LSTMUnit": Facts(Rows.NONE, backward_reads_bottoms=True),
    "Log": Facts(Rows.INDEPENDENT, backward_reads_bottoms=True),
    "MMDLoss": Facts(Rows.NONE, backward_reads_bottoms=True),
    "MVN": Facts(Rows.INDEPENDENT),
    "Mean": Facts(Rows.INDEPENDENT),
    "MemoryData": Facts(Rows.MADE),
    "MultiModalBatchNorm": Facts(Rows.NONE, per_channel=True),
    "MultinomialLogisticLoss": Facts(Rows.SUMMED, reads_scores=True, backward_reads_bottoms=True),
    "OuterProduct": Facts(Rows.INDEPENDENT, backward_reads_bottoms=True),
    "NegReLU": Facts(Rows.INDEPENDENT, backward_reads_bottoms=True),
    "Normalize": Facts(Rows.INDEPENDENT, per_channel=True, backward_reads_bottoms=True),
    "OutputDecay": Facts(Rows.INDEPENDENT, backward_reads_bottoms=True),
    "PReLU": Facts(Rows.INDEPENDENT, per_channel=True, backward_reads_bottoms=True),
    "PSROIPooling": Facts(Rows.NONE, backward_reads_bottoms=True),
    "Parameter": Facts(Rows.NONE),
    "Permute": Facts(Rows.INDEPENDENT),
    "Pooling": Facts(Rows.INDEPENDENT),
    "Pooling3D": Facts(Rows.INDEPENDENT),
    "PoolingND": Facts(Rows.INDEPENDENT),
    "Power": Facts(Rows.INDEPENDENT, backward_reads_bottoms=True),
    "PriorBox": Facts(Rows.NONE),
    "Proposal": Facts(Rows.NONE),
    "Python": Facts(Rows.ALL_IN_ONE_PROCESS),
    "RNN": Facts(Rows.NONE),
    "ROIPooling": Facts(Rows.NONE, backward_reads_bottoms=True),
    "ReLU": Facts(Rows.INDEPENDENT, backward_reads_bottoms=True),
    "ReLU6": Facts(Rows.INDEPENDENT, backward_reads_bottoms=True),
    "Reduction": Facts(Rows.INDEPENDENT, backward_reads_bottoms=True),
    "Reorg": Facts(Rows.INDEPENDENT),
    "Resample": Facts(Rows.INDEPENDENT),
    "Reshape": Facts(Rows.INDEPENDENT),
    "Reverse": Facts(Rows.INDEPENDENT),
    "SPP": Facts(Rows.INDEPENDENT),
    "Scale": Facts(Rows.INDEPENDENT, per_channel=True, backward_reads_bottoms=True),
    "ShuffleChannel": Facts(Rows.INDEPENDENT),
    "Sigmoid": Facts(Rows.INDEPENDENT),
    "SigmoidCrossEntropyLoss": Facts(Rows.SUMMED),
    "Silence": Facts(Rows.PASSED_ON),
    "Slice": Facts(Rows.INDEPENDENT),
    "SmoothL1Loss": Facts(Rows.SUMMED_FIRST, backward_reads_bottoms=True),
    "SmoothL1LossOHEM": Facts(Rows.SUMMED_FIRST, backward_reads_bottoms=True),
    "Softmax": Facts(Rows.INDEPENDENT, reads_scores=True),
    "SoftmaxWithLoss": Facts(Rows.SUMMED_FIRST, reads_scores=True, reads_labels=True),
    "Split": Facts(Rows.PASSED_ON),
    "Swish": Facts(Rows.INDEPENDENT, backward_reads_bottoms=True),
    "TanH": Facts(Rows.INDEPENDENT),
    "Threshold": Facts(Rows.INDEPENDENT),
    "Tile": Facts(Rows.INDEPENDENT),
    "Transpose": Facts(Rows.INDEPENDENT),
    "UnPooling": Facts(Rows.INDEPENDENT, backward_reads_bottoms=True),
    "Unpooling": Facts(Rows.INDEPENDENT, backward_reads_bottoms=True),
    "Upsample": Facts(Rows.INDEPENDENT, backward_reads_bottoms=True),
    "YoloDetectionOutput": Facts(Rows.NONE),
    "Yolov3DetectionOutput": Facts(Rows.NONE),
}


@pytest.mark.parametrize("name", sorted(registry))
def test_a_class_says_what_must_be_known_of_it(name: str) -> None:
    assert registry[name].rows is not None, f"{name}: state `rows`, what it does with the rows of its batch"
    assert name in FACTS, f"{name}: add its line to FACTS, which asks for what Caffe's layer does, and state the same"
    assert Facts(*(getattr(registry[name], field) for field in Facts._fields)) == FACTS[name]


def _said(fact: str) -> set[str]:
    return {name for name, cls in registry.items() if getattr(cls, fact)}


def test_code_without_torch_knows_the_same() -> None:
    place = "autodial/netparam/layer_types.py must list the types whose classes say so"
    no_images = {name for name, cls in registry.items() if cls.bottoms == (0, 0) and not cls.is_data}
    assert _said("reads_scores") == layer_types.READS_SCORES, place
    assert _said("per_channel") == layer_types.PER_CHANNEL, place
    assert no_images == layer_types.NO_IMAGES, place
    assert {name for name, cls in registry.items() if cls.blobs is not Layer.blobs} == layer_types.PARAMETRIZED, place


def test_a_class_knows_its_type() -> None:
    assert all(cls.type_name == name for name, cls in registry.items())
    assert layer_class("Parameter").type_name == "Parameter"


@pytest.mark.parametrize("name", ["Recurrent", "ROIAlign", "WindowData"])
def test_types_that_are_left_out_come_with_a_way_around(name: str) -> None:
    with pytest.raises(InputError, match=f'layer type "{name}" is not supported: '):
        layer_class(name)


def test_no_type_is_both() -> None:
    assert not registry.keys() & NOT_SUPPORTED.keys()


def test_an_unknown_type_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r'"Convolutoin" is not supported; docs/caffe.md lists'):
        layer_class("Convolutoin")


NEW_LAYER = """
from autodial.layers.elementwise import Elementwise
from autodial.layers.base import register

@register("Double")
class Double(Elementwise):
    def forward(self, bottom):
        return 2 * bottom
"""

WITH_NEW_LAYER = """
import sys
from importlib.util import module_from_spec, spec_from_file_location

spec = spec_from_file_location("autodial.layers", "layers/__init__.py", submodule_search_locations=["layers"])
sys.modules["autodial.layers"] = layers = module_from_spec(spec)
spec.loader.exec_module(layers)
print(layers.layer_class("Double").type_name, "autodial.layers.alignment_triton" in sys.modules)
"""


def test_a_layer_in_a_new_module_is_found(tmp_path: Path) -> None:
    shutil.copytree(Path(autodial.layers.__file__).parent, tmp_path / "layers")
    (tmp_path / "layers" / "double.py").write_text(NEW_LAYER)
    command = [sys.executable, "-c", WITH_NEW_LAYER]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "Double False\n", "")
