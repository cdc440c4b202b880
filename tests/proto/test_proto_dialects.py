"""Files of Caffe's forks, written and read by protobuf with each fork's own numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from autodial.errors import InputError
from autodial.net.net import Net
from autodial.proto import messages as pb
from autodial.proto import parse_net, read_weights, write_weights

NET = """
    syntax = "proto2";
    package caffe;
    message BlobShape { repeated int64 dim = 1 [packed = true]; }
    message BlobProto { optional BlobShape shape = 7; repeated float data = 5 [packed = true]; }
    message NetParameter { optional string name = 1; repeated LayerParameter layer = 100; }
    message FillerParameter { optional string type = 1; optional float value = 2; }
    message LayerParameter {
      optional string name = 1;
      optional string type = 2;
      repeated string bottom = 3;
      repeated string top = 4;
      repeated BlobProto blobs = 7;
"""


@pytest.fixture
def fork(tmp_path: Path) -> Any:
    """A function from the fields of a fork's LayerParameter and its messages to the fork's NetParameter class."""
    protoc = pytest.importorskip("grpc_tools.protoc", reason="needs grpcio-tools")

    def compiled(fields: str, messages: str) -> Any:
        (tmp_path / "fork.proto").write_text(f"{NET} {fields} }} {messages}")
        target = tmp_path / "fork.desc"
        assert protoc.main(["protoc", f"-I{tmp_path}", f"--descriptor_set_out={target}", "fork.proto"]) == 0
        pool = descriptor_pool.DescriptorPool()
        (file,) = descriptor_pb2.FileDescriptorSet.FromString(target.read_bytes()).file
        pool.Add(file)
        return message_factory.GetMessageClass(pool.FindMessageTypeByName("caffe.NetParameter"))

    return compiled


# Type, fields of the fork's LayerParameter, its messages, the layer's parameters there, and the same in our text.
FORKS = {
    "swish": (
        "Swish",
        "optional SwishParameter swish_param = 147;",
        "message SwishParameter { optional float beta = 1; }",
        {"swish_param": {"beta": 1.5}},
        "swish_param { beta: 1.5 }",
    ),
    "xlearn": (
        "MMDLoss",
        "optional MMDParameter mmd_param = 147;",
        "message MMDParameter { optional uint32 kernel_num = 1; optional float kernel_mul = 2;"
        " optional bool fix_gamma = 3; }",
        {"mmd_param": {"kernel_num": 7, "kernel_mul": 2.0, "fix_gamma": True}},
        "mmd_param { kernel_num: 7 kernel_mul: 2 fix_gamma: true }",
    ),
    "latent domains": (
        "MultiModalBatchNorm",
        "optional MultiModalBatchNormParameter multimodal_batch_norm_param = 147;",
        "message MultiModalBatchNormParameter { optional bool use_global_stats = 1; optional float eps = 3; }",
        {"multimodal_batch_norm_param": {"use_global_stats": True, "eps": 0.25}},
        "multimodal_batch_norm_param { use_global_stats: true eps: 0.25 }",
    ),
    "autodial": (
        "Dial",
        "optional DialParameter dial_param = 147;",
        "message DialParameter { optional int32 slice_point = 4; optional FillerParameter weight_filler = 6; }",
        {"dial_param": {"slice_point": 3, "weight_filler": {"type": "constant", "value": 0.75}}},
        'dial_param { slice_point: 3 weight_filler { type: "constant" value: 0.75 } }',
    ),
    "grl": (
        "GradientScaler",
        "optional GradientScalerParameter gradient_scaler_param = 200;",
        "message GradientScalerParameter { optional float upper_bound = 2; optional float max_iter = 4; }",
        {"gradient_scaler_param": {"upper_bound": 0.5, "max_iter": 100.0}},
        "gradient_scaler_param { upper_bound: 0.5 max_iter: 100 }",
    ),
    "ssd": (
        "Normalize",
        "optional NormalizeParameter norm_param = 206;",
        "message NormalizeParameter { optional bool across_spatial = 1; optional FillerParameter scale_filler = 2;"
        " optional float eps = 4; }",
        {"norm_param": {"across_spatial": False, "scale_filler": {"value": 20.0}, "eps": 0.5}},
        "norm_param { across_spatial: false scale_filler { value: 20 } eps: 0.5 }",
    ),
    "parsenet": (
        "Normalize",
        "optional NormalizeParameter norm_param = 134;",
        "message NormalizeParameter { optional bool across_spatial = 1; optional bool fix_scale = 4;"
        " optional float eps = 5; }",
        {"norm_param": {"across_spatial": False, "fix_scale": False, "eps": 0.5}},
        "norm_param { across_spatial: false fix_scale: false eps: 0.5 }",
    ),
    "pspnet": (
        "Interp",
        "optional InterpParameter interp_param = 143;",
        "message InterpParameter { optional int32 zoom_factor = 3; optional int32 pad_beg = 5; }",
        {"interp_param": {"zoom_factor": 8, "pad_beg": -2}},
        "interp_param { zoom_factor: 8 pad_beg: -2 }",
    ),
    "segnet": (
        "Upsample",
        "optional UpsampleParameter upsample_param = 137;",
        "message UpsampleParameter { optional uint32 scale = 1; optional uint32 upsample_h = 6; }",
        {"upsample_param": {"scale": 2, "upsample_h": 45}},
        "upsample_param { scale: 2 upsample_h: 45 }",
    ),
    "rfcn": (
        "SmoothL1LossOHEM",
        "optional LossParameter loss_param = 101;",
        "message LossParameter {"
        " enum NormalizationMode { FULL = 0; VALID = 1; BATCH_SIZE = 2; PRE_FIXED = 3; NONE = 4; }"
        " optional NormalizationMode normalization = 3; optional float pre_fixed_normalizer = 4; }",
        {"loss_param": {"normalization": "PRE_FIXED", "pre_fixed_normalizer": 128.0}},
        "loss_param { normalization: PRE_FIXED pre_fixed_normalizer: 128 }",
    ),
    "rfcn without": (
        "SmoothL1LossOHEM",
        "optional LossParameter loss_param = 101;",
        "message LossParameter { enum NormalizationMode { FULL = 0; PRE_FIXED = 3; NONE = 4; }"
        " optional NormalizationMode normalization = 3; optional float pre_fixed_normalizer = 4; }",
        {"loss_param": {"normalization": "NONE", "pre_fixed_normalizer": 128.0}},
        "loss_param { normalization: NONE pre_fixed_normalizer: 128 }",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORKS)
def test_a_forks_caffemodel_is_read_and_written(name: str, fork: Any, tmp_path: Path) -> None:
    layer_type, fields, messages, params, text = FORKS[name]
    values = np.arange(6, dtype=np.float32)
    net = fork(fields, messages)(name="net")
    net.layer.add(
        name="a", type=layer_type, bottom=["x"], top=["y"], blobs=[{"shape": {"dim": [2, 3]}, "data": values}], **params
    )
    theirs = tmp_path / "theirs.caffemodel"
    theirs.write_bytes(net.SerializeToString())
    weights = read_weights(theirs)
    np.testing.assert_array_equal(weights.layers[0].blobs[0], values.reshape(2, 3))
    expected = parse_net(f'layer {{ name: "a" type: "{layer_type}" bottom: "x" top: "y" {text} }}').layer[0]
    assert weights.layers[0].param == expected
    write_weights(weights, tmp_path / "ours.caffemodel")
    again = type(net).FromString((tmp_path / "ours.caffemodel").read_bytes())
    if name != "grl":  # whose number Xlearn's, which knows the same fields, takes the place of
        assert again == net


def test_what_no_dialect_explains_is_kept(fork: Any, tmp_path: Path) -> None:
    net = fork("optional Strange strange_param = 147;", "message Strange { optional string weight_filler = 6; }")()
    net.layer.add(name="a", type="Swish", strange_param={"weight_filler": "\xff"})
    net.layer.add(name="b", type="Dial", strange_param={"weight_filler": "no filler"})
    (tmp_path / "a.caffemodel").write_bytes(net.SerializeToString())
    weights = read_weights(tmp_path / "a.caffemodel")
    assert [layer.param.HasField("dial_param") for layer in weights.layers] == [False, False]
    write_weights(weights, tmp_path / "b.caffemodel")
    assert type(net).FromString((tmp_path / "b.caffemodel").read_bytes()).layer[1] == net.layer[1]


def test_roundings_of_pooling_are_one_number_in_files_and_two_names_in_text(fork: Any, tmp_path: Path) -> None:
    text = """
        layer { name: "a" type: "Pooling" bottom: "x" top: "y" pooling_param { kernel_size: 2 ceil_mode: false } }
        layer { name: "b" type: "Pooling" bottom: "y" top: "z" pooling_param { kernel_size: 2 round_mode: FLOOR } }
    """
    net = parse_net(text)
    assert (net.layer[0].pooling_param.ceil_mode, net.layer[1].pooling_param.round_mode) == (
        False,
        pb.PoolingParameter.FLOOR,
    )


def test_a_field_of_a_fork_that_a_layer_does_not_compute_is_refused_when_the_net_is_built() -> None:
    net = parse_net(
        """
        layer { name: "data" type: "Input" top: "x" input_param { shape { dim: [1, 1, 4, 4] } } }
        layer { name: "a" type: "Softmax" bottom: "x" top: "y" loss_param { normalization: PRE_FIXED } }
        """
    )
    with pytest.raises(
        InputError, match=r'layer "a" .*loss_param\.normalization: PRE_FIXED, which only other versions'
    ):
        Net(net, pb.TEST)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("biass_param", "bias_param"),
        ("convolutoin_param", "convolution_param"),
        ("convolutional_param", None),
        ("innerproduct_param", "inner_product_param"),
        ("Pooling_param", "pooling_param"),
        ("poolin_param", "pooling_param"),
        ("selu_param", None),
        ("relu1_param", None),
        ("mvm_param", None),
        ("gpooling_param", "pooling_param"),
        ("psroi_align_param", None),
        ("scale2_param", None),
    ],
)
def test_only_slips_of_the_pen_are_corrected(wrong: str, right: str | None) -> None:
    with pytest.raises(InputError) as caught:
        parse_net(f'layer {{ name: "a" {wrong} {{ }} }}')
    assert (f'did you mean "{right}"' in str(caught.value)) == (right is not None)
    assert right or "correct its name" in str(caught.value)
