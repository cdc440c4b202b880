"""The Open Inference Protocol, version 2: a body as images and what is wanted of them, and the answer as a body.

Besides the protocol's own JSON: the binary tensor extension, Triton's raw requests (one tensor's bytes and no JSON),
its classification extension, and images as they are, as the elements of a BYTES tensor.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autodial.deploy.binding import Pixels, Scores
from autodial.deploy.metadata import ModelInfo
from autodial.deploy.serve.binary import join_elements, split_elements
from autodial.deploy.serve.refusal import RefusalError, invalid, too_large
from autodial.model_file import INPUT, OUTPUTS
from autodial.system.json_files import NotJsonError, parse
from autodial.wording import printable, shortened

HEADER_LENGTH = "inference-header-content-length"
_MOST_OUTPUTS = 16
"""That a request may name; two are there, and each may be asked for in several ways."""


@dataclass(frozen=True)
class WantedOutput:
    """An output that a request asks for, and how."""

    name: str
    binary: bool
    classification: int = 0
    """Classes to give in the place of the values; 0 for the values."""


@dataclass(frozen=True)
class InferRequest:
    """A request by the protocol, checked against a model."""

    images: Pixels | Sequence[memoryview]
    """uint8 (n, height, width, channels) as the graph takes them, or n image files."""
    outputs: Sequence[WantedOutput]
    id: str | None = None


def parse_request(body: bytes, header_length: str | None, info: ModelInfo, most_images: int) -> InferRequest:
    """Read the body of an infer request.

    Args:
        body: the whole of it, unpacked.
        header_length: what Inference-Header-Content-Length says; None without it.
        info: the model that is asked.
        most_images: that a request may hold.

    Raises:
        RefusalError: it isn't one for this model.
    """
    if header_length is None:
        return _from_json(body, memoryview(b""), info, most_images)
    text = header_length.strip()
    if not (text.isascii() and text.isdigit()) or int(text[:20]) > len(body):
        raise invalid(
            f"Inference-Header-Content-Length has to be a number of bytes from 0 to the body's {len(body)}, "
            f"not {shortened(printable(text), 40)}"
        )
    length = int(text)
    if length == 0:
        return _from_pixels_alone(body, info)
    return _from_json(body[:length], memoryview(body)[length:], info, most_images)


def _from_pixels_alone(body: bytes, info: ModelInfo) -> InferRequest:
    wanted = int(np.prod(info.image_shape))
    if len(body) != wanted:
        raise invalid(
            f"a raw request (Inference-Header-Content-Length: 0) holds the {wanted} bytes of one image's pixels, "
            f"{list(info.image_shape)} of UINT8, and this one has {len(body)}"
        )
    images = np.frombuffer(body, np.uint8).reshape(1, *info.image_shape)
    return InferRequest(images, [WantedOutput(name, binary=True) for name in OUTPUTS])


def _from_json(head: bytes, tail: memoryview, info: ModelInfo, most_images: int) -> InferRequest:
    try:
        record = parse(head)
    except NotJsonError as error:
        raise invalid(f"the request can't be read: {error}") from None
    if not isinstance(record, dict):
        raise invalid("the request has to be a JSON object with the member inputs")
    parameters = _parameters(record, "the request")
    request_id = record.get("id")
    if request_id is not None and not isinstance(request_id, str):
        raise invalid("id has to be a text")
    outputs = _outputs(record.get("outputs"), binary=_flag(parameters, "binary_data_output"))
    return InferRequest(_images(record.get("inputs"), tail, info, most_images), outputs, request_id)


def _parameters(holder: Mapping[str, Any], what: str) -> Mapping[str, Any]:
    parameters = holder.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise invalid(f"the parameters of {what} have to be an object")
    return parameters


def _flag(parameters: Mapping[str, Any], name: str, default: bool = False) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise invalid(f"{name} has to be true or false")
    return value


def _outputs(outputs: Any, binary: bool) -> list[WantedOutput]:
    if not isinstance(outputs, (list, type(None))):
        raise invalid("outputs has to be a list of objects")
    if not outputs:
        return [WantedOutput(name, binary) for name in OUTPUTS]
    if len(outputs) > _MOST_OUTPUTS:
        raise invalid(f"outputs names {len(outputs)}, and the model has {len(OUTPUTS)}")
    return [_output(output, binary) for output in outputs]


def _output(output: Any, binary: bool) -> WantedOutput:
    name = output.get("name") if isinstance(output, dict) else None
    if name not in OUTPUTS:
        raise invalid(f"the model's outputs are {' and '.join(OUTPUTS)}: {_shown(name)} is none of them")
    parameters = _parameters(output, f"the output {name}")
    count = parameters.get("classification", 0)
    if type(count) is not int or count < 0:
        raise invalid(f"classification has to be a number of classes, 0 or more, not {_shown(count)}")
    return WantedOutput(name, _flag(parameters, "binary_data", binary), count)


def _images(inputs: Any, tail: memoryview, info: ModelInfo, most_images: int) -> Pixels | list[memoryview]:
    if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(inputs[0], dict):
        raise invalid(f"inputs has to be a list of one object, the model's input {INPUT}")
    (tensor,) = inputs
    if tensor.get("name") != INPUT:
        raise invalid(f"the model's input is {INPUT}, not {_shown(tensor.get('name'))}")
    parameters = _parameters(tensor, f"the input {INPUT}")
    if any(name.startswith("shared_memory") for name in parameters):
        raise invalid("this service knows no shared memory: send the pixels")
    shape, datatype = _shape(tensor.get("shape")), tensor.get("datatype")
    size = parameters.get("binary_data_size")
    data = tensor.get("data")
    if size is None and data is None and datatype == "BYTES":
        size = len(tail)  # as OpenVINO Model Server has it
    if size is not None and (type(size) is not int or size < 0):
        raise invalid(f"binary_data_size has to be a number of bytes, not {_shown(size)}")
    if (size is None) == (data is None):
        raise invalid(f"the input {INPUT} needs either data or binary_data_size")
    if size is not None and size > len(tail):
        raise invalid(f"binary_data_size is {size}, and {len(tail)} bytes follow the JSON")
    if len(tail) > (size or 0):
        raise invalid(f"{len(tail) - (size or 0)} bytes follow the tensor {INPUT}: nothing else belongs there")
    if datatype == "BYTES":
        return _files(shape, data, tail, most_images)
    if datatype != "UINT8":
        raise invalid(f"the datatype of {INPUT} is UINT8, or BYTES for image files, not {_shown(datatype)}")
    if len(shape) != 4 or tuple(shape[1:]) != info.image_shape:
        raise invalid(f"the shape of {INPUT} is {[-1, *info.image_shape]}, not {_shown(shape)}")
    _check_count(shape[0], most_images)
    values = shape[0] * int(np.prod(info.image_shape))
    if data is None:
        if size != values:
            raise invalid(f"{_shown(shape)} of UINT8 is {values} bytes, not {size}")
        return np.frombuffer(tail, np.uint8).reshape(shape)
    return np.frombuffer(_pixels(data, shape, values), np.uint8).reshape(shape)


def _shape(shape: Any) -> list[int]:
    if not isinstance(shape, list) or any(type(length) is not int or length < 0 for length in shape):
        raise invalid("shape has to be a list of whole numbers, none of them below 0")
    return shape


def _check_count(count: int, most: int) -> None:
    if count == 0:
        raise invalid("the request holds no image")
    if count > most:
        raise too_large(f"the request holds {_shown(count)} images, and this service takes {most} at a time")


def _files(shape: list[int], data: Any, tail: memoryview, most_images: int) -> list[memoryview]:
    if data is not None:
        raise invalid(
            "image files can't be sent in JSON, nor in base64: send one as the body, or several behind the JSON with "
            "binary_data_size"
        )
    if not (len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)):
        raise invalid(f"the shape of {INPUT} as BYTES is the number of image files, [n], not {_shown(shape)}")
    _check_count(shape[0], most_images)
    return split_elements(tail, shape[0])


def _pixels(data: Any, shape: Sequence[int], values: int) -> bytes:
    """JSON's numbers as bytes; nested as the shape is, or flat."""
    if not isinstance(data, list):
        raise invalid("data has to be a list")
    if not (data and isinstance(data[0], list)):
        if len(data) != values:
            raise invalid(f"{_shown(list(shape))} takes {values} numbers, and data holds {len(data)}")
        return _row(data)
    rows = [data]
    for length in shape:
        if any(not isinstance(row, list) or len(row) != length for row in rows):
            raise invalid(f"data has to be flat, or nested as the shape {_shown(list(shape))}")
        rows = [inner for row in rows for inner in row]
    return _row(rows)


def _row(values: list[Any]) -> bytes:
    if set(map(type, values)) <= {int}:
        try:
            return bytes(values)
        except (ValueError, OverflowError):
            pass
    raise invalid("data has to be whole numbers from 0 to 255")


def _shown(value: Any) -> str:
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError):  # ValueError: a number of thousands of digits
        text = "a value that can't be shown"
    return shortened(text, 60)


def answer(
    request: InferRequest, model: str, version: str, classes: Sequence[str], logits: Scores, probabilities: Scores
) -> tuple[bytes, dict[str, str]]:
    """The body and the headers of an answer.

    Args:
        request: what was asked.
        model: the model's name.
        version: the model's version.
        classes: names of the classes.
        logits: float32 (n, classes).
        probabilities: float32 (n, classes).

    Raises:
        RefusalError: the model gives values that are not finite, which JSON doesn't have.
    """
    if not np.isfinite(logits).all() or not np.isfinite(probabilities).all():
        raise RefusalError(500, "the model gives no finite values for these images")
    values = dict(zip(OUTPUTS, (logits, probabilities), strict=True))
    outputs: list[dict[str, Any]] = []
    blocks: list[bytes] = []
    for wanted in request.outputs:
        output, block = _tensor(wanted, values[wanted.name], classes)
        outputs.append(output)
        blocks += [] if block is None else [block]
    record: dict[str, Any] = {"model_name": model, "model_version": version}
    if request.id is not None:
        record["id"] = request.id
    head = json.dumps({**record, "outputs": outputs}).encode()
    if not any("data" not in output for output in outputs):
        return head, {"content-type": "application/json"}
    headers = {"content-type": "application/octet-stream", HEADER_LENGTH: str(len(head))}
    return b"".join([head, *blocks]), headers


def _tensor(wanted: WantedOutput, values: Scores, classes: Sequence[str]) -> tuple[dict[str, Any], bytes | None]:
    if wanted.classification:
        entries = _entries(values, classes, wanted.classification)
        described: dict[str, Any] = {"name": wanted.name, "datatype": "BYTES"}
        described["shape"] = [len(values), min(wanted.classification, len(classes))]
        if not wanted.binary:
            return {**described, "data": entries}, None
        block = join_elements(entry.encode() for entry in entries)
    else:
        described = {"name": wanted.name, "datatype": "FP32", "shape": list(values.shape)}
        if not wanted.binary:
            return {**described, "data": values.ravel().tolist()}, None
        block = values.astype("<f4", copy=False).tobytes()
    return {**described, "parameters": {"binary_data_size": len(block)}}, block


def _entries(values: Scores, classes: Sequence[str], count: int) -> list[str]:
    """VALUE:INDEX:LABEL of each row's highest values, the highest first, equal ones by their index."""
    best = np.argsort(-values, axis=1, kind="stable")[:, :count]
    return [f"{row[i]:.6f}:{i}:{classes[i]}" for row, order in zip(values, best, strict=True) for i in order.tolist()]
