"""Old forms of nets, solvers and weights, held against what Caffe's own upgrade made of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from originals import UPGRADE, shared_files

from autodial.errors import InputError
from autodial.proto import (
    messages,
    parse_net,
    parse_solver,
    read_net,
    read_solver,
    read_weights,
    to_text,
    upgrade_net,
    upgrade_solver,
    write_weights,
)

V0 = messages.V0LayerParameter
V1 = messages.V1LayerParameter


def as_stated(text: str, kind: str = "NetParameter") -> Any:
    """The message in a text as protobuf's own parser reads it, with nothing brought up to date."""
    return text_format.Parse(text, getattr(messages, kind)())


def upgraded(text: str) -> Any:
    """`text`, of one layer of an old form, as the message of the layer that becomes of it."""
    (layer,) = parse_net(text).layer
    return layer


def layer(text: str) -> Any:
    return as_stated(text, "LayerParameter")


# --- whole files


@pytest.mark.parametrize(
    ("stem", "old"),
    [
        ("v0_net", ["V0 layers", "padding layers", "inputs outside of a layer"]),
        ("v1_net", ["V1 layers", "inputs outside of a layer"]),
        ("v1_data", ["V1 layers", "transformations outside of transform_param"]),
        ("input_shape", ["inputs outside of a layer"]),
        ("old_batchnorm", ["multipliers of BatchNorm's statistics"]),
        ("old_solver", ["solver_type"]),
    ],
)
def test_recorded_files(stem: str, old: list[str]) -> None:
    kind, read, upgrade = "NetParameter", read_net, upgrade_net
    if "solver" in stem:
        kind, read, upgrade = "SolverParameter", read_solver, upgrade_solver
    expected = as_stated((UPGRADE / f"{stem}.upgraded.prototxt").read_text(), kind)
    assert read(UPGRADE / f"{stem}.prototxt") == expected
    assert read(UPGRADE / f"{stem}.upgraded.prototxt") == expected
    message = as_stated((UPGRADE / f"{stem}.prototxt").read_text(), kind)
    assert upgrade(message, stem) == old
    assert message == expected
    assert upgrade(message, stem) == []


def by_hand(text: str) -> str:
    """What replacing a few words makes of the one V1 net among the reference files, which is inside of a solver."""
    if "layers {" not in text:
        return text
    for old, new in (
        ("DATA", "Data"), ("CONVOLUTION", "Convolution"), ("POOLING", "Pooling"), ("INNER_PRODUCT", "InnerProduct"),
        ("RELU", "ReLU"), ("ACCURACY", "Accuracy"), ("SOFTMAX_LOSS", "SoftmaxWithLoss"),
    ):  # fmt: skip
        text = text.replace(f"type: {old}\n", f'type: "{new}"\n')
    return re.sub(r"blobs_lr: (\d)", r"param { lr_mult: \1 }", text.replace("layers {", "layer {"))


@pytest.mark.parametrize("path", shared_files("reference/bvlc/*.prototxt"))
def test_every_net_and_solver_of_the_reference(path: Path) -> None:
    kind, read = ("SolverParameter", read_solver) if "solver" in path.stem else ("NetParameter", read_net)
    expected = as_stated(by_hand(path.read_text()), kind)
    for batch_norm in getattr(expected, "layer", []):
        if batch_norm.type == "BatchNorm":
            assert len(batch_norm.param) == 3
            for spec in batch_norm.param:
                spec.decay_mult = 0
    assert read(path) == expected


# --- V1


def filled(descriptor: Any) -> Any:
    """A message with every field of it, and of the messages in it, set, but for old names of `dilation` beside it."""
    message = getattr(messages, descriptor.name)()
    for field in descriptor.fields:
        if field.name in ("hole", "hole_h", "hole_w", "dilation_h", "dilation_w"):
            continue
        if field.message_type is not None:
            value = filled(field.message_type)
        elif field.enum_type is not None:
            value = next(value.number for value in field.enum_type.values if value.number)
        elif field.type == field.TYPE_BYTES:
            value = field.name.encode()
        elif field.cpp_type == field.CPPTYPE_STRING:
            value = f"{field.name} {field.number}"
        elif field.cpp_type == field.CPPTYPE_BOOL:
            value = not field.default_value
        else:
            value = field.number + 1
        if not field.has_presence:
            getattr(message, field.name).extend([value, value])
        elif field.message_type is not None:
            getattr(message, field.name).CopyFrom(value)
        else:
            setattr(message, field.name, value)
    return message


@pytest.mark.parametrize("field", V1.DESCRIPTOR.fields_by_name.values(), ids=lambda field: field.name)
def test_no_field_of_v1_is_lost(field: Any) -> None:
    old = filled(V1.DESCRIPTOR)
    for other in V1.DESCRIPTOR.fields:
        if other.name != field.name:
            old.ClearField(other.name)
    net = messages.NetParameter(layers=[old])
    if field.name == "layer":  # V0, which the tests below are about
        with pytest.raises(InputError, match="V0 has no type"):
            upgrade_net(net, "n")
        return
    upgrade_net(net, "n")
    (new,) = net.layer
    assert not net.layers
    value = getattr(old, field.name)
    if field.name == "type":
        assert new == layer("type: 'AbsVal'")
    elif field.name == "param":
        assert [spec.name for spec in new.param] == list(value)
    elif field.name == "blob_share_mode":
        assert [spec.share_mode for spec in new.param] == [messages.ParamSpec.PERMISSIVE] * 2
    elif field.name == "blobs_lr":
        assert [spec.lr_mult for spec in new.param] == list(value)
    elif field.name == "weight_decay":
        assert [spec.decay_mult for spec in new.param] == list(value)
    else:
        assert getattr(new, field.name) == value
        assert [stated.name for stated, _ in new.ListFields()] == [field.name]


def test_every_v1_type_has_todays_name() -> None:
    camel_case = {  # where the letters are not those of the enum
        "NONE": "", "SOFTMAX_LOSS": "SoftmaxWithLoss", "HOLE_CONVOLUTION": "Convolution",
        # and where the capitals are not those of its words
        "ABSVAL": "AbsVal", "ARGMAX": "ArgMax", "BNLL": "BNLL", "HDF5_DATA": "HDF5Data", "HDF5_OUTPUT": "HDF5Output",
        "LRN": "LRN", "MVN": "MVN", "RELU": "ReLU", "TANH": "TanH", "BN": "BN", "CONVOLUTION3D": "Convolution3D",
        "POOLING3D": "Pooling3D",
    }  # fmt: skip
    for name, number in V1.LayerType.items():
        net = messages.NetParameter(layers=[{"name": "l", "type": number}])
        upgrade_net(net, "n")
        expected = camel_case.get(name, "".join(word.capitalize() for word in name.split("_")))
        assert net.layer[0].type == expected


@pytest.mark.parametrize(
    ("v1", "param"), [("DATA", "data_param"), ("IMAGE_DATA", "image_data_param"), ("WINDOW_DATA", "window_data_param")]
)
def test_transformations_move_from_each_data_layer(v1: str, param: str) -> None:
    text = "scale: 0.5 mean_file: 'm' crop_size: 5 mirror: true"
    new = upgraded(f"layers {{ type: {v1} {param} {{ batch_size: 2 {text} }} transform_param {{ mean_value: 3 }} }}")
    assert getattr(new, param) == type(getattr(new, param))(batch_size=2)
    assert new.transform_param == as_stated(f"{text} mean_value: 3", "TransformationParameter")


def test_multipliers_for_some_of_the_blobs() -> None:
    new = upgraded("layers { type: CONVOLUTION blobs_lr: 3 weight_decay: [1, 0] param: ['', 'b', 'c'] }")
    specs = "param { name: '' lr_mult: 3 decay_mult: 1 } param { name: 'b' decay_mult: 0 } param { name: 'c' }"
    assert new == layer(f"type: 'Convolution' {specs}")


# --- V0


V0_LAYERS = [
    ("accuracy", "", "type: 'Accuracy'"),
    ("bnll", "", "type: 'BNLL'"),
    ("concat", "concat_dim: 0", "type: 'Concat' concat_param { concat_dim: 0 }"),
    (
        "conv",
        "num_output: 3 biasterm: false weight_filler { std: 2 } bias_filler { value: 3 } pad: 4 kernelsize: 5 group: 6 "
        "stride: 7",
        "type: 'Convolution' convolution_param { num_output: 3 bias_term: false weight_filler { std: 2 } "
        "bias_filler { value: 3 } pad: 4 kernel_size: 5 group: 6 stride: 7 }",
    ),
    (
        "data",
        "source: 's' batchsize: 3 rand_skip: 4",
        "type: 'Data' data_param { source: 's' batch_size: 3 rand_skip: 4 }",
    ),
    ("dropout", "dropout_ratio: 0.25", "type: 'Dropout' dropout_param { dropout_ratio: 0.25 }"),
    ("euclidean_loss", "", "type: 'EuclideanLoss'"),
    ("flatten", "", "type: 'Flatten'"),
    ("hdf5_data", "source: 's' batchsize: 3", "type: 'HDF5Data' hdf5_data_param { source: 's' batch_size: 3 }"),
    (
        "hdf5_output",
        "hdf5_output_param { file_name: 'f' }",
        "type: 'HDF5Output' hdf5_output_param { file_name: 'f' }",
    ),
    ("im2col", "", "type: 'Im2col'"),
    (
        "images",
        "source: 's' batchsize: 3 rand_skip: 4 shuffle_images: true new_height: 5 new_width: 6",
        "type: 'ImageData' image_data_param { source: 's' batch_size: 3 rand_skip: 4 shuffle: true new_height: 5 "
        "new_width: 6 }",
    ),
    ("infogain_loss", "source: 's'", "type: 'InfogainLoss' infogain_loss_param { source: 's' }"),
    (
        "innerproduct",
        "num_output: 3 biasterm: false weight_filler { std: 2 } bias_filler { value: 3 }",
        "type: 'InnerProduct' inner_product_param { num_output: 3 bias_term: false weight_filler { std: 2 } "
        "bias_filler { value: 3 } }",
    ),
    (
        "lrn",
        "local_size: 3 alpha: 4 beta: 5 k: 6",
        "type: 'LRN' lrn_param { local_size: 3 alpha: 4 beta: 5 k: 6 }",
    ),
    ("multinomial_logistic_loss", "", "type: 'MultinomialLogisticLoss'"),
    (
        "pool",
        "pool: STOCHASTIC pad: 2 kernelsize: 3 stride: 4",
        "type: 'Pooling' pooling_param { pool: STOCHASTIC pad: 2 kernel_size: 3 stride: 4 }",
    ),
    ("relu", "", "type: 'ReLU'"),
    ("sigmoid", "", "type: 'Sigmoid'"),
    ("softmax", "", "type: 'Softmax'"),
    ("softmax_loss", "", "type: 'SoftmaxWithLoss'"),
    ("split", "", "type: 'Split'"),
    ("tanh", "", "type: 'TanH'"),
    (
        "window_data",
        "source: 's' batchsize: 3 det_fg_threshold: 0.25 det_bg_threshold: 0.125 det_fg_fraction: 0.75 "
        "det_context_pad: 4 det_crop_mode: 'square'",
        "type: 'WindowData' window_data_param { source: 's' batch_size: 3 fg_threshold: 0.25 bg_threshold: 0.125 "
        "fg_fraction: 0.75 context_pad: 4 crop_mode: 'square' }",
    ),
]
OF_EVERY_TYPE = "name: 'l' blobs_lr: [1, 2] weight_decay: [3, 4] scale: 2 meanfile: 'm' cropsize: 3 mirror: true"
OF_EVERY_TYPE_TODAY = (
    "name: 'l' param { lr_mult: 1 decay_mult: 3 } param { lr_mult: 2 decay_mult: 4 } "
    "transform_param { scale: 2 mean_file: 'm' crop_size: 3 mirror: true }"
)


@pytest.mark.parametrize(("kind", "old", "new"), V0_LAYERS, ids=[kind for kind, _, _ in V0_LAYERS])
def test_v0_layers(kind: str, old: str, new: str) -> None:
    text = f"layers {{ bottom: 'x' top: 'y' layer {{ type: '{kind}' {old} {OF_EVERY_TYPE} }} }}"
    assert upgraded(text) == layer(f"bottom: 'x' top: 'y' {new} {OF_EVERY_TYPE_TODAY}")


@pytest.mark.parametrize(("kind", "old", "new"), V0_LAYERS, ids=[kind for kind, _, _ in V0_LAYERS])
def test_no_field_of_v0_is_lost(kind: str, old: str, new: str) -> None:
    taken = as_stated(f"type: '{kind}' {old} {OF_EVERY_TYPE} blobs {{}}", "V0LayerParameter")
    for field, value in filled(V0.DESCRIPTOR).ListFields():
        if field.name not in [name.name for name, _ in taken.ListFields()]:
            extra = V0(name="l", type=kind, **{field.name: value})
            with pytest.raises(InputError, match=f'n: layer "l": the V0 type "{kind}" has no {field.name}'):
                upgrade_net(messages.NetParameter(layers=[{"layer": extra}]), "n")


def test_every_field_of_v0_belongs_to_a_type_but_those_that_never_did() -> None:
    taken = {"name", "type", "blobs"}
    for _, old, _ in V0_LAYERS:
        taken |= {field.name for field, _ in as_stated(f"{old} {OF_EVERY_TYPE}", "V0LayerParameter").ListFields()}
    assert set(V0.DESCRIPTOR.fields_by_name) - taken == {"new_num", "new_channels"}


PAD = "layers { layer { name: 'pad' type: 'padding' pad: 3 } bottom: 'x' top: 'p' }"


def test_padding_goes_to_all_that_read_it() -> None:
    readers = "".join(
        f"layers {{ layer {{ name: '{name}' type: '{kind}' {pad} }} bottom: 'p' top: '{name}' }}"
        for name, kind, pad in (("c", "conv", ""), ("m", "pool", "pad: 0"))
    )
    # The second "p" is no padding layer's.
    later = "layers { layer { type: 'relu' } bottom: 'c' top: 'p' } layers { layer { type: 'tanh' } bottom: 'p' }"
    net = parse_net(PAD + readers + later)
    assert net == as_stated(
        "layer { name: 'c' type: 'Convolution' bottom: 'x' top: 'c' convolution_param { pad: 3 } }"
        "layer { name: 'm' type: 'Pooling' bottom: 'x' top: 'm' pooling_param { pad: 3 } }"
        "layer { type: 'ReLU' bottom: 'c' top: 'p' } layer { type: 'TanH' bottom: 'p' }"
    )


# --- errors


def test_an_input_without_a_shape_is_left_out_where_a_layer_makes_it() -> None:
    # As UpgradeNetInput does, whatever the layer is; public AlexNets have one.
    layers = "layer { name: 'data' type: 'Input' top: 'data' input_param { shape { dim: [1, 3, 227, 227] } } }"
    assert parse_net(f"name: 'AlexNet' input: 'data' {layers}") == as_stated(f"name: 'AlexNet' {layers}")
    net = as_stated(f"input: 'data' {layers}")
    assert upgrade_net(net, "n") == ["inputs without a shape"] and upgrade_net(net, "n") == []
    with pytest.raises(InputError, match="2 input and 0 input_shape don't fit"):
        parse_net(f"input: ['data', 'label'] {layers}")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "layer { name: 'a' } layers { name: 'b' type: RELU }",
            'n: the net has "layers", the old form, and "layer": keep only one form',
        ),
        (
            "layers { name: 'a' type: RELU } layers { layer { name: 'b' type: 'relu' } }",
            'n: the net has V0 layers (a "layer" within "layers") and V1 layers: keep only one form',
        ),
        (
            "layers { layer { name: 'b' type: 'relu' } blobs_lr: 1 }",
            'n: layer "b" is a V0 layer, with blobs_lr outside of its inner layer: move or remove it',
        ),
        (
            "layers { layer { name: 'b' type: 'ReLU' } }",
            'n: layer "b": V0 has no type "ReLU"; it has accuracy, bnll,',
        ),
        (
            "layers { name: 'd' type: DATA data_param { scale: 2 } transform_param { scale: 3 } }",
            'n: layer "d": scale is given in data_param, an old form, and in transform_param: '
            "remove it from the former",
        ),
        (
            PAD + "layers { layer { name: 'r' type: 'relu' } bottom: 'p' top: 'p' }",
            'n: layer "r" (relu) reads the padding layer "pad", which only conv and pool layers with one bottom can',
        ),
        (
            PAD + "layers { layer { name: 'c' type: 'conv' } bottom: 'p' bottom: 'q' }",
            'n: layer "c" (conv) reads the padding layer "pad", which only',
        ),
        (
            PAD.replace("top: 'p'", "top: 'p' top: 'q'") + "layers { layer { name: 'c' type: 'conv' } bottom: 'p' }",
            'n: padding layer "pad" must have one bottom and one top',
        ),
        (
            PAD + "layers { layer { name: 'c' type: 'conv' pad: 1 } bottom: 'p' }",
            'n: layer "c" has its own pad after the padding layer "pad": keep one of them',
        ),
        ("input: 'x'", "n: 1 input and 0 input_shape don't fit: give an input_shape, or four input_dim, for each"),
        ("input: 'x' input_dim: [1, 2, 3]", "n: 1 input and 3 input_dim don't fit"),
        ("input: ['x', 'y'] input_dim: [1, 2, 3, 4]", "n: 2 input and 4 input_dim don't fit"),
        ("input: ['x', 'y'] input_shape { dim: 3 }", "n: 2 input and 1 input_shape don't fit"),
        ("input: 'x' input_shape {} input_dim: [1, 2, 3, 4]", "n: input_dim and input_shape are both given: keep one"),
        (
            "input_shape { dim: 1 }",
            "n: input_shape gives a shape, but there is no input: add an input with the blob's name",
        ),
    ],
)
def test_what_has_no_current_form_is_refused(text: str, error: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_net(text, "n")
    assert str(caught.value).startswith(error)


# --- solvers


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SGD", "SGD"), ("NESTEROV", "Nesterov"), ("ADAGRAD", "AdaGrad"), ("RMSPROP", "RMSProp"),
        ("ADADELTA", "AdaDelta"), ("ADAM", "Adam"),
    ],
)  # fmt: skip
def test_solver_types(old: str, new: str) -> None:
    assert parse_solver(f"base_lr: 1 solver_type: {old}") == as_stated(f"base_lr: 1 type: '{new}'", "SolverParameter")


def test_two_solver_types_are_refused() -> None:
    with pytest.raises(InputError, match="n: type and its old form solver_type are both given: remove solver_type"):
        parse_solver("type: 'SGD' solver_type: SGD", "n")


def test_nets_inside_of_a_solver() -> None:
    old, new = "layers { name: 'r' type: RELU }", "layer { name: 'r' type: 'ReLU' }"
    text = "net_param { OLD } train_net_param { OLD } test_net_param { OLD } test_net_param { OLD } type: 'SGD'"
    assert parse_solver(text.replace("OLD", old)) == as_stated(text.replace("OLD", new), "SolverParameter")
    with pytest.raises(InputError, match='n: test_net_param: the net has "layers", the old form, and "layer"'):
        parse_solver(f"test_net_param {{ {old} {new} }}", "n")


# --- weights


def test_recorded_v1_weights_give_the_recorded_outputs() -> None:
    torch = pytest.importorskip("torch")
    from autodial.net.net import Net

    expected = np.load(UPGRADE / "v1_expected.npz")
    net = Net(read_net(UPGRADE / "v1_net.prototxt"), messages.TEST)
    assert net.load_weights(read_weights(UPGRADE / "v1_weights.caffemodel")) == []
    for name in expected.files:
        if name.startswith("param/"):
            _, layer_name, index = name.split("/")
            np.testing.assert_array_equal(net.layer(layer_name).blobs[int(index)].detach().numpy(), expected[name])
    with torch.no_grad():
        outputs = net({"data": torch.from_numpy(expected["in/data"])})
    np.testing.assert_allclose(outputs["prob"].numpy(), expected["out/prob"], rtol=1e-5, atol=1e-7)


def test_old_weights_written_again_are_current_and_keep_their_old_shapes(tmp_path: Path) -> None:
    weights = read_weights(UPGRADE / "v1_weights.caffemodel")
    write_weights(weights, tmp_path / "w.caffemodel")
    net = messages.NetParameter.FromString((tmp_path / "w.caffemodel").read_bytes())
    assert [(layer.name, layer.type) for layer in net.layer] == [("conv1", "Convolution"), ("fc", "InnerProduct")]
    old = messages.NetParameter.FromString((UPGRADE / "v1_weights.caffemodel").read_bytes())
    for new_layer, old_layer in zip(net.layer, old.layers, strict=True):
        for new, blob in zip(new_layer.blobs, old_layer.blobs, strict=True):
            assert [field.name for field, _ in new.ListFields()] == ["num", "channels", "height", "width", "data"]
            for field in ("num", "channels", "height", "width"):
                assert getattr(new, field) == getattr(blob, field)
            assert list(new.data) == np.array(blob.data or blob.double_data, np.float32).tolist()
    again = read_weights(tmp_path / "w.caffemodel")
    assert [layer.legacy for layer in again.layers] == [layer.legacy for layer in weights.layers]


def test_v0_weights(tmp_path: Path) -> None:
    old = as_stated(PAD + "layers { layer { name: 'c' type: 'conv' num_output: 2 } bottom: 'p' top: 'c' }")
    old.input.append("x")  # without a shape, as in the files of that time
    old.layers[1].layer.blobs.add(num=1, channels=1, height=2, width=3, data=range(6))
    old.layers[1].layer.blobs.add(shape={"dim": [2]}, double_data=[0.5, 2])
    path = tmp_path / "w.caffemodel"
    path.write_bytes(old.SerializeToString())
    (conv,) = read_weights(path).layers
    assert conv.param == layer(
        "name: 'c' type: 'Convolution' bottom: 'x' top: 'c' convolution_param { num_output: 2 pad: 3 }"
    )
    assert [np.shape(blob) for blob in conv.blobs] == [(1, 1, 2, 3), (2,)]
    assert [np.ravel(blob).tolist() for blob in conv.blobs] == [[0, 1, 2, 3, 4, 5], [0.5, 2]]  # type: ignore[arg-type]
    assert conv.legacy == {0}


def test_old_weights_of_mixed_forms_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.caffemodel"
    path.write_bytes(as_stated("layer { name: 'a' } layers { name: 'b' }").SerializeToString())
    with pytest.raises(InputError, match='the net has "layers", the old form, and "layer"'):
        read_weights(path)


def test_upgraded_text_is_text_of_today() -> None:
    net = read_net(UPGRADE / "v0_net.prototxt")
    assert as_stated(to_text(net)) == net


def test_nets_of_c3d_have_inputs_of_five_axes() -> None:
    text = """input: "video" input_dim: 2 input_dim: 3 input_dim: 16 input_dim: 8 input_dim: 9
      layers { name: "c" type: CONVOLUTION3D bottom: "video" top: "c" convolution_param { kernel_depth: 3 } }
      layers { name: "p" type: POOLING3D bottom: "c" top: "p" pooling_param { temporal_stride: 2 } }"""
    layers = parse_net(text).layer
    assert [layer.type for layer in layers] == ["Input", "Convolution3D", "Pooling3D"]
    assert list(layers[0].input_param.shape[0].dim) == [2, 3, 16, 8, 9]
    assert layers[1].convolution_param.kernel_depth == 3 and layers[2].pooling_param.temporal_stride == 2
    with pytest.raises(InputError, match="1 input and 5 input_dim don't fit"):
        parse_net(text.partition("layers")[0])


def test_nets_of_deconvnet() -> None:
    text = """layers { name: "b" type: BN bottom: "x" top: "y" bn_param { bn_mode: INFERENCE } }
      layers { name: "u" type: UNPOOLING bottom: "y" bottom: "m" top: "z" unpooling_param { unpool_size: 8 } }"""
    bn, unpooling = parse_net(text).layer
    assert bn.type == "BN" and bn.bn_param.bn_mode == messages.BNParameter.INFERENCE
    assert unpooling.type == "Unpooling" and unpooling.unpooling_param.unpool_size == 8
