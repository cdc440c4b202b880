"""Old forms of nets and solvers, which Caffe still reads, brought up to date in place.

The rules are those of Caffe's upgrade_proto.cpp. Where Caffe drops a field and logs that, an InputError is raised here:
whatever a file states counts or is refused.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from typing import Any

from google.protobuf.message import Message

from autodial.errors import InputError
from autodial.proto import messages as pb
from autodial.proto.dialects import FORKS

_TRANSFORMATIONS = ("scale", "mean_file", "crop_size", "mirror")
_OF_VIDEOS = ("Convolution3D", "Pooling3D")
_TRANSFORMED = {"Data": "data_param", "ImageData": "image_data_param", "WindowData": "window_data_param"}

V1_TYPES = {
    "NONE": "", "ABSVAL": "AbsVal", "ACCURACY": "Accuracy", "ARGMAX": "ArgMax", "BNLL": "BNLL", "CONCAT": "Concat",
    "CONTRASTIVE_LOSS": "ContrastiveLoss", "CONVOLUTION": "Convolution", "DATA": "Data",
    "DECONVOLUTION": "Deconvolution", "DROPOUT": "Dropout", "DUMMY_DATA": "DummyData",
    "EUCLIDEAN_LOSS": "EuclideanLoss", "ELTWISE": "Eltwise", "EXP": "Exp", "FLATTEN": "Flatten",
    "HDF5_DATA": "HDF5Data", "HDF5_OUTPUT": "HDF5Output", "HINGE_LOSS": "HingeLoss", "IM2COL": "Im2col",
    "IMAGE_DATA": "ImageData", "INFOGAIN_LOSS": "InfogainLoss", "INNER_PRODUCT": "InnerProduct", "LRN": "LRN",
    "MEMORY_DATA": "MemoryData", "MULTINOMIAL_LOGISTIC_LOSS": "MultinomialLogisticLoss", "MVN": "MVN",
    "POOLING": "Pooling", "POWER": "Power", "RELU": "ReLU", "SIGMOID": "Sigmoid",
    "SIGMOID_CROSS_ENTROPY_LOSS": "SigmoidCrossEntropyLoss", "SILENCE": "Silence", "SOFTMAX": "Softmax",
    "SOFTMAX_LOSS": "SoftmaxWithLoss", "SPLIT": "Split", "SLICE": "Slice", "TANH": "TanH",
    "WINDOW_DATA": "WindowData", "THRESHOLD": "Threshold",
    **{name: today for fork in FORKS for name, today in fork.v1_types.items()},
}  # fmt: skip

# The fields of V1 layers, and some of V0 layers, that have a value for each blob, and their names in ParamSpec.
_PARAM_SPECS = {
    "param": "name", "blob_share_mode": "share_mode", "blobs_lr": "lr_mult", "weight_decay": "decay_mult"
}  # fmt: skip

# The types of V0: today's type, the message of its parameters, and the V0 fields that belong there.
_V0_TYPES = {
    "accuracy": ("Accuracy", "", ()),
    "bnll": ("BNLL", "", ()),
    "concat": ("Concat", "concat_param", ("concat_dim",)),
    "conv": (
        "Convolution",
        "convolution_param",
        ("num_output", "biasterm", "weight_filler", "bias_filler", "pad", "kernelsize", "group", "stride"),
    ),
    "data": ("Data", "data_param", ("source", "batchsize", "rand_skip")),
    "dropout": ("Dropout", "dropout_param", ("dropout_ratio",)),
    "euclidean_loss": ("EuclideanLoss", "", ()),
    "flatten": ("Flatten", "", ()),
    "hdf5_data": ("HDF5Data", "hdf5_data_param", ("source", "batchsize")),
    "hdf5_output": ("HDF5Output", "", ("hdf5_output_param",)),
    "im2col": ("Im2col", "", ()),
    "images": (
        "ImageData",
        "image_data_param",
        ("source", "batchsize", "rand_skip", "shuffle_images", "new_height", "new_width"),
    ),
    "infogain_loss": ("InfogainLoss", "infogain_loss_param", ("source",)),
    "innerproduct": (
        "InnerProduct",
        "inner_product_param",
        ("num_output", "biasterm", "weight_filler", "bias_filler"),
    ),
    "lrn": ("LRN", "lrn_param", ("local_size", "alpha", "beta", "k")),
    "multinomial_logistic_loss": ("MultinomialLogisticLoss", "", ()),
    "pool": ("Pooling", "pooling_param", ("pool", "pad", "kernelsize", "stride")),
    "relu": ("ReLU", "", ()),
    "sigmoid": ("Sigmoid", "", ()),
    "softmax": ("Softmax", "", ()),
    "softmax_loss": ("SoftmaxWithLoss", "", ()),
    "split": ("Split", "", ()),
    "tanh": ("TanH", "", ()),
    "window_data": (
        "WindowData",
        "window_data_param",
        (
            "source",
            "batchsize",
            "det_fg_threshold",
            "det_bg_threshold",
            "det_fg_fraction",
            "det_context_pad",
            "det_crop_mode",
        ),
    ),
}

# The V0 fields that have another name today.
_V0_RENAMED = {
    "biasterm": "bias_term", "kernelsize": "kernel_size", "batchsize": "batch_size", "shuffle_images": "shuffle",
    "meanfile": "mean_file", "cropsize": "crop_size", "det_fg_threshold": "fg_threshold",
    "det_bg_threshold": "bg_threshold", "det_fg_fraction": "fg_fraction", "det_context_pad": "context_pad",
    "det_crop_mode": "crop_mode",
}  # fmt: skip

_SOLVER_TYPES = {
    "SGD": "SGD", "NESTEROV": "Nesterov", "ADAGRAD": "AdaGrad", "RMSPROP": "RMSProp", "ADADELTA": "AdaDelta",
    "ADAM": "Adam",
}  # fmt: skip


class _Problem(Exception):  # noqa: N818
    """Says why a message can't be brought up to date, without the file's name."""


def upgrade_net(net: pb.NetParameter, name: str) -> list[str]:
    """Bring a NetParameter up to date in place (Caffe: UpgradeNetAsNeeded).

    V0 and V1 layers become `layer`s, V0's padding layers the pad of the layer that reads them, transformation
    fields of V1's data layers a transform_param, net-level `input`s a layer of type Input (nothing where they have
    no shapes and a layer makes their blobs; five `input_dim` each in a net of C3D 1.0), and BatchNorm layers with
    three `param`s get lr_mult and decay_mult 0 there, and the names that forks gave to a convolution's dilation
    become `dilation`.

    Args:
        net: the message; its blobs come along.
        name: what errors call the net, usually the file's path.

    Returns:
        a phrase for each kind of old form; none for an up-to-date net.

    Raises:
        InputError: old and current forms side by side, or something that has no current form.
    """
    try:
        return [
            *_upgrade_layers(net),
            *_upgrade_inputs(net),
            *_upgrade_batch_norms(net.layer),
            *_upgrade_holes(net.layer),
        ]
    except _Problem as problem:
        raise InputError(f"{name}: {problem}") from None


def upgrade_solver(solver: pb.SolverParameter, name: str) -> list[str]:
    """Bring a SolverParameter, and the nets in it, up to date in place (Caffe: UpgradeSolverAsNeeded).

    Returns and raises as `upgrade_net`.
    """
    old = []
    if solver.HasField("solver_type"):
        if solver.HasField("type"):
            raise InputError(f"{name}: type and its old form solver_type are both given: remove solver_type")
        solver.type = _SOLVER_TYPES[pb.SolverParameter.SolverType.Name(solver.solver_type)]
        solver.ClearField("solver_type")
        old.append("solver_type")
    for field, value in solver.ListFields():
        if field.message_type is not None and field.message_type.name == "NetParameter":
            for net in [value] if field.has_presence else value:
                old += upgrade_net(net, f"{name}: {field.name}")
    return old


def _upgrade_layers(net: pb.NetParameter) -> list[str]:
    if not net.layers:
        return []
    if net.layer:
        raise _Problem('the net has "layers", the old form, and "layer": keep only one form')
    versions = [layer.HasField("layer") for layer in net.layers]
    if any(versions) and not all(versions):
        raise _Problem('the net has V0 layers (a "layer" within "layers") and V1 layers: keep only one form')
    if versions[0]:
        old = ["V0 layers", *_fold_padding(net.layers)]
        for layer in net.layers:
            _from_v0(layer, net.layer.add())
    else:
        old = ["V1 layers"]
        for layer in net.layers:
            _from_v1(layer, net.layer.add())
        if sum(_move_transformations(layer) for layer in net.layer):
            old.append("transformations outside of transform_param")
    net.ClearField("layers")
    return old


def _fold_padding(layers: MutableSequence[pb.V1LayerParameter]) -> list[str]:
    """Remove V0's padding layers and give their pad to the conv and pool layers that read them."""
    producers: dict[str, pb.V1LayerParameter] = {}
    for outer in layers:
        for i, bottom in enumerate(outer.bottom):
            padding = producers.get(bottom)
            if padding is None or padding.layer.type != "padding":
                continue
            layer = outer.layer
            if layer.type not in ("conv", "pool") or len(outer.bottom) != 1:
                raise _Problem(
                    f'layer "{layer.name}" ({layer.type}) reads the padding layer "{padding.layer.name}", which only '
                    "conv and pool layers with one bottom can"
                )
            if len(padding.bottom) != 1 or len(padding.top) != 1:
                raise _Problem(f'padding layer "{padding.layer.name}" must have one bottom and one top')
            if layer.pad:
                raise _Problem(
                    f'layer "{layer.name}" has its own pad after the padding layer "{padding.layer.name}": '
                    "keep one of them"
                )
            layer.pad = padding.layer.pad
            outer.bottom[i] = padding.bottom[0]
        producers.update((top, outer) for top in outer.top)
    kinds = [outer.layer.type == "padding" for outer in layers]
    for i in reversed([i for i, is_padding in enumerate(kinds) if is_padding]):
        del layers[i]
    return ["padding layers"] if any(kinds) else []


def _from_v0(outer: pb.V1LayerParameter, new: pb.LayerParameter) -> None:
    """Fill the LayerParameter `new` from a V1LayerParameter whose `layer`, of V0, says all but bottoms and tops."""
    layer = outer.layer
    for field, value in outer.ListFields():
        if field.name in ("bottom", "top"):
            _set(new, field.name, value)
        elif field.name != "layer":
            raise _Problem(
                f'layer "{layer.name}" is a V0 layer, with {field.name} outside of its inner layer: move or remove it'
            )
    if layer.type not in _V0_TYPES:
        raise _Problem(f'layer "{layer.name}": V0 has no type "{layer.type}"; it has {", ".join(_V0_TYPES)}')
    new.type, param, fields = _V0_TYPES[layer.type]
    for field, value in layer.ListFields():
        name = _V0_RENAMED.get(field.name, field.name)
        if field.name in ("name", "blobs"):
            _set(new, name, value)
        elif field.name in _PARAM_SPECS:
            _set_specs(new, field.name, value)
        elif name in _TRANSFORMATIONS:
            _set(new.transform_param, name, value)
        elif field.name in fields:
            _set(getattr(new, param) if param else new, name, value)
        elif field.name != "type":
            raise _Problem(f'layer "{layer.name}": the V0 type "{layer.type}" has no {field.name}: remove it')


def _from_v1(layer: pb.V1LayerParameter, new: pb.LayerParameter) -> None:
    """Fill the LayerParameter `new` from a V1LayerParameter."""
    for field, value in layer.ListFields():
        if field.name == "type":
            new.type = V1_TYPES[pb.V1LayerParameter.LayerType.Name(value)]
        elif field.name in _PARAM_SPECS:
            _set_specs(new, field.name, value)
        else:
            _set(new, field.name, value)


def _move_transformations(layer: pb.LayerParameter) -> int:
    """Move scale, mean, crop and mirror from a data layer's own message to transform_param; returns how many moved."""
    name = _TRANSFORMED.get(layer.type)
    if name is None or not layer.HasField(name):
        return 0
    param = getattr(layer, name)
    old = [field for field in _TRANSFORMATIONS if param.HasField(field)]
    for field in old:
        if layer.transform_param.HasField(field):
            raise _Problem(
                f'layer "{layer.name}": {field} is given in {name}, an old form, and in transform_param: '
                "remove it from the former"
            )
        setattr(layer.transform_param, field, getattr(param, field))
        param.ClearField(field)
    return len(old)


def _upgrade_inputs(net: pb.NetParameter) -> list[str]:
    """Replace the net's own inputs by a layer of type Input."""
    fields = ("input", "input_dim", "input_shape")
    given = [field for field in fields if getattr(net, field)]
    if not given:
        return []
    names, dims = list(net.input), list(net.input_dim)
    if not names:
        raise _Problem(f"{given[0]} gives a shape, but there is no input: add an input with the blob's name")
    made = {top for layer in net.layer for top in layer.top}
    if given == ["input"] and made.issuperset(names):
        net.ClearField("input")  # as in Caffe, which makes an Input layer where there are shapes
        return ["inputs without a shape"]
    if dims and net.input_shape:
        raise _Problem("input_dim and input_shape are both given: keep one of them")
    reads_videos = any(layer.type in _OF_VIDEOS for layer in net.layer)
    axes = 5 if reads_videos and len(dims) == 5 * len(names) else 4  # C3D 1.0
    shapes = [list(shape.dim) for shape in net.input_shape] or [dims[i : i + axes] for i in range(0, len(dims), axes)]
    if len(shapes) != len(names) or (dims and len(dims) % axes):
        stated = f"{len(dims)} input_dim" if dims else f"{len(shapes)} input_shape"
        raise _Problem(
            f"{len(names)} input and {stated} don't fit: give an input_shape, or four input_dim, for each input"
        )
    layers = list(net.layer)
    del net.layer[:]
    layer = net.layer.add(name="input", type="Input", top=names)
    for shape in shapes:
        layer.input_param.shape.add(dim=shape)
    net.layer.extend(layers)
    for field in fields:
        net.ClearField(field)
    return ["inputs outside of a layer"]


def _upgrade_batch_norms(layers: Sequence[pb.LayerParameter]) -> list[str]:
    """Set the multipliers of BatchNorm's three statistics to 0, as the oldest files don't always do."""
    specs = [spec for layer in layers if layer.type == "BatchNorm" and len(layer.param) == 3 for spec in layer.param]
    # Both multipliers default to 1.
    old = [spec for spec in specs if spec.lr_mult or spec.decay_mult]
    for spec in specs:
        spec.lr_mult = spec.decay_mult = 0
    return ["multipliers of BatchNorm's statistics"] if old else []


def _upgrade_holes(layers: Sequence[pb.LayerParameter]) -> list[str]:
    """Turn the names that forks gave to a convolution's dilation, before Caffe had it, into `dilation`."""
    old = []
    for layer in layers:
        if not layer.HasField("convolution_param"):
            continue
        param = layer.convolution_param
        for square, vertical, horizontal in (("hole", "hole_h", "hole_w"), ("", "dilation_h", "dilation_w")):
            given = [name for name in (square, vertical, horizontal) if name and param.HasField(name)]
            if not given:
                continue
            if param.dilation or given not in ([square], [vertical, horizontal]):
                raise _Problem(
                    f'layer "{layer.name}" gives {" and ".join(given)}: give only dilation, once or for both axes'
                )
            param.dilation.extend(getattr(param, name) for name in given)
            for name in given:
                param.ClearField(name)
            old += given
    return list(dict.fromkeys(old))


def _set(message: Message, name: str, value: Any) -> None:
    """Set a field to a value of the same type; to a repeated field, add the value or each value of a list."""
    field = message.DESCRIPTOR.fields_by_name[name]
    if not field.has_presence:
        getattr(message, name).extend([value] if isinstance(value, int) else value)
    elif field.message_type is not None:
        getattr(message, name).CopyFrom(value)
    else:
        setattr(message, name, value)


def _set_specs(layer: pb.LayerParameter, old_name: str, values: Sequence[Any]) -> None:
    """Spread an old layer's values for its blobs over the `param`s of the new layer."""
    while len(layer.param) < len(values):
        layer.param.add()
    for spec, value in zip(layer.param, values, strict=False):
        setattr(spec, _PARAM_SPECS[old_name], value)
