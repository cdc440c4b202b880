"""The inputs of a net that is converted: their shapes, and arrays to try it on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autodial.data.transforms import decode, resize
from autodial.errors import InputError
from autodial.layers import Shape, layer_class, registry
from autodial.net.net import Net
from autodial.netparam.graph import Graph, Node
from autodial.proto import messages as pb
from autodial.system.files import existing_file
from autodial.wording import alternatives

Arrays = dict[str, NDArray[np.float32]]
"""Float32 arrays by input."""

Samples = Mapping[str, NDArray[Any] | Sequence[str | Path]]
"""By input, an array, one .npy file, or image files; "" stands for the first input."""

_IMAGE_CHANNELS = (1, 3)
_WHOLE = {("LSTM", 1), ("RNN", 1), ("ConvLSTM", 1), ("BatchReindex", 1), ("ROIPooling", 1), ("PSROIPooling", 1)}
"""Types of layers and numbers of their bottoms that hold whole numbers."""


@dataclass(frozen=True)
class NetInputs:
    """The inputs of a net.

    Attributes:
        shapes: by blob, as the net states them, with one row for a data layer's.
        with_rows: the same, with the rows of the data layers' batches.
        readers: by blob, the layers that read it, with the number of the bottom.
        notes: sentences about what a data layer does to images before they are inputs.
    """

    shapes: dict[str, Shape]
    with_rows: dict[str, Shape]
    readers: dict[str, list[tuple[pb.LayerParameter, int]]]
    notes: list[str]

    def batched(self, batch: int) -> dict[str, Shape]:
        """The shapes with another number of rows where the first axis is the first input's batch."""
        first = next(iter(self.shapes.values()))
        return {
            name: (batch, *shape[1:]) if shape and shape[:1] == first[:1] else shape
            for name, shape in self.shapes.items()
        }

    def resized(self, more: tuple[int, int]) -> dict[str, Shape]:
        """The shapes with more rows and columns in images of the first image's size; InputError without images."""
        size = next((shape[2:] for shape in self.shapes.values() if len(shape) == 4), None)
        if size is None:
            raise InputError("no input of the net has a height and a width: leave out `dynamic`")
        larger = tuple(length + extra for length, extra in zip(size, more, strict=True))
        return {
            name: (*shape[:2], *larger) if len(shape) == 4 and shape[2:] == size else shape
            for name, shape in self.shapes.items()
        }

    def made(self, shapes: Mapping[str, Shape], seed: int) -> Arrays:
        """Random arrays of these shapes: pixels for images, and what the layers that read an input can use."""
        rng = np.random.default_rng(seed)
        return {name: self._made(name, shape, shapes, rng).astype(np.float32) for name, shape in shapes.items()}

    def _made(self, name: str, shape: Shape, shapes: Mapping[str, Shape], rng: np.random.Generator) -> NDArray[Any]:
        image = next((other for other in shapes.values() if len(other) == 4), (1, 1, 1, 1))
        for layer, place in self.readers[name]:
            if layer.type == "Embed":
                return rng.integers(0, layer.embed_param.input_dim, shape)
            if layer.type in ("LSTM", "RNN", "ConvLSTM") and place == 1:
                return rng.integers(0, 2, shape)
            if layer.type == "Filter" and place == len(layer.bottom) - 1:
                return rng.integers(0, 2, shape)
            if layer.type == "BatchReindex" and place == 1:
                return rng.integers(0, shapes.get(layer.bottom[0], (1,))[0], shape)
            if layer.type in ("ROIPooling", "PSROIPooling") and place == 1:
                return _regions(shape, image, rng)
            proposes = layer.type == "Proposal" or layer.python_param.layer == "ProposalLayer"
            if proposes and place == 2 and shape[-1:] in ((2,), (3,)):
                return np.broadcast_to([*image[2:], 1][: shape[-1]], shape)
        if len(shape) == 4 and shape[1] in _IMAGE_CHANNELS:
            return rng.integers(0, 256, shape)
        return rng.standard_normal(shape)

    def read(self, samples: Samples) -> Arrays:
        """The arrays of samples: those given, and images, resized to an input's size, as BGR or grey values 0 to 255.

        Raises:
            InputError: there is no such input, a file can't be read, or the input takes no images.
        """
        arrays: Arrays = {}
        for name, given in samples.items():
            name = name or next(iter(self.shapes))
            if name not in self.shapes:
                raise InputError(f'the net has no input "{name}"{alternatives(name, list(self.shapes))}')
            if not isinstance(given, np.ndarray):
                given = self._files(name, [Path(file) for file in given])
            if given.dtype.kind not in "biuf":
                raise InputError(f'the sample for "{name}" holds {given.dtype}, and the net takes numbers')
            with np.errstate(over="ignore"):
                arrays[name] = np.ascontiguousarray(given, np.float32)
        return arrays

    def _files(self, name: str, files: Sequence[Path]) -> NDArray[Any]:
        for file in files:
            existing_file(file, "sample")
        if ".npy" in (file.suffix for file in files):
            if len(files) > 1:
                raise InputError(f'`samples` for "{name}" are {len(files)} files: give one .npy file, or images alone')
            try:
                return np.asarray(np.load(files[0], allow_pickle=False))
            except (OSError, ValueError) as error:
                raise InputError(f"{files[0]} can't be read as an array of numbers: {error}") from error
        shape = self.shapes[name]
        if len(shape) != 4 or shape[1] not in _IMAGE_CHANNELS:
            raise InputError(f'input "{name}" takes {shape}, no images: give one .npy file in `samples`')
        images = [resize(decode(file, shape[1] == 3), shape[2], shape[3]) for file in files]
        return np.ascontiguousarray(np.stack(images).transpose(0, 3, 1, 2), np.float32)

    @property
    def indices(self) -> set[str]:
        """Inputs that hold whole numbers, such as indices: the next number of float32 means another thing there."""
        return {
            name
            for name, readers in self.readers.items()
            if any((layer.type, place) in _WHOLE or layer.type in ("Embed", "Filter") for layer, place in readers)
        }

    def words(self) -> str:
        """What `made` makes, in words."""
        images = any(len(shape) == 4 and shape[1] in _IMAGE_CHANNELS for shape in self.shapes.values())
        return "random pixels" if images else "random numbers"


def _regions(shape: Shape, image: Shape, rng: np.random.Generator) -> NDArray[Any]:
    """Regions (R, 5) of images of a batch."""
    count = shape[0]
    corners = np.sort(rng.uniform(0, 1, (count, 2, 2)), axis=1) * [image[3] - 1, image[2] - 1]
    rows = np.concatenate([rng.integers(0, image[0], (count, 1)), corners.reshape(count, 4)], axis=1)
    return rows.reshape(shape)


def feed_inputs(
    graph: Graph, outputs: Sequence[int], base_dir: Path | None, given: Mapping[str, Sequence[int]]
) -> NetInputs:
    """Put an Input layer in the place of each data layer that outputs depend on, for each blob that is read.

    Args:
        graph: of the net; changed.
        outputs: values of the graph.
        base_dir: the prototxt's folder.
        given: shapes by input, in the place of those that the net states.

    Raises:
        InputError: the outputs depend on no data, the shape of some is not known, or `given` has another blob's.
    """
    shapes: dict[str, Shape] = {}
    with_rows: dict[str, Shape] = {}
    unknown: dict[str, _Unknown] = {}
    values = []
    notes = []
    ancestors = graph.ancestors(*outputs)
    declared = [name for node in graph.nodes if node.param.type == "Input" for name in node.param.top]
    wanted = {value for node in ancestors for value in node.bottoms}
    for node in ancestors:
        if not is_data(node.param):
            continue
        read = [value for value in node.tops if value in wanted]
        names = [graph.names[value] for value in read]
        known: dict[str, Shape] = {name: tuple(given[name]) for name in names if name in given}
        if len(known) < len(names):
            found = _shapes_of(node.param, base_dir)
            if isinstance(found, _Unknown):
                unknown.update((name, found) for name in names if name not in known)
                continue
            rows = _rows(node.param)
            with_rows.update(
                (name, (rows or shape[0], *shape[1:])) for name, shape in found.items() if name not in known
            )
            known = {**found, **known}
        notes += _preparation(node.param)
        place = graph.nodes.index(node)
        graph.nodes[place : place + 1] = [
            _input(name, known[name], value) for name, value in zip(names, read, strict=True)
        ]
        shapes.update((name, known[name]) for name in names)
        values += read
    if unknown:
        first = next(iter(unknown.values()))
        raise InputError(f"{first.reason}{_advice(unknown)}")
    if not shapes:
        raise InputError("the outputs depend on no input, so there is nothing to convert")
    for name in given:
        if name not in shapes:
            raise InputError(f'`shapes`: the net reads no input "{name}"{alternatives(name, list(shapes))}')
    notes += _unread([name for name in declared if name not in shapes])
    readers = {
        graph.names[value]: [(node.param, node.bottoms.index(value)) for node in ancestors if value in node.bottoms]
        for value in values
    }
    return NetInputs(shapes, {name: with_rows.get(name, shape) for name, shape in shapes.items()}, readers, notes)


def _unread(names: Sequence[str]) -> list[str]:
    """A sentence about inputs that the net declares and no converted layer reads, if there are any."""
    if not names:
        return []
    one = len(names) == 1
    which, are, them = ("input", "is", "it") if one else ("inputs", "are", "them")
    return [f"the {which} {', '.join(names)} {are} not in the file: no layer there reads {them}"]


def _preparation(layer: pb.LayerParameter) -> list[str]:
    """A sentence about what a data layer subtracts from its images, and what it multiplies them by, if it does."""
    done = layer.transform_param
    steps: list[str] = []
    if layer.type == "Input":  # which reads none
        return steps
    if done.mean_value:
        steps.append(f"subtracts mean_value {', '.join(f'{value:g}' for value in done.mean_value)}")
    elif done.HasField("mean_file"):
        steps.append(f"subtracts the mean in {done.mean_file}")
    if done.scale != 1:
        steps.append(f"multiplies by {done.scale:g}")
    notes = [f'layer "{layer.name}" {" and ".join(steps)}, and the file leaves that to you'] if steps else []
    notes += [
        f'layer "{layer.name}": {problem} here; what such fields do to images is left to you, too'
        for problem in layer.foreign_text
        if " has no field " in problem  # and not the text of a field that only the layer's own fork has
    ]
    return notes


def is_data(layer: pb.LayerParameter) -> bool:
    """Whether a layer's tops are inputs; without bottoms, Python layers and types not computed here read data, too."""
    return not layer.bottom and (
        layer.type == "Python" or layer.type not in registry or layer_class(layer.type).is_data
    )


def _input(name: str, shape: Shape, value: int) -> Node:
    layer = pb.LayerParameter(name=name, type="Input", top=[name])
    layer.input_param.shape.add(dim=shape)
    return Node(layer, [], [value])


@dataclass(frozen=True)
class _Unknown:
    """A data layer whose tops' shapes are not known.

    Attributes:
        reason: why, in a sentence.
        example: a shape that they may have: the batch and the size that the layer states, or usual ones.
        alternative: whether the reason itself says what else can be done.
    """

    reason: str
    example: Shape
    alternative: bool = False


def _advice(unknown: Mapping[str, _Unknown]) -> str:
    """What to do about inputs whose shapes are not known, as the end of a sentence."""
    (name, first), *others = unknown.items()
    give = ", so you can also give" if first.alternative else "; give"
    example = ",".join(map(str, first.example))
    more = f", and {'that' if len(others) == 1 else 'those'} of {', '.join(name for name, _ in others)}"
    return f"{give} its shape in `shapes`, such as {name}={example}{more if others else ''}"


def _shapes_of(layer: pb.LayerParameter, base_dir: Path | None) -> dict[str, Shape] | _Unknown:
    """Shapes of a data layer's tops: what it states, else what its files hold.

    Raises:
        InputError: an Input layer that states no shape, or an impossible one.
    """
    known = _stated(layer)
    if known is not None:
        return {**dict.fromkeys(layer.top, (known[0],)), layer.top[0]: known}
    example = (_rows(layer) or 1, 3, *(_size(layer) or (224, 224)))
    if layer.type == "Python":
        return _Unknown(f'layer "{layer.name}" (Python): what the class gives becomes an input', example)
    if layer.type not in registry:
        return _Unknown(
            f'layer "{layer.name}" ({layer.type}) is of a type that AutoDIAL does not read; what it gives becomes an '
            "input",
            example,
        )
    one = pb.NetParameter(layer=[layer])
    for field in ("include", "exclude"):  # by which it was chosen already
        one.layer[0].ClearField(field)
    try:
        return dict(Net(one, layer.phase, base_dir=base_dir).blob_shapes)
    except InputError as error:
        if layer.type == "Input":
            raise
        return _Unknown(f"{error}; what the layer gives becomes an input", example, alternative=True)


def _stated(layer: pb.LayerParameter) -> Shape | None:
    """The shape of one image of a layer that states its size, or the batch of a MemoryData layer; else None."""
    if layer.type == "MemoryData":  # its transform_param changes no size
        options = layer.memory_data_param
        shape = (options.batch_size, options.channels, options.height, options.width)
        return shape if all(shape) else None
    size = _size(layer)
    if size is None:
        return None
    if layer.type == "ImageData":
        return (1, 3 if layer.image_data_param.is_color else 1, *size)
    if len(layer.transform_param.mean_value) != 3 or (layer.type in registry and layer.type != "Data"):
        return None
    return (1, 3, *size)


def _rows(layer: pb.LayerParameter) -> int:
    """The batch of a layer whose files may be missing; 0 if it states none."""
    return layer.image_data_param.batch_size if layer.type == "ImageData" else layer.data_param.batch_size


def _size(layer: pb.LayerParameter) -> tuple[int, int] | None:
    """Height and width of a layer's images, if it states them."""
    done = layer.transform_param
    sizes = [(done.crop_size, done.crop_size)]
    if layer.type == "ImageData":
        sizes.append((layer.image_data_param.new_height, layer.image_data_param.new_width))
    else:
        sizes += [(done.crop_h, done.crop_w), *((resized.height, resized.width) for resized in done.resize_param)]
    return next(((height, width) for height, width in sizes if height and width), None)
