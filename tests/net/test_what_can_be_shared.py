"""Which nets several processes may train, and what the refusal of the others says."""

from __future__ import annotations

import pytest

from autodial.errors import InputError
from autodial.evaluation.timing import replace_missing_data
from autodial.net.net import Net
from autodial.netparam.net_state import filter_net
from autodial.netparam.shipped import shipped_names, shipped_net
from autodial.proto import messages as pb
from autodial.proto import parse_net, read_net
from autodial.system.ranks import Ranks
from autodial.training.data_parallel import DataParallel, check_test_net

TWO = Ranks(0, 2, 0, 2)
X = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 6 dim: 4 } } }'
Y = 'layer { name: "y" type: "Input" top: "y" input_param { shape { dim: 4 dim: 4 } } }'
XY = X + Y + 'layer { name: "xy" type: "Concat" bottom: "x" bottom: "y" top: "xy" concat_param { axis: 0 } }'
LOSS = 'layer { name: "loss" type: "EntropyLoss" bottom: "x" top: "loss" }'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('bottom: "x" type: "Dial"', r"\(Dial\) splits the batch at row 3, inside the rows of one data.* 6 rows\)"),
        ('bottom: "xy" type: "Dial"', r"splits the batch at row 5, .*has 6 \+ 4 rows"),
        ('bottom: "x" type: "Slice" top: "z" slice_param { axis: 0 }', r"\(Slice\) splits the batch at row 3"),
        ('bottom: "x" type: "Softmax" softmax_param { axis: 0 }', "across the rows of the batch"),
        ('bottom: "x" type: "Softmax" softmax_param { axis: -2 }', "across the rows of the batch"),
        (
            'bottom: "x" type: "InnerProduct" inner_product_param { axis: 0 num_output: 2 }',
            "across the rows of the batch",
        ),
        ('bottom: "x" type: "Flatten" flatten_param { axis: 0 }', "across the rows of the batch"),
        ('bottom: "x" type: "Tile" tile_param { axis: 0 tiles: 2 }', "across the rows of the batch"),
        ('bottom: "x" type: "Scale" scale_param { axis: 0 num_axes: 2 }', "across the rows of the batch"),
        ('bottom: "x" type: "Reduction" reduction_param { operation: MEAN }', "across the rows of the batch"),
        (
            'bottom: "x" type: "Reshape" reshape_param { shape { dim: 6 dim: 2 dim: 2 } }',
            r"turns \(6, 4\) into \(6, 2, 2\)",
        ),
        ('bottom: "x" type: "Reshape" reshape_param { shape { dim: 12 dim: -1 } }', r"turns \(6, 4\) into \(12, 2\)"),
        ('bottom: "loss" type: "Power"', "computes with a loss or an accuracy"),
        ('type: "Parameter" parameter_param { shape { dim: 6 } }', "does not support training in several processes"),
        (
            'bottom: "x" bottom: "xx" type: "Eltwise"',
            r"rows come from different data layers, 6 rows and 4 \+ 2 rows",
        ),
        (
            'bottom: "x" bottom: "four" type: "Scale" scale_param { axis: 1 }',
            "belongs to the batch as a whole",
        ),
    ],
)  # fmt: skip
def test_what_is_refused(text: str, message: str) -> None:
    others = """
      layer { name: "four" type: "DummyData" top: "four" dummy_data_param { shape { dim: 4 } } }
      layer { name: "two" type: "DummyData" top: "two" dummy_data_param { shape { dim: 2 dim: 4 } } }
      layer { name: "xx" type: "Concat" bottom: "y" bottom: "two" top: "xx" concat_param { axis: 0 } }
    """
    net = Net(parse_net(XY + others + LOSS + f'layer {{ name: "odd" top: "odd" {text} }}'), pb.TRAIN)
    with pytest.raises(InputError, match=f'^layer "odd" .*{message}'):
        DataParallel(net, TWO)


@pytest.mark.parametrize(
    "text",
    [
        'bottom: "x" bottom: "xx" type: "MMDLoss"',
        'bottom: "x" bottom: "x" bottom: "x" bottom: "x" type: "JMMDLoss" jmmd_param { auto_sigma: true }',
        'bottom: "x" bottom: "xx" type: "CORALLoss"',
        'bottom: "x" bottom: "six" type: "MultiModalBatchNorm"',
    ],
)
def test_layers_of_the_family_that_look_at_the_whole_batch_are_refused(text: str) -> None:
    others = """
      layer { name: "six" type: "DummyData" top: "six" dummy_data_param { shape { dim: 6 } } }
      layer { name: "xx" type: "DummyData" top: "xx" dummy_data_param { shape { dim: 6 dim: 4 } } }
    """
    net = Net(parse_net(X + others + f'layer {{ name: "odd" top: "odd" {text} }}'), pb.TRAIN)
    kind = net.param.layer[-1].type
    message = rf'^layer "odd" \({kind}\) has a type that does not support training in several processes'
    with pytest.raises(InputError, match=message):
        DataParallel(net, TWO)


def test_a_batch_that_is_too_small() -> None:
    net = Net(parse_net(XY), pb.TRAIN)
    with pytest.raises(InputError, match=r'^layer "y" \(Input\) has a batch of 4, too small for 5 processes'):
        DataParallel(net, Ranks(4, 5, 4, 5))


@pytest.mark.parametrize(
    "text",
    [
        'bottom: "xy" type: "Dial" dial_param { slice_point: 6 }',
        'bottom: "xy" type: "Dial" dial_param { use_global_stats: true }',
        'bottom: "x" type: "Reshape" reshape_param { shape { dim: 0 dim: 2 dim: 2 } }',
        'bottom: "x" type: "Reshape" reshape_param { shape { dim: -1 dim: 2 dim: 2 } }',
        'bottom: "x" type: "Reshape" reshape_param { axis: 1 shape { dim: 2 dim: 2 } }',
        'bottom: "x" bottom: "six" type: "Scale" scale_param { axis: 0 }',
        'bottom: "x" type: "ArgMax"',
        'bottom: "xy" type: "Slice" top: "z" slice_param { axis: 1 slice_point: 1 }',
        'bottom: "xy" type: "Slice" top: "z" slice_param { axis: 0 slice_point: 6 }',
    ],
)
def test_what_is_not_refused(text: str) -> None:
    six = 'layer { name: "six" type: "DummyData" top: "six" dummy_data_param { shape { dim: 6 } } }'
    net = Net(parse_net(XY + six + LOSS + f'layer {{ name: "odd" top: "odd" {text} }}'), pb.TRAIN)
    DataParallel(net, TWO)
    assert net.layer("odd").shares is not None


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_nets_can_be_shared_out(name: str) -> None:
    message, _ = replace_missing_data(filter_net(read_net(shipped_net(name)), pb.TRAIN), None)
    for layer in message.layer:  # to fill large layers takes long
        for param in (layer.convolution_param, layer.inner_product_param):
            if param.HasField("weight_filler"):
                param.weight_filler.Clear()
    net = Net(message, pb.TRAIN)
    DataParallel(net, Ranks(1, 4, 1, 4))
    shared = {message.type for message in net.param.layer if net.layer(message.name).shares is not None}
    assert {"Dial", "EntropyLoss", "Slice", "SoftmaxWithLoss"}.issubset(shared)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (
            'type: "BatchNorm" bottom: "x" top: "z" batch_norm_param { use_global_stats: false }',
            "would change the stat",
        ),
        ('type: "Dial" bottom: "x" top: "z" dial_param { use_global_stats: false }', "would change the statistics"),
        (
            'type: "HDF5Output" bottom: "x" bottom: "x" hdf5_output_param { file_name: "o.h5" }',
            "to see every batch",
        ),
    ],
)
def test_test_nets_that_are_refused(layer: str, message: str) -> None:
    net = Net(parse_net(X + f'layer {{ name: "odd" {layer} }}'), pb.TEST)
    with pytest.raises(InputError, match=f'^layer "odd" .*{message}'):
        check_test_net(net)
