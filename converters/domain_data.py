"""The data layers of an AutoDIAL net: source and target in TRAIN, the target in TEST, modelled on the original's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autodial.converters.classification import Classification
from autodial.data.datum_data import DatumData
from autodial.data.hdf5_data import HDF5Data
from autodial.data.paths import find
from autodial.data.source import BATCH_OPTIONS
from autodial.data.transforms import Transform, size_before_crop
from autodial.errors import InputError
from autodial.proto import Weights, read_blob
from autodial.proto import messages as pb

SOURCE_LIST, TARGET_LIST, TEST_LIST = "source.txt", "target.txt", "target_test.txt"
"""Names of the lists, those of the nets that ship."""


@dataclass(frozen=True)
class DomainData:
    """What the data layers share, and the blobs that they make.

    Attributes:
        train, test: ImageData or HDF5Data layers without names, lists and batch sizes.
        blobs: name of the blob of samples, by phase.
        label: name of the blob of labels.
        shape: of a sample in the blob, (C, H, W) for images; None for features whose files can't be read.
        batch_size: samples in a batch of the original's TRAIN data; None if the net does not say.
        test_batch_size: the same for TEST.
        notes: what the user should know, a sentence each.
    """

    train: pb.LayerParameter
    test: pb.LayerParameter
    blobs: dict[pb.Phase, str]
    label: str
    shape: tuple[int, ...] | None
    batch_size: int | None
    test_batch_size: int | None
    notes: tuple[str, ...]

    def layers(self, source_batch: int, target_batch: int, test_batch: int) -> list[pb.LayerParameter]:
        """Two data layers for TRAIN, whose tops a Concat joins along the batch axis, and one for TEST."""
        blob, label = self.blobs[pb.TRAIN], self.label
        rule = pb.NetStateRule(phase=pb.TRAIN)
        source = self._layer(self.train, f"{blob}-source", [f"{blob}-source", label], pb.TRAIN)
        target = self._layer(self.train, f"{blob}-target", [f"{blob}-target", f"{label}-target"], pb.TRAIN)
        test = self._layer(self.test, f"{self.blobs[pb.TEST]}-test", [self.blobs[pb.TEST], label], pb.TEST)
        for layer, name, batch_size in (
            (source, SOURCE_LIST, source_batch),
            (target, TARGET_LIST, target_batch),
            (test, TEST_LIST, test_batch),
        ):
            options = getattr(layer, BATCH_OPTIONS[layer.type])
            options.source, options.batch_size = name, batch_size
            if layer is not test:
                options.shuffle = True
        silence = pb.LayerParameter(
            name=f"{label}-target-silence", type="Silence", bottom=[f"{label}-target"], include=[rule]
        )
        concat = pb.LayerParameter(
            name=f"{blob}-concat",
            type="Concat",
            bottom=[f"{blob}-source", f"{blob}-target"],
            top=[blob],
            include=[rule],
            concat_param=pb.ConcatParameter(axis=0),
        )
        return [source, target, silence, concat, test]

    @staticmethod
    def _layer(template: pb.LayerParameter, name: str, tops: list[str], phase: pb.Phase) -> pb.LayerParameter:
        layer = pb.LayerParameter()
        layer.CopyFrom(template)
        layer.name = name
        layer.top[:] = tops
        layer.include.add(phase=phase)
        return layer


def read_domain_data(
    net: pb.NetParameter,
    parts: Classification,
    weights: Weights | None,
    *,
    size: tuple[int, int] | None = None,
    transform: pb.TransformationParameter | None = None,
    base_dir: Path | None = None,
) -> DomainData:
    """Read how a net's samples are prepared.

    Images are resized to the first size that is known: the mean image's; new_height and new_width, or the size of the
    database's images; the next multiple of 32 above the crop (256 for 224 and 227, 32 for 28); the input blob's.

    Args:
        net: the NetParameter.
        parts: of the net.
        weights: the first convolution's tell grey images from colour.
        size: height and width to resize images to instead. With a smaller square input, images are cropped to it.
        transform: a TransformationParameter instead of the net's own; in TEST, mirror is left out.
        base_dir: folder of the net's file.

    Raises:
        InputError: the images' size is not known, or options contradict each other.
    """
    (layer, blob), (test_layer, test_blob) = parts.data[pb.TRAIN], parts.data[pb.TEST]
    blobs = {pb.TRAIN: blob, pb.TEST: test_blob}
    batches = _batch_size(layer), _batch_size(test_layer)
    if layer.type == "HDF5Data":
        if size or transform:
            raise InputError(f'layer "{layer.name}" (HDF5Data) reads features, which are not resized or transformed')
        note = (
            f"the HDF5 files in {SOURCE_LIST} must hold {blob}-source and {parts.label}, those in {TARGET_LIST} "
            f"{blob}-target and {parts.label}-target, those in {TEST_LIST} {test_blob} and {parts.label}"
        )
        features = pb.LayerParameter(type="HDF5Data")
        shape = _feature_shape(layer, blob, base_dir)
        return DomainData(features, features, blobs, parts.label, shape, *batches, (note,))

    notes = []
    train, test = _transforms(layer, test_layer, transform)
    stated = _stated_shape(layer, blob, base_dir)
    mean = _mean_shape(train, base_dir)
    channels = _channels(layer, train, stated, mean) or _channels_of_weights(net, parts, weights, blob)
    if channels is None:
        channels = 3
        notes.append("the images are taken to be in colour; for grey images, state force_gray: true in `transform`")
    if channels not in (1, 3):
        raise InputError(f'layer "{layer.name}" makes images of {channels} channels, and image files have 1 or 3')
    is_input = layer.type in ("Input", "DummyData", "MemoryData")
    # a net's input takes images as they are after the crop
    before_crop = stated[1:] if stated and not is_input else None
    if is_input and stated and size and not train.crop_size and stated[1] == stated[2] < min(size):
        train.crop_size = test.crop_size = stated[1]
    beyond_crop = size_before_crop(train.crop_size) if train.crop_size else None
    resize = size or (mean and mean[1:]) or before_crop or beyond_crop or (stated and stated[1:])
    if not resize:
        raise InputError(f'layer "{layer.name}" ({layer.type}) does not say which size images have: state it in `size`')
    if is_input and not (train.mean_value or train.mean_file or train.HasField("scale")):
        notes.append(
            "the net does not say what is subtracted from its images, and by what they are multiplied: if it was "
            'trained with a mean or a scale, state them in `transform`, such as "mean_value: 104 '
            'mean_value: 117 mean_value: 123"'
        )
    checked = pb.TransformationParameter()
    checked.CopyFrom(train)
    if mean is None and train.mean_file:
        checked.ClearField("mean_file")
        notes.append(
            f"{train.mean_file} can't be read here: put it in place, of the size to which images are resized, or state "
            'the mean\'s values in `transform`, such as "mean_value: 104 mean_value: 117 mean_value: 123"'
        )
    Transform.from_caffe(checked, phase=pb.TRAIN, channels=channels, base_dir=base_dir).size(*resize)
    shape = (channels, train.crop_size, train.crop_size) if train.crop_size else (channels, *resize)
    images = pb.ImageDataParameter(new_height=resize[0], new_width=resize[1])
    if channels != 3:
        images.is_color = False
    train_layer, test_layer = (
        pb.LayerParameter(
            type="ImageData",
            transform_param=one if one.ListFields() else None,
            image_data_param=images,
        )
        for one in (train, test)
    )
    return DomainData(train_layer, test_layer, blobs, parts.label, shape, *batches, tuple(notes))


def _batch_size(layer: pb.LayerParameter) -> int | None:
    options = getattr(layer, BATCH_OPTIONS.get(layer.type, ""), None)
    return options.batch_size or None if options is not None else None


def _transforms(
    layer: pb.LayerParameter, test_layer: pb.LayerParameter, transform: pb.TransformationParameter | None
) -> tuple[pb.TransformationParameter, pb.TransformationParameter]:
    """Transforms for TRAIN and TEST, without fields that change nothing."""
    train, test = pb.TransformationParameter(), pb.TransformationParameter()
    train.CopyFrom(layer.transform_param if transform is None else transform)
    has_own = transform is None and test_layer.type == layer.type
    test.CopyFrom(test_layer.transform_param if has_own else train)
    test.ClearField("mirror")
    if not train.mirror:
        train.ClearField("mirror")
    return train, test


def _stated_shape(layer: pb.LayerParameter, blob: str, base_dir: Path | None) -> tuple[int, int, int] | None:
    """Channels, height and width of a data layer's images, or of its blob if it reads no images."""
    if layer.type in ("Input", "DummyData"):
        shapes = layer.input_param.shape if layer.type == "Input" else layer.dummy_data_param.shape
        if not shapes:
            return None
        shape = tuple(shapes[list(layer.top).index(blob) if len(shapes) > 1 else 0].dim)
        if len(shape) != 4 or not all(0 < length < 2**31 for length in shape):
            raise InputError(f'layer "{layer.name}" ({layer.type}) has the shape {shape}, which is not that of images')
        return shape[1], shape[2], shape[3]
    if layer.type == "MemoryData":
        memory = layer.memory_data_param
        return memory.channels, memory.height, memory.width
    if layer.type == "ImageData" and layer.image_data_param.new_height:
        options = layer.image_data_param
        return 3 if options.is_color else 1, options.new_height, options.new_width
    if layer.type == "Data":
        try:
            height, width, channels = DatumData(layer, phase=pb.TRAIN, seed=0, base_dir=base_dir).image_shape
        except InputError:  # most users of a net have no copy of its database
            return None
        return channels, height, width
    return None


def _mean_shape(transform: pb.TransformationParameter, base_dir: Path | None) -> tuple[int, int, int] | None:
    """Channels, height and width of the mean image; None if there is none, or it can't be read."""
    if not transform.mean_file:
        return None
    try:
        channels, height, width = read_blob(find(transform.mean_file, base_dir)).shape[-3:]
    except (InputError, ValueError):
        return None
    return channels, height, width


def _channels(
    layer: pb.LayerParameter,
    transform: pb.TransformationParameter,
    stated: tuple[int, int, int] | None,
    mean: tuple[int, int, int] | None,
) -> int | None:
    """Channels of the images, where the net or its files say it."""
    if stated is not None:
        return stated[0]
    if layer.type == "ImageData":
        return 3 if layer.image_data_param.is_color else 1
    if transform.force_gray or transform.force_color:
        return 1 if transform.force_gray else 3
    if mean is not None:
        return mean[0]
    return 3 if layer.type == "WindowData" or len(transform.mean_value) == 3 else None


def _channels_of_weights(net: pb.NetParameter, parts: Classification, weights: Weights | None, blob: str) -> int | None:
    """What the weights of the first convolution say of the images' channels."""
    stored = {layer.name: layer.blobs for layer in weights.layers} if weights else {}
    for layer in (net.layer[number] for number in parts.body):
        if layer.type == "Convolution" and blob in layer.bottom and stored.get(layer.name):
            kernel = stored[layer.name][0]
            return None if kernel is None else kernel.shape[1] * layer.convolution_param.group
    return None


def _feature_shape(layer: pb.LayerParameter, blob: str, base_dir: Path | None) -> tuple[int, ...] | None:
    try:
        shapes = HDF5Data(layer, phase=pb.TRAIN, seed=0, base_dir=base_dir).top_shapes
    except InputError:
        return None
    return tuple(shapes[list(layer.top).index(blob)][1:])
