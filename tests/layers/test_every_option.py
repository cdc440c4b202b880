"""Every option of every layer type changes what the layer is or does, or is refused by name.

The messages are walked field by field, so that an option that nobody reads can't hide. Each field gets values other
than its default in nets that could make use of it; at least one must make a difference to the layer's shapes, blobs,
outputs or gradients, or be an error that names the field.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import h5py
import lmdb
import numpy as np
import pytest
import torch
from google.protobuf.descriptor import FieldDescriptor

from autodial.errors import InputError
from autodial.layers import registry
from autodial.layers.data_sources import SourceLayer
from autodial.net.net import Net
from autodial.proto import messages as pb
from autodial.proto import parse_net
from autodial.proto.dialects import FORKS

IMAGES = (4, 4, 7, 6)
FILLERS = ('type: "constant"', 'type: "gaussian"', 'type: "uniform"', 'type: "xavier"')

SAME_NUMBERS = {
    "Convolution": ("engine", "force_nd_im2col"),
    "Deconvolution": ("engine", "force_nd_im2col"),
    "ConvolutionDepthwise": ("engine", "force_nd_im2col", "num_output", "group"),
    "DepthwiseConvolution": ("engine", "force_nd_im2col"),
    "ConvLSTM": ("debug_info", "engine", "force_nd_im2col"),
    "Correlation": ("do_abs",),
    "Correlation1D": ("do_abs",),
    # what is random is not computed, and a fork's own training is all that the others are for
    "DataAugmentation": (
        *("coeff_schedule_param", "write_augmented", "max_multiplier", "write_mean", "mode"),
        *("bottomwidth", "bottomheight", "num", "chromatic_eigvec"),
    ),
    "DetectionOutput": ("visualize", "visualize_threshold", "save_file", "save_output_param"),
    "Im2col": ("engine", "force_nd_im2col"),
    "LSTM": ("debug_info",),
    "Lstm": ("clipping_threshold",),
    "Pooling3D": ("engine",),
    "Pooling": ("engine",),
    "PoolingND": ("engine",),
    "RNN": ("debug_info",),
    "SPP": ("engine",),
    "NegReLU": ("engine",),
    "ReLU": ("engine",),
    "Sigmoid": ("engine",),
    "TanH": ("engine",),
    "SmoothL1LossOHEM": ("sigma",),
    "Softmax": ("engine",),
    "LRN": ("engine",),
    "SoftmaxWithLoss": ("softmax_param.engine",),
    "InfogainLoss": ("softmax_param.engine",),
    "EntropyLoss": (),  # softmax_param or entropy_param, whatever they hold, say whose layer it is
    "Dial": ("variance_norm",),  # of one alpha
    "Eltwise": ("stable_prod_grad",),
    "Data": ("prefetch",),
    "Python": ("share_in_parallel",),
    "UnPooling": (
        *("kernel_size", "kernel_h", "kernel_w", "stride", "stride_h", "stride_w", "pad", "pad_h", "pad_w"),
    ),  # the size is stated
    "YoloDetectionOutput": ("side", "coords", "label_map_file"),  # which the port overwrites, or only reads
}
"""Options that choose between ways to the same numbers."""


FASTER_ELSEWHERE = frozenset[str]().union(*(fork.without_effect for fork in FORKS))
"""Fields by which forks of Caffe choose threads, caches and algorithms."""


class Case(NamedTuple):
    """A layer to try options on: the rest of its body, its bottoms' shapes, its number of tops, and its phase; and what
    the last bottom holds, if any numbers won't do."""

    body: str = ""
    bottoms: tuple[tuple[int, ...], ...] = (IMAGES,)
    tops: int = 1
    phase: int = pb.TRAIN
    last: tuple[float, ...] = ()


def filled(body: str, *fillers: str) -> list[Case]:
    """A case for each type of filler; `F` in the body stands for its fields."""
    return [Case(body.replace("FILLER", filler)) for filler in (*FILLERS, *fillers)]


CLASSES, LABELS = (4, 3), (4,)
LOSSES = [Case("", (CLASSES, LABELS)), Case("", ((4, 3, 2), (4, 2)))]
RECURRENT = [
    case._replace(bottoms=((2, 4, 3), (2, 4), (4, 2)))
    for case in filled("recurrent_param { num_output: 3 weight_filler { FILLER } bias_filler { FILLER } }")
]
MAPS, STATE = (2, 2, 2, 3, 2), (1, 2, 2, 3, 2)
CONV_LSTM = [
    case._replace(bottoms=(MAPS, MAPS[:2], STATE, STATE), tops=3)
    for case in filled(
        "recurrent_param { expose_hidden: true } lstm_conv_param { num_output: 2 kernel_size: 3 pad: 1 "
        "weight_filler { FILLER } bias_filler { FILLER } }",
        'type: "diagonal"',
    )
]
REGIONS = (3, 5)
DETECTIONS = [
    Case(f"detection_output_param {{ num_classes: 3 {more} }}", ((2, 24), (2, 18), (1, 2, 24)), phase=pb.TEST)
    for more in (
        "",
        "confidence_threshold: 0.2 nms_param { nms_threshold: 0.9 eta: 0.6 }",
        "code_type: CORNER variance_encoded_in_target: true",
    )
]
DETECTIONS.append(
    Case("detection_output_param { num_classes: 3 }", ((2, 24), (2, 18), (1, 2, 24), (2, 12), (2, 24)), phase=pb.TEST)
)
CASES: dict[str, list[Case]] = {
    "AbsVal": [Case()],
    "Accum": [
        Case("", (IMAGES, (4, 2, 5, 9))),
        Case("accum_param { top_height: 4 top_width: 5 }", ((4, 2, 3, 3),)),
    ],
    "Accuracy": [Case("", (CLASSES, LABELS)), Case("", ((4, 4, 4), (4, 4)))],
    "ArgMax": [Case("", (CLASSES,))],
    "Axpy": [Case("", ((4, 4), IMAGES, IMAGES))],
    "AxpyFast": [Case("", ((4, 4), IMAGES, IMAGES))],
    "BN": [
        *filled("bn_param { slope_filler { FILLER } bias_filler { FILLER } }"),
        *filled("bn_param { var_eps: 0.001 scale_filler { FILLER } shift_filler { FILLER } }"),
        Case("bn_param { bn_mode: INFERENCE }"),
        Case("bn_param { frozen: true }"),
        Case("bn_param { moving_average: true }", phase=pb.TEST),
    ],
    "BNLL": [Case()],
    "BReLU": [Case("brelu_param { minval: 0 maxval: 0.2 }")],
    "BatchNorm": [Case(), Case(phase=pb.TEST)],
    "BatchReindex": [Case("", (IMAGES, (4,)))],
    "Bias": [*filled("bias_param { filler { FILLER } }"), Case("", (IMAGES, (4,)))],
    "CORALLoss": [Case("", (IMAGES, IMAGES))],
    "ChannelNorm": [Case()],
    "Clip": [Case("clip_param { min: 0 max: 0.2 }")],
    "Concat": [Case("", (IMAGES, IMAGES))],
    "ContrastiveLoss": [Case("contrastive_loss_param { margin: 4 }", ((8, 3), (8, 3), (8,)))],
    "Convolution": [
        *filled(
            "convolution_param { num_output: 6 kernel_size: 3 weight_filler { FILLER } bias_filler { FILLER } }",
            'type: "msra"',
            'type: "diagonal"',
        ),
        Case('convolution_param { num_output: 6 kernel_h: 2 kernel_w: 3 weight_filler { type: "xavier" } }'),
        Case('convolution_param { num_output: 6 kernel_size: 2 pad_h: 1 pad_w: 1 weight_filler { type: "xavier" } }'),
        Case(
            'convolution_param { num_output: 6 kernel_size: 2 stride_h: 2 stride_w: 1 weight_filler { type: "msra" } }'
        ),
    ],
    "ConvLSTM": CONV_LSTM,
    "ConvolutionDepthwise": [],
    "ContinuationIndicator": [Case("continuation_indicator_param { time_step: 3 batch_size: 2 }", ())],
    "Convolution3D": [
        *(
            case._replace(bottoms=((2, 4, 5, 7, 6),))
            for message in ("convolution_param", "convolution3d_param")
            for case in filled(
                f"{message} {{ num_output: 6 kernel_size: 2 kernel_depth: 2 "
                "weight_filler { FILLER } bias_filler { FILLER } }"
            )
        ),
    ],
    "Correlation": [Case("correlation_param { kernel_size: 1 max_displacement: 2 pad: 2 }", (IMAGES, IMAGES))],
    "Correlation1D": [Case("correlation_param { kernel_size: 1 max_displacement: 2 pad: 2 }", (IMAGES, IMAGES))],
    "Crop": [Case("", (IMAGES, (4, 4, 3, 3)))],
    "CropCenter": [Case("crop_center_param { crop_size: [0, 0, 1, 1] }")],
    "DepthwiseConvolution": [],
    "DetectionOutput": DETECTIONS,
    "Dial": [
        *filled("dial_param { weight_filler { FILLER } }"),
        Case(phase=pb.TEST),
    ],
    "DataAugmentation": [
        Case("augmentation_param { crop_height: 5 crop_width: 4 augment_during_test: true }", phase=pb.TEST),
        Case("augmentation_param { crop_height: 5 crop_width: 4 mirror { } }", phase=pb.TEST),
        Case("augmentation_param { mean: [1, 2, 3] mean_per_pixel: false }", ((4, 3, 7, 6),), phase=pb.TEST),
    ],
    "Downsample": [Case("downsample_param { top_height: 4 top_width: 3 }")],
    "Dropout": [Case()],
    "DummyData": [
        *(
            Case(f"dummy_data_param {{ shape {{ dim: 4 dim: 3 }} data_filler {{ {filler} }} }}", ())
            for filler in FILLERS
        ),
        Case("dummy_data_param { num: 2 channels: 3 height: 4 width: 5 }", ()),
    ],
    "ELU": [Case()],
    "Eltwise": [Case("", (IMAGES, IMAGES))],
    "Embed": filled("embed_param { input_dim: 5 num_output: 3 weight_filler { FILLER } bias_filler { FILLER } }"),
    "EntropyLoss": [Case("", (CLASSES,)), Case("", ((4, 3, 2),)), Case("entropy_param { }", (CLASSES,))],
    "EuclideanLoss": [Case("", (IMAGES, IMAGES))],
    "Exp": [Case()],
    "Filter": [Case("", (CLASSES, LABELS))],
    "Flatten": [Case()],
    "FlowWarp": [Case("", (IMAGES, (4, 2, 7, 6)))],
    "GradientScaler": [Case()],
    "HingeLoss": [Case("", (CLASSES, LABELS))],
    "Im2col": [
        Case("convolution_param { kernel_size: 2 }"),
        Case("convolution_param { kernel_h: 2 kernel_w: 2 }"),
        Case("convolution_param { kernel_size: 2 pad_h: 1 pad_w: 1 }"),
        Case("convolution_param { kernel_size: 2 stride_h: 2 stride_w: 1 }"),
    ],
    "InfogainLoss": [Case("", (*case.bottoms, (3, 3))) for case in LOSSES],
    "InnerProduct": filled("inner_product_param { num_output: 3 weight_filler { FILLER } bias_filler { FILLER } }"),
    "Input": [Case("input_param { shape { dim: 4 dim: 3 } }", ())],
    "JMMDLoss": [
        Case("jmmd_param { sigma: 2 }", (CLASSES,) * 4),
        Case("jmmd_param { sigma: 2 label_kernel_num: 2 kernel_num: 2 }", (CLASSES,) * 4),
    ],
    "LRN": [Case()],
    "Interp": [
        Case("interp_param { height: 4 width: 3 }"),
        Case("interp_param { zoom_factor: 2 }"),
        Case("interp_param { shrink_factor: 2 }"),
    ],
    "LSTM": RECURRENT,
    "LSTMUnit": [Case("", ((1, 3, 2), (1, 3, 8), (1, 3)), 2)],
    "Lstm": [
        case._replace(bottoms=((3, 2, 4),))
        for case in filled("lstm_param { num_output: 3 weight_filler { FILLER } bias_filler { FILLER } }")
    ],
    "Log": [Case()],
    "MMDLoss": [Case("", (CLASSES, CLASSES))],
    "MVN": [Case()],
    "Mean": [Case("mean_param { operation: ADD value: [1, 2] }")],
    "MemoryData": [Case("memory_data_param { batch_size: 2 channels: 3 height: 4 width: 5 }", (), 2)],
    "MultiModalBatchNorm": [Case("", (IMAGES, LABELS)), Case("", (IMAGES, LABELS), phase=pb.TEST)],
    "MultinomialLogisticLoss": [Case("", (CLASSES, LABELS))],
    "OuterProduct": [Case("", (CLASSES, CLASSES))],
    "OutputDecay": [Case()],
    "Reorg": [Case("reorg_param { stride: 2 }", ((2, 4, 4, 6),))],
    "GroupNorm": [
        Case("group_norm_param { group_num: 2 }"),
        Case("group_norm_param { group_ratio: 2 eps: 0.1 }"),
        *filled("group_norm_param { group: 2 eps: 0.1 scale_filler { FILLER } }"),
        *filled("group_norm_param { group: 2 eps: 0.1 bias_filler { FILLER } }"),
    ],
    "NegReLU": [Case()],
    "Normalize": [*filled("norm_param { channel_shared: false scale_filler { FILLER } }"), Case()],
    "PReLU": filled("prelu_param { filler { FILLER } }"),
    "PSROIPooling": [
        Case("psroi_pooling_param { output_dim: 1 group_size: 2 spatial_scale: 0.7 }", (IMAGES, REGIONS)),
    ],
    "Parameter": [Case("parameter_param { shape { dim: 4 dim: 3 } }", ())],
    "Permute": [Case("permute_param { order: 0 order: 2 }")],
    "Pooling": [
        Case("pooling_param { kernel_size: 3 }"),
        Case("pooling_param { pool: AVE kernel_h: 2 kernel_w: 2 }"),
        Case("pooling_param { kernel_size: 2 stride_h: 2 stride_w: 2 }"),
        Case("pooling_param { kernel_size: 2 pad_h: 1 pad_w: 1 }"),
        Case("pooling_param { }"),
    ],
    "Pooling3D": [
        Case(f"{message} {{ kernel_size: 2 kernel_depth: 2 }}", ((2, 4, 5, 7, 6),))
        for message in ("pooling_param", "pooling3d_param")
    ],
    "PoolingND": [
        Case(f"pooling_nd_param {{ {fields} }}")
        for fields in (
            "kernel_size: 3",
            "kernel_h: 2 kernel_w: 2",
            "kernel_size: 2 stride_h: 2 stride_w: 2",
            "kernel_size: 2 pad_h: 1 pad_w: 1",
            "",
        )
    ],
    "Power": [Case()],
    "PriorBox": [
        Case(f"prior_box_param {{ min_size: 3 {more} }}", (IMAGES, (4, 3, 20, 30)))
        for more in (
            "max_size: 8 aspect_ratio: 2",
            "img_h: 10 img_w: 12",
            "step_h: 2 step_w: 3",
            "aspect_ratio: 3 variance: 0.1 offset: 0.1",
            "img_size: 9",
            "step: 4",
        )
    ],
    "Proposal": [
        Case(
            f"proposal_param {{ ratio: 1 scale: 0.2 min_size: 2 feat_stride: 2 {more} }}",
            ((1, 2, 5, 6), (1, 4, 5, 6), (1, 3)),
            phase=pb.TEST,
            last=(20, 30, 1),
        )
        for more in ("nms_thresh: 1", "nms_thresh: 0.5")
    ],
    "Python": [Case('python_param { module: "test_every_option_layer" layer: "Scaled" param_str: "2" }')],
    "ROIPooling": [Case("roi_pooling_param { pooled_h: 2 pooled_w: 2 spatial_scale: 0.7 }", (IMAGES, REGIONS))],
    "RNN": RECURRENT,
    "ReLU": [Case()],
    "ReLU6": [Case()],
    "Reduction": [Case()],
    "Resample": [Case("resample_param { height: 4 width: 5 }")],
    "Reshape": [Case("reshape_param { shape { dim: 4 dim: -1 } }")],
    "Reverse": [Case()],
    "SPP": [Case("spp_param { pyramid_height: 2 }")],
    "Scale": [*filled("scale_param { bias_term: true filler { FILLER } bias_filler { FILLER } }"), Case()],
    "ShuffleChannel": [Case()],
    "Sigmoid": [Case()],
    "SigmoidCrossEntropyLoss": [Case("", (CLASSES, CLASSES))],
    "Silence": [Case(tops=0)],
    "Slice": [Case(tops=2)],
    "SmoothL1Loss": [
        Case("", (CLASSES, CLASSES)),
        Case("loss_param { normalization: PRE_FIXED }", (CLASSES,) * 3),
        Case("", ((4, 3, 2),) * 4),
    ],
    "SmoothL1LossOHEM": [Case("", (CLASSES,) * 3), Case("loss_param { normalization: PRE_FIXED }", ((4, 3, 2),) * 3)],
    "Softmax": [Case()],
    "SoftmaxWithLoss": LOSSES,
    "Split": [Case(tops=2)],
    "Swish": [Case()],
    "TanH": [Case()],
    "Threshold": [Case()],
    "Tile": [Case("tile_param { tiles: 2 }")],
    "Transpose": [Case("transpose_param { dim: [0, 2, 1, 3] }")],
    "UnPooling": [Case("unpooling_param { unpool_h: 14 unpool_w: 12 }", (IMAGES, IMAGES))],
    "Unpooling": [
        Case(f"unpooling_param {{ kernel_size: 2 {more} }}", (IMAGES, IMAGES))
        for more in (
            "stride: 2",
            "unpool_h: 14 unpool_w: 12",
            "kernel_h: 3 kernel_w: 2",
            "pad_h: 1 pad_w: 1",
            "stride_h: 1 stride_w: 2",
        )
    ],
    "Upsample": [
        Case(),
        Case("upsample_param { scale_h: 2 scale_w: 2 }", ((4, 4, 2, 2),) * 2),
        Case("upsample_param { scale: 2 }", ((4, 4, 2, 2),) * 2),
        Case("upsample_param { upsample_h: 3 upsample_w: 3 }", ((4, 4, 2, 2),) * 2),
    ],
    "Deconvolution": [],
    # below: what reads and writes files
    "Data": [
        Case('data_param { source: "db" batch_size: 2 backend: LMDB }', (), 2),
        Case('data_param { source: "grey" batch_size: 2 backend: LMDB }', (), 2),
        Case('data_param { source: "encoded" batch_size: 2 backend: LMDB }', (), 2),
    ],
    "HDF5Data": [Case('hdf5_data_param { source: "h5.txt" batch_size: 2 }', (), 2)],
    "HDF5Output": [Case('hdf5_output_param { file_name: "out.h5" }', ((4, 3), (4,)), 0)],
    "ImageData": [
        Case('image_data_param { source: "list.txt" batch_size: 2 }', (), 2),
        Case('image_data_param { source: "list.txt" batch_size: 2 new_height: 9 new_width: 8 is_color: false }', (), 2),
    ],
    "YoloDetectionOutput": [
        Case(
            "yolo_detection_output_param { num_classes: 2 num_box: 2 biases: [1, 2, 2, 1] }",
            ((1, 14, 4, 4),),
            phase=pb.TEST,
        )
    ],
    "Yolov3DetectionOutput": [
        Case(
            """yolov3_detection_output_param { num_classes: 2 num_box: 2 biases: [1, 2, 2, 1, 3, 4]
              mask: [0, 1, 1, 2] anchors_scale: [2, 1] }""",
            ((1, 14, 3, 3), (1, 14, 4, 4)),
            phase=pb.TEST,
        )
    ],
}
for kind in ("Deconvolution", "ConvolutionDepthwise", "DepthwiseConvolution"):
    CASES[kind] = CASES["Convolution"]

STRINGS = {
    "type": ("constant", "gaussian", "uniform", "xavier", "msra", "positive_unitball", "bilinear"),
    "source": ("other_db", "other.txt", "other_h5.txt", "matrix.binaryproto"),
    "mean_file": ("mean.binaryproto",),
    "file": ("mean.binaryproto",),
    "root_folder": ("other/",),
    "file_name": ("new.h5",),
    "module": ("test_every_option_missing",),
    "layer": ("Doubled",),
    "param_str": ("3",),
}
NUMBERS = (2, 1, 3, 0, -1, 5, 0.5, 0.25, -2)
PYTHON = """
import autodial.caffe as caffe

class Scaled(caffe.Layer):
    factor = 1
    def setup(self, bottom, top):
        self.factor *= float(self.param_str)
    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].data.shape)
    def forward(self, bottom, top):
        top[0].data[...] = bottom[0].data * self.factor
    def backward(self, top, propagate_down, bottom):
        bottom[0].diff[...] = top[0].diff * self.factor

class Doubled(Scaled):
    factor = 2
"""


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the cases' layers read, in the working directory, and other files of each kind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    rng = np.random.default_rng(0)
    Path("other").mkdir()
    images = rng.integers(0, 256, (8, 7, 6, 3), dtype=np.uint8)
    for i, image in enumerate(images):
        cv2.imwrite(f"other/{i % 4}.png" if i > 3 else f"{i}.png", image)
    Path("list.txt").write_text("".join(f"{i}.png {i}\n" for i in range(4)))
    Path("other.txt").write_text("".join(f"{i}.png {i}\n" for i in (3, 1)))
    for i, name in enumerate(("h5", "other")):
        with h5py.File(f"{name}.h5", "w") as file:
            file["top0"], file["top1"] = rng.random((4, 3)), np.arange(i, i + 4)
    Path("h5.txt").write_text("h5.h5")
    Path("other_h5.txt").write_text("other.h5")
    grey = images[..., 0]
    for name, part in (("db", images[:4]), ("other_db", images[4:]), ("encoded", images), ("grey", grey)):
        encoded = name in ("encoded", "grey")
        with lmdb.open(name, map_size=2**22) as environment, environment.begin(write=True) as txn:
            for i, image in enumerate(part):
                data = cv2.imencode(".png", image)[1] if encoded else image.transpose(2, 0, 1)
                datum = pb.Datum(channels=3, height=7, width=6, label=i, encoded=encoded, data=data.tobytes())
                txn.put(b"%d" % i, datum.SerializeToString())
    for name, shape in (("mean", (3, 7, 6)), ("matrix", (3, 3))):
        blob = pb.BlobProto(data=rng.random(np.prod(shape)))
        blob.shape.dim.extend(shape)
        Path(f"{name}.binaryproto").write_bytes(blob.SerializeToString())
    Path("test_every_option_layer.py").write_text(PYTHON)


def net_of(kind: str, case: Case) -> Any:
    """A net of Input layers for the bottoms and the layer, which is the last one."""
    text = "force_backward: true "
    for i, shape in enumerate(case.bottoms):
        dims = " ".join(f"dim: {length}" for length in shape)
        text += f'layer {{ name: "b{i}" type: "Input" top: "b{i}" input_param {{ shape {{ {dims} }} }} }}'
    bottoms = "".join(f'bottom: "b{i}" ' for i in range(len(case.bottoms)))
    tops = "".join(f'top: "top{i}" ' for i in range(case.tops))
    return parse_net(f'{text} layer {{ name: "it" type: "{kind}" {bottoms} {tops} {case.body} }}')


def observe(param: Any, case: Case) -> list[Any]:
    """All that can be seen of a net's last layer, to compare: shapes, blobs, and what two passes give and leave."""
    net = Net(param, case.phase, seed=3)
    layer = net.layer("it")
    seen: list[Any] = [dict(net.blob_shapes), dict(net.loss_weights)]
    seen += [(each.lr_mult, each.decay_mult, each.tensor.tolist()) for each in net.params]
    if isinstance(layer, SourceLayer):
        return [*seen, *(top.tolist() for index in range(3) for top in layer.source.batch(index))]
    if layer.is_data:
        return seen
    generator = torch.Generator().manual_seed(0)
    inputs = {}
    for name in net.inputs:
        values = torch.rand(net.blob_shapes[name], generator=generator) - 0.4
        inputs[name] = values if name == "b0" else values.mul(10).long().remainder(3).float()
    if case.last:
        inputs[net.inputs[-1]] = torch.tensor(case.last).reshape(case.bottoms[-1])
    with torch.no_grad():
        for index in layer.statistics:
            blob = layer.blobs[index]
            blob.copy_(torch.arange(1.0, blob.numel() + 1).view(blob.shape))
    for iteration in range(2):
        net.seed_pass(iteration)
        fed = {name: values.clone().requires_grad_(name == "b0") for name, values in inputs.items()}
        if "b0" in fed:  # a second pass with the same values could not tell what a layer keeps of the first
            fed["b0"] = (inputs["b0"] * (1 + iteration)).requires_grad_()
        tops = net(fed)
        seen += [(name, top.shape, top.tolist()) for name, top in tops.items()]
        total = sum((top * torch.arange(1.0, top.numel() + 1).view(top.shape)).sum() for top in tops.values())
        if isinstance(total, torch.Tensor) and total.requires_grad:
            total.backward()
            seen += [values.grad.tolist() for values in fed.values() if values.grad is not None]
            seen += [blob.grad.tolist() for blob in layer.blobs if blob.grad is not None]
    seen += [blob.tolist() for blob in layer.blobs]
    return [*seen, sorted(path.name for path in Path().iterdir())]


def options_of(kind: str) -> list[str]:
    """The paths of all options of a layer type, such as `convolution_param.weight_filler.std`."""
    fields = pb.LayerParameter.DESCRIPTOR.fields
    own = {"LSTM": "recurrent", "Lstm": "lstm"}.get(kind, kind.lower())
    read = [field for field in fields if field.name.replace("_", "") == f"{own}param"]
    read += [field for field in fields if field.name in registry[kind].options and field not in read]
    return [f"{field.name}.{path}" for field in read for path in paths(field.message_type)]


def paths(message: Any) -> Iterator[str]:
    for field in message.fields:
        if field.message_type is None:
            yield field.name
        else:
            yield from (f"{field.name}.{path}" for path in paths(field.message_type))


def changed(param: Any, path: str) -> Iterator[Any]:
    """Copies of a net whose last layer has other values in one field."""
    *outer, name = path.split(".")
    for value in values_of(param.layer[-1], path):
        copy = pb.NetParameter()
        copy.CopyFrom(param)
        message = copy.layer[-1]
        for step in outer:
            message = getattr(message, step)
            if not hasattr(message, "DESCRIPTOR"):  # a list of messages
                message = message[0] if message else message.add()
        try:
            if isinstance(value, list):
                getattr(message, name)[:] = value
            else:
                setattr(message, name, value)
        except (ValueError, TypeError):  # a number that the field can't hold
            continue
        if copy != param:
            yield copy


def values_of(layer: Any, path: str) -> list[Any]:
    """Values to try in a field."""
    descriptor = layer.DESCRIPTOR
    *outer, name = path.split(".")
    for step in outer:
        descriptor = descriptor.fields_by_name[step].message_type
    field = descriptor.fields_by_name[name]
    if field.enum_type is not None:
        values: list[Any] = list(field.enum_type.values_by_number)
    elif field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        values = [True, False]
    elif field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        values = list(STRINGS.get(name, ("some",)))
    else:
        values = list(NUMBERS)
    return values if field.has_presence else [[value] * count for value in values for count in (1, 2)]


def matters(kind: str, path: str) -> bool:
    """Whether an option changes anything in some case, or is refused by its name."""
    for case in CASES[kind]:
        param = net_of(kind, case)
        before = outcome(param, case)
        for other in changed(param, path):
            after = outcome(other, case)
            named = after.startswith("error") and any(step in after for step in path.split("."))
            if after != before and (named or not after.startswith("error")):
                return True
    return False


def outcome(param: Any, case: Case) -> str:
    """What is seen of a net, or its error, as text, in which NaN is NaN."""
    try:
        return str(observe(param, case))
    except InputError as error:
        assert "\n" not in str(error)
        return f"error {error}"


def test_every_type_has_a_case() -> None:
    assert CASES.keys() == registry.keys()


@pytest.mark.parametrize("kind", sorted(registry))
def test_every_option_is_honoured_or_refused_by_name(kind: str) -> None:
    ignored = {path for path in options_of(kind) if not matters(kind, path)}
    same = {path for path in options_of(kind) if any(f".{part}." in f".{path}." for part in SAME_NUMBERS.get(kind, ()))}
    elsewhere = {path for path in options_of(kind) if path.rpartition(".")[2] in FASTER_ELSEWHERE}
    assert ignored - elsewhere == same - elsewhere
