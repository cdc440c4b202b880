"""Pictures as they are: the body of a request, or the files of a form, answered with labels in plain JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from autodial.deploy.predictions import Predictions
from autodial.deploy.serve import drifting
from autodial.deploy.serve.batching import Outcome
from autodial.deploy.serve.models import ServedModel
from autodial.deploy.serve.refusal import RefusalError, invalid, too_large
from autodial.wording import alternatives, printable, shortened

_JSON = b'{["-0123456789tfn'
"""What a JSON text begins with; no image file begins with one of these."""
_SPACES = b" \t\r\n"
_BOM = b"\xef\xbb\xbf"
_LONGEST_NAME = 255
_OPTIONS = ("top_k", "drift")


@dataclass(frozen=True)
class UploadOptions:
    """What a client wants to know about its pictures."""

    top_k: int = 1
    """Labels per image."""
    drift: bool = False
    """Whether the images look like the model's training list."""


@dataclass(frozen=True)
class Upload:
    """A picture."""

    name: str | None
    """The file's name, where the client gives one."""
    data: bytes


def is_picture(body: bytes) -> bool:
    """Whether a body is an image file rather than JSON, by its first bytes."""
    start = body[:64].removeprefix(_BOM).lstrip(_SPACES)[:1]
    return bool(start) and start not in _JSON


def is_form(content_type: str) -> bool:
    """Whether Content-Type says that the body is a form with files."""
    return content_type.strip().lower().startswith("multipart/")


def parse_options(query: Mapping[str, str], classes: int) -> UploadOptions:
    """The options in an address; raises a RefusalError, also for a name that is none, which may be a slip."""
    for name in query:
        if name not in _OPTIONS:
            shown = shortened(printable(name), 40)
            raise invalid(f'"{shown}" is no option of an upload{alternatives(name, _OPTIONS)}')
    top_k = query.get("top_k", "1")
    if not (top_k.isascii() and top_k.isdigit() and 1 <= int(top_k[:9]) <= classes):
        raise invalid(f"top_k has to be a number of labels from 1 to {classes}")
    drift = query.get("drift", "false").lower()
    if drift not in ("true", "false", "1", "0", ""):
        raise invalid("drift has to be true or false")
    return UploadOptions(int(top_k), drift in ("true", "1", ""))


class _Form:
    """Takes what the parser finds; only parts with a file's name are kept."""

    def __init__(self, most: int) -> None:
        self.files: list[Upload] = []
        self.ended = False
        self._most = most
        self._parts = 0

    def begin(self) -> None:
        self._parts += 1
        if self._parts > self._most:
            raise too_large(f"the form has more than {self._most} parts, which is the most that this service takes")
        self._field = self._value = b""
        self._disposition = b""
        self._data: list[bytes] = []

    def field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def header_end(self) -> None:
        if self._field.lower() == b"content-disposition":
            self._disposition = self._value
        self._field = self._value = b""

    def data(self, data: bytes, start: int, end: int) -> None:
        self._data.append(data[start:end])

    def end_part(self) -> None:
        _, options = parse_options_header(self._disposition)
        if b"filename" in options:
            name = options[b"filename"].decode("utf-8", "replace")
            self.files.append(Upload(shortened(name, _LONGEST_NAME), b"".join(self._data)))
            return
        field = options.get(b"name", b"").decode("utf-8", "replace")
        if field in _OPTIONS:
            raise invalid(f"{field} belongs into the address, as in infer?{field}=..., not into the form")

    def end(self) -> None:
        self.ended = True


def files_of_form(body: bytes, content_type: str, most: int) -> list[Upload]:
    """The files of a multipart/form-data body, in its order; raises a RefusalError.

    Args:
        body: the whole of it.
        content_type: which names the boundary.
        most: parts that there may be.
    """
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if not boundary:
        raise invalid("the form's Content-Type names no boundary")
    form = _Form(most)
    callbacks: Any = {
        "on_part_begin": form.begin,
        "on_header_field": form.field,
        "on_header_value": form.value,
        "on_header_end": form.header_end,
        "on_part_data": form.data,
        "on_part_end": form.end_part,
        "on_end": form.end,
    }
    try:
        parser = MultipartParser(boundary, callbacks)
        parser.write(body)
        parser.finalize()
    except (FormParserError, ValueError) as error:
        raise invalid(f"the form can't be read: {error}") from None
    if not form.ended:
        raise invalid("the form is cut short: its last boundary is missing")
    if not form.files:
        raise invalid("the form holds no file: send pictures as in curl -F image=@x.jpg")
    return form.files


def describe(model: ServedModel, uploads: list[Upload], outcome: Outcome, options: UploadOptions) -> dict[str, object]:
    """The answer to uploaded pictures; raises a RefusalError if there is a label for none of them."""
    if all(error is not None for error in outcome.errors):
        many = f" (and {len(uploads) - 1} more)" if len(uploads) > 1 else ""
        raise RefusalError(400, f"{uploads[0].name or 'the body'}: {outcome.errors[0]}{many}")
    predictions = Predictions(outcome.logits, outcome.probabilities, model.info.classes, outcome.errors, outcome.damage)
    results: list[dict[str, object]] = []
    rows = zip(uploads, predictions.statuses, predictions.top(options.top_k), strict=True)
    for index, (upload, status, labels) in enumerate(rows):
        result: dict[str, object] = {"index": index, "name": upload.name, "status": status}
        if labels:
            result |= {"label": labels[0].name, "probability": labels[0].probability}
            if options.top_k > 1:
                result["top"] = [label._asdict() for label in labels]
        else:
            result |= {"label": None, "probability": None}
        if remark := outcome.errors[index] or outcome.damage[index]:
            result["error"] = remark
        results.append(result)
    answer: dict[str, object] = {"model_name": model.name, "model_version": model.version, "results": results}
    if options.drift:
        answer["drift"] = _add_drift(model, outcome, results)
    return answer


def check_drift(model: ServedModel) -> None:
    """Raise a RefusalError where a model can't say whether images look like its training list."""
    if model.reference is None:
        raise invalid(f"the model {model.name} keeps nothing of its training images, so there is no drift to tell")


def _add_drift(model: ServedModel, outcome: Outcome, results: list[dict[str, object]]) -> dict[str, object]:
    """Say of each image whether it is unlike the training list, and give the verdict about all of them."""
    assert model.reference is not None
    good = [index for index, error in enumerate(outcome.errors) if error is None]
    probabilities = outcome.probabilities[good]
    measured = [row for row in outcome.statistics if row is not None]
    rows = drifting.rows_of(probabilities, measured)
    for index, row in zip(good, rows, strict=True):
        results[index]["drift"] = drifting.unlike(model.reference, row)
    drift = drifting.compare(model.reference, model.info.classes, rows, probabilities.argmax(axis=1).tolist())
    return drifting.verdict(drift)
