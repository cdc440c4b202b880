"""Files of Caffe's forks, written and read by protobuf with each fork's own numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from originals import shared_files

from autodial.errors import InputError
from autodial.net.net import Net
from autodial.proto import (
    LayerWeights,
    Weights,
    fork_fields,
    parse_net,
    parse_solver,
    read_net,
    read_solver,
    read_weights,
    to_text,
    write_weights,
)
from autodial.proto import messages as pb

BLOB = "message BlobProto { optional BlobShape shape = 7; repeated float data = 5 [packed = true]; }"
NET = """
    syntax = "proto2";
    package caffe;
    message BlobShape { repeated int64 dim = 1 [packed = true]; }
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

    def compiled(fields: str, messages: str, blob: str = BLOB) -> Any:
        (tmp_path / "fork.proto").write_text(f"{NET} {fields} }} {messages} {blob}")
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
    "conv lstm": (
        "ConvLSTM",
        "repeated LSTMConvolutionParameter lstm_conv_param = 150; optional LSTMDebugParameter lstm_debug_param = 151;"
        " optional RecurrentParameter recurrent_param = 146;",
        "message LSTMConvolutionParameter { optional uint32 num_output = 1; optional string type = 19; }"
        " message LSTMDebugParameter { optional bool ignore_x = 5; }"
        " message RecurrentParameter { optional bool expose_hidden = 5; }",
        {
            "lstm_conv_param": [{"num_output": 3, "type": "input"}, {"num_output": 3, "type": "hidden"}],
            "lstm_debug_param": {"ignore_x": True},
            "recurrent_param": {"expose_hidden": True},
        },
        'lstm_conv_param { num_output: 3 type: "input" } lstm_conv_param { num_output: 3 type: "hidden" } '
        "lstm_debug_param { ignore_x: true } recurrent_param { expose_hidden: true }",
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
    "grl data": (
        "Data",
        "optional DataParameter data_param = 107; optional GradientScalerParameter gradient_scaler_param = 200;",
        "message DataParameter { enum CURSOR_TYPE { ORDINARY = 0; SHUFFLING = 1; } optional string source = 1;"
        " optional CURSOR_TYPE cursor = 10; }"
        " message GradientScalerParameter { optional float upper_bound = 2; optional float max_iter = 4; }",
        {"data_param": {"source": "lmdb", "cursor": "SHUFFLING"}},
        'data_param { source: "lmdb" cursor: SHUFFLING }',
    ),
    "segnet batch normalization": (
        "BN",
        "optional BNParameter bn_param = 45;",
        "message BNParameter { enum BNMode { LEARN = 0; INFERENCE = 1; } optional FillerParameter scale_filler = 1;"
        " optional FillerParameter shift_filler = 2; optional BNMode bn_mode = 3; }",
        {"bn_param": {"scale_filler": {"value": 1.0}, "shift_filler": {"value": 0.25}, "bn_mode": "INFERENCE"}},
        "bn_param { scale_filler { value: 1 } shift_filler { value: 0.25 } bn_mode: INFERENCE }",
    ),
    "pspnet batch normalization": (
        "BN",
        "optional BNParameter bn_param = 152;",
        "message BNParameter { optional FillerParameter slope_filler = 1; optional float momentum = 3;"
        " optional float eps = 4; optional bool frozen = 5; }",
        {"bn_param": {"slope_filler": {"value": 1.0}, "momentum": 0.75, "eps": 0.5, "frozen": True}},
        "bn_param { slope_filler { value: 1 } momentum: 0.75 eps: 0.5 frozen: true }",
    ),
    "tsn": (
        "Scale",
        "optional ScaleParameter scale_param = 160;",
        "message ScaleParameter { optional int32 axis = 1; optional bool bias_term = 4; }",
        {"scale_param": {"axis": 2, "bias_term": True}},
        "scale_param { axis: 2 bias_term: true }",
    ),
    "nvidia": (
        "Data",
        "optional TransformationParameter transform_param = 100; optional Type forward_type = 145;",
        "enum Type { DOUBLE = 0; FLOAT = 1; FLOAT16 = 2; } message TransformationParameter { optional uint32"
        " crop_size = 3;"
        " optional uint32 img_rand_resize_lower = 10; optional bool use_gpu_transform = 8; }",
        {"transform_param": {"crop_size": 3, "img_rand_resize_lower": 256}, "forward_type": "FLOAT16"},
        "transform_param { crop_size: 3 img_rand_resize_lower: 256 } forward_type: FLOAT16",
    ),
    "ssd data": (
        "AnnotatedData",
        "optional TransformationParameter transform_param = 100;"
        " optional AnnotatedDataParameter annotated_data_param = 200;",
        "message EmitConstraint { optional int32 emit_type = 1; } message BatchSampler { optional uint32 max_sample"
        " = 4; }"
        " message TransformationParameter { optional EmitConstraint emit_constraint = 10; optional uint32 crop_h ="
        " 11; }"
        " message AnnotatedDataParameter { repeated BatchSampler batch_sampler = 1; optional string label_map_file ="
        " 2; }",
        {
            "transform_param": {"emit_constraint": {"emit_type": 1}, "crop_h": 5},
            "annotated_data_param": {"batch_sampler": [{"max_sample": 1}, {}], "label_map_file": "labels"},
        },
        "transform_param { emit_constraint { emit_type: MIN_OVERLAP } crop_h: 5 }"
        ' annotated_data_param { batch_sampler { max_sample: 1 } batch_sampler {} label_map_file: "labels" }',
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORKS)
def test_a_forks_caffemodel_is_read_and_written(name: str, fork: Any, tmp_path: Path) -> None:
    layer_type, fields, messages, params, text = FORKS[name]
    values = np.arange(6, dtype=np.float32)
    net = fork(fields, messages)(name="net")
    if name == "grl data":  # which only the rest of the net tells from Caffe's prefetch
        net.layer.add(name="grl", type="GradientScaler", gradient_scaler_param={"upper_bound": 0.5})
    net.layer.add(
        name="a", type=layer_type, bottom=["x"], top=["y"], blobs=[{"shape": {"dim": [2, 3]}, "data": values}], **params
    )
    theirs = tmp_path / "theirs.caffemodel"
    theirs.write_bytes(net.SerializeToString())
    weights = read_weights(theirs)
    np.testing.assert_array_equal(weights.layers[-1].blobs[0], values.reshape(2, 3))
    expected = parse_net(f'layer {{ name: "a" type: "{layer_type}" bottom: "x" top: "y" {text} }}').layer[0]
    assert weights.layers[-1].param == expected
    write_weights(weights, tmp_path / "ours.caffemodel")
    again = type(net).FromString((tmp_path / "ours.caffemodel").read_bytes())
    if name not in ("grl", "tsn"):  # what Xlearn or Caffe has, too, is written in its numbers
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
    net = parse_net(
        """
        layer { name: "a" type: "Pooling" bottom: "x" top: "y" pooling_param { kernel_size: 2 ceil_mode: false } }
        layer { name: "b" type: "Pooling" bottom: "y" top: "z" pooling_param { kernel_size: 2 round_mode: FLOOR } }
        """
    )
    ours = tmp_path / "a.caffemodel"
    write_weights(Weights("", [LayerWeights(layer, []) for layer in net.layer]), ours)
    theirs = fork(
        "optional PoolingParameter pooling_param = 121;",
        "message PoolingParameter { optional uint32 kernel_size = 2; optional uint32 rounding = 13; }",
    ).FromString(ours.read_bytes())
    assert [layer.pooling_param.rounding for layer in theirs.layer] == [0, 1]
    # Nothing in the file says which of the two a number is, so that it is neither, and stays as it is.
    weights = read_weights(ours)
    assert not any(fork_fields(layer.param) for layer in weights.layers)
    write_weights(weights, tmp_path / "b.caffemodel")
    assert type(theirs).FromString((tmp_path / "b.caffemodel").read_bytes()) == theirs


@pytest.mark.parametrize(("raw_type", "dtype"), [(0, "<f8"), (1, "<f4"), (2, "<f2")])
def test_raw_blobs_of_nvidias_caffe(raw_type: int, dtype: str, fork: Any, tmp_path: Path) -> None:
    values = np.array([[0.5, -2, 8]], dtype)
    raw_fields = "optional int32 raw_data_type = 10; optional bytes raw_data = 12;"
    blob = f"message BlobProto {{ optional BlobShape shape = 7; {raw_fields} }}"
    net = fork("", "", blob)(name="net")
    raw = {"shape": {"dim": [1, 3]}, "raw_data_type": raw_type, "raw_data": values.tobytes()}
    net.layer.add(name="a", type="InnerProduct", blobs=[raw])
    (tmp_path / "a.caffemodel").write_bytes(net.SerializeToString())
    (layer,) = read_weights(tmp_path / "a.caffemodel").layers
    assert layer.blobs[0] is not None and layer.blobs[0].dtype == np.float32
    np.testing.assert_array_equal(layer.blobs[0], values.astype(np.float32))


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


# --- text


TEXTS = {
    "ssd": """
        layer { name: "data" type: "AnnotatedData" top: "data" top: "label" include { phase: TRAIN }
          transform_param { mirror: true mean_value: 104 mean_value: 117 mean_value: 123
            resize_param { prob: 1 resize_mode: WARP height: 300 width: 300 interp_mode: LINEAR interp_mode: AREA }
            emit_constraint { emit_type: CENTER } distort_param { brightness_prob: 0.5 brightness_delta: 32
              hue_prob: 0.5 }
            expand_param { prob: 0.5 max_expand_ratio: 4 } noise_param { saltpepper_param { fraction: 0.1 value: 1 } } }
          data_param { source: "lmdb" batch_size: 32 backend: LMDB }
          annotated_data_param { batch_sampler { max_sample: 1 max_trials: 1 }
            batch_sampler { sampler { min_scale: 0.3 max_scale: 1 min_aspect_ratio: 0.5 max_aspect_ratio: 2 }
              sample_constraint { min_jaccard_overlap: 0.1 } max_sample: 1 max_trials: 50 } label_map_file: "labels" } }
        layer { name: "loss" type: "MultiBoxLoss" bottom: "data" top: "loss" loss_param { normalization: VALID }
          multibox_loss_param { loc_loss_type: SMOOTH_L1 conf_loss_type: SOFTMAX loc_weight: 1 num_classes: 21
            match_type: PER_PREDICTION overlap_threshold: 0.5 code_type: CENTER_SIZE mining_type: MAX_NEGATIVE } }
        layer { name: "evaluation" type: "DetectionEvaluate" bottom: "data" bottom: "label" top: "eval"
          detection_evaluate_param { num_classes: 21 evaluate_difficult_gt: false name_size_file: "sizes" } }
    """,
    "rfcn": """
        layer { name: "annotator" type: "BoxAnnotatorOHEM" bottom: "x" top: "labels_ohem"
          box_annotator_ohem_param { roi_per_img: 128 ignore_label: -1 } }
        layer { name: "loss" type: "SoftmaxWithLoss" bottom: "x" bottom: "labels_ohem" top: "loss"
          loss_param { ignore_label: -1 normalization: PRE_FIXED pre_fixed_normalizer: 128 } }
        layer { name: "drop" type: "Dropout" bottom: "x" top: "x" dropout_param { dropout_ratio: 0.5 scale_train:
          false } }
    """,
    "deeplab": """
        layers { name: "data" type: IMAGE_SEG_DATA top: "data" top: "label"
          image_data_param { root_folder: "r" source: "l" batch_size: 10 label_type: PIXEL ignore_label: 255 } }
        layers { name: "up" type: INTERP bottom: "data" top: "up" interp_param { shrink_factor: 8 pad_beg: -1
          pad_end: 0 } }
        layers { name: "accuracy" type: SEG_ACCURACY bottom: "up" bottom: "label" seg_accuracy_param { ignore_label:
          255 } }
    """,
    "pspnet": """
        layer { name: "data" type: "ImageSegData" top: "data" top: "label" top: "dim"
          transform_param { mirror: true crop_size: 321 scale_factors: 0.5 scale_factors: 0.75 }
          image_data_param { source: "l" batch_size: 10 shuffle: true label_type: PIXEL } }
        layer { name: "crf" type: "DenseCRF" bottom: "data" bottom: "dim" top: "crf"
          dense_crf_param { max_iter: 10 pos_w: 3 pos_xy_std: 3 bi_w: 4 bi_xy_std: 49 bi_rgb_std: 5
            output_probability: false } }
        layer { name: "mat" type: "MatWrite" bottom: "crf" include { phase: TEST } mat_write_param { prefix: "f/"
          strip: 0 } }
        layer { name: "accuracy" type: "SegAccuracy" bottom: "crf" bottom: "label" top: "accuracy"
          seg_accuracy_param { metric: PixelIOU ignore_label: 255 } }
    """,
    "segnet": """
        layer { name: "data" type: "DenseImageData" top: "data" top: "label"
          dense_image_data_param { source: "l" batch_size: 4 shuffle: true } }
        layer { name: "drop" type: "Dropout" bottom: "data" top: "data" dropout_param { sample_weights_test: true } }
        layer { name: "loss" type: "SoftmaxWithLoss" bottom: "data" bottom: "label" top: "loss" softmax_param {
          engine: CAFFE }
          loss_param { weight_by_label_freqs: true ignore_label: 11 class_weighting: 0.25 class_weighting: 0.5 } }
    """,
    "yolo": """
        layer { name: "data" type: "AnnotatedData" top: "data" top: "label"
          transform_param { resize_param { height: 416 width: 416 } resize_param { height: 608 width: 608 } }
          annotated_data_param { yolo_data_type: 1 } }
        layer { name: "reorg" type: "Reorg" bottom: "data" top: "reorg" reorg_param { stride: 2 } }
        layer { name: "region" type: "RegionLoss" bottom: "reorg" bottom: "label" top: "region"
          region_loss_param { side: 13 num_class: 20 coords: 4 num: 5 biases: 1.08 biases: 1.19 thresh: 0.6 } }
        layer { name: "detections" type: "Yolov3DetectionOutput" bottom: "reorg" top: "detections"
          yolov3_detection_output_param { confidence_threshold: 0.3 num_classes: 20 biases: 10 mask: 3
            anchors_scale: 32 } }
    """,
    "openpose": """
        layer { name: "data" type: "CPMData" top: "data" top: "label" data_param { source: "lmdb" backend: LMDB }
          cpm_transform_param { stride: 8 max_rotate_degree: 40 crop_size_x: 368 do_clahe: false num_parts: 56
            np_in_lmdb: 17 } }
    """,
    "nvidia": """
        default_forward_type: FLOAT16
        layer { name: "bn" type: "BatchNorm" bottom: "data" top: "bn"
          batch_norm_param { moving_average_fraction: 0.9 eps: 0.0001 scale_bias: true engine: CUDNN } }
        layer { name: "conv" type: "Convolution" bottom: "bn" top: "conv" forward_type: FLOAT
          convolution_param { num_output: 1 kernel_size: 1 cudnn_convolution_algo_seeker: FINDEX } }
        layer { name: "boxes" type: "DetectNetTransformation" bottom: "conv" top: "boxes"
          detectnet_groundtruth_param { stride: 16 gridbox_type: GRIDBOX_MIN object_class { src: 1 dst: 0 } }
          detectnet_augmentation_param { crop_prob: 1 } }
    """,
    "flownet2": """
        layer { name: "corr" type: "Correlation" bottom: "x" bottom: "y" top: "corr"
          correlation_param { pad: 20 kernel_size: 1 max_displacement: 20 stride_1: 1 stride_2: 2 } }
        layer { name: "up" type: "Resample" bottom: "corr" top: "up" reshape_every_iter: false
          resample_param { width: 64 height: 64 type: NEAREST antialias: false factor: 1.0 } }
        layer { name: "full" type: "Accum" bottom: "up" bottom: "x" top: "full" accum_param { have_reference: true } }
        layer { name: "conv" type: "Convolution" bottom: "full" top: "conv" convolution_param { num_output: 2
          kernel_size: 1 weight_filler { type: "diagonal" diag_val: 2 diag_val: 0.5 } } }
    """,
    "refinedet": """
        layer { name: "loss" type: "MultiBoxLoss" bottom: "x" top: "loss"
          multibox_loss_param { num_classes: 21 objectness_score: 0.01 } }
        layer { name: "out" type: "DetectionOutput" bottom: "x" top: "out"
          detection_output_param { num_classes: 21 nms_param { nms_threshold: 0.45 } objectness_score: 0.01 } }
    """,
    "tsn": """
        mem_param { optimize_train: true optimize_test: true exclude_blob: "data" }
        layer { name: "data" type: "VideoData" top: "data"
          transform_param { multi_scale: true scale_ratios: 1 is_flow: true }
          video_data_param { source: "l" batch_size: 2 new_length: 5 num_segments: 3 modality: FLOW } }
    """,
    "augmentation": """
        layer { name: "data" type: "ImageData" top: "data" top: "label" image_data_param { source: "l" }
          transform_param { contrast_brightness_adjustment: true max_rotation_angle: 15 min_side_min: 256
            min_side_max: 480 min_scaling_factor: 0.8 max_color_shift: 20 apply_probability: 0.5 } }
    """,
    "intel": """
        engine: "MKLDNN"
        layer { name: "data" type: "Data" top: "data" transform_param {
          random_resize_param { min_size: 256 max_size: 480 resize_param { interp_mode: CUBIC } }
          random_aspect_ratio_param { min_area_ratio: 0.08 aspect_ratio_change: 1.33 } } }
        layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" engine: "MKL2017"
          convolution_param { num_output: 1 kernel_size: 1 engine: MKLDNN relu: true } }
        layer { name: "concat" type: "Concat" bottom: "conv" top: "concat" concat_param { axis: 1 engine: MKL2017 } }
    """,
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_text_of_a_fork(name: str) -> None:
    net = parse_net(TEXTS[name])
    assert net.layer
    assert parse_net(to_text(net)) == net


def test_solvers_of_forks() -> None:
    solver = parse_solver(
        """
        net: "net.prototxt" eval_type: "detection" ap_version: "11point" show_per_class_result: true
          plateau_winsize: 10000
        rampup_interval: 10 rampup_lr: 0.01 min_lr: 0 momentum_policy: "poly" max_momentum: 0.9 warmup_iter: 5
          weights: "w"
        richness: 200
        """
    )
    assert set(fork_fields(solver)) == {
        "weights", "eval_type", "ap_version", "plateau_winsize", "rampup_interval", "rampup_lr", "momentum_policy",
        "max_momentum", "warmup_iter",
    }  # fmt: skip


def test_fields_that_change_nothing_are_no_reason_to_refuse_a_net() -> None:
    layer = """layer { name: "a" type: "Pooling" bottom: "data" top: "b" forward_type: FLOAT16
        pooling_param { kernel_size: 2 engine: MKLDNN MODE } }"""
    assert fork_fields(parse_net(layer.replace("MODE", "ceil_mode: true")).layer[0]) == []
    assert fork_fields(parse_net(layer.replace("MODE", "round_mode: CEIL")).layer[0]) == []
    assert fork_fields(parse_net(layer.replace("MODE", "ceil_mode: false")).layer[0]) == ["pooling_param.ceil_mode"]


def test_which_blobs_share_memory_changes_nothing() -> None:
    assert fork_fields(parse_net("mem_param { optimize_train: true }")) == []


def test_holes_become_dilation() -> None:
    net = parse_net(
        """
        layers { name: "a" type: CONVOLUTION bottom: "x" top: "y" convolution_param { num_output: 1 kernel_size: 3
          hole: 4 } }
        layers { name: "b" type: HOLE_CONVOLUTION bottom: "y" top: "z"
          convolution_param { num_output: 1 kernel_size: 3 hole_h: 2 hole_w: 6 } }
        """
    )
    assert [list(layer.convolution_param.dilation) for layer in net.layer] == [[4], [2, 6]]
    assert [layer.type for layer in net.layer] == ["Convolution"] * 2
    assert not fork_fields(net)
    with pytest.raises(InputError, match='layer "a" gives hole_h: give only dilation'):
        parse_net('layer { name: "a" type: "Convolution" convolution_param { hole_h: 2 } }')


@pytest.mark.parametrize(
    ("text", "placeholder"),
    [
        ("layer { name: 'a' data_param { batch_size: %BATCH_SIZE% } }", "%BATCH_SIZE%"),
        ("layer { name: 'a' data_param { source: '%SOURCE%' } }", "%SOURCE%"),
        ("layer { name: 'a' loss_weight: ${weight} }", "${weight}"),
        ("layer { name: 'a' data_param { source: '${folder}/train_lmdb' } }", "${folder}"),
        ("layer { name: 'a' loss_weight: $weight }", "$weight"),
        ("%LAYERS%", "%LAYERS%"),
    ],
)
def test_templates_are_named_as_such(text: str, placeholder: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_net(text, "n")
    assert str(caught.value).endswith(
        f"the file is a template: put a value in the place of {placeholder}, and of all others like it"
    )


def test_bytes_need_not_be_text() -> None:
    net = parse_net(r"layer { name: 'a' blobs { raw_data: '\377\x00' 'b' } }")
    assert net.layer[0].blobs[0].raw_data == b"\xff\0b"


@pytest.mark.parametrize("text", ["layer { name: '50%' }", "layer { name: 'a%04d$b' }", "layer { name: '$1' }"])
def test_other_percent_and_dollar_signs_are_text(text: str) -> None:
    assert parse_net(text).layer[0].name


@pytest.mark.parametrize(
    "path",
    shared_files("reference/zoo/**/*.prototxt", "reference/autodial/*.prototxt", "reference/da_forks/**/*.prototxt"),
)
def test_every_public_prototxt_is_read_or_a_template(path: Path) -> None:
    read: Any = read_solver if "solver" in path.stem else read_net
    if path.parent.name in ("latentDA", "grl"):
        with pytest.raises(InputError, match="the file is a template"):
            read(path)
    else:
        message = read(path)
        assert (parse_solver if "solver" in path.stem else parse_net)(to_text(message)) == message
