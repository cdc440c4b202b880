"""The OpenAPI document of the service, which `/docs` shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autodial import __version__
from autodial.deploy.serve.limits import MIB, Limits

_Json = dict[str, Any]

_ERROR: _Json = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string", "description": "What is wrong, in one sentence."}},
}
_PARAMETERS: _Json = {"type": "object", "additionalProperties": True}
_INPUT: _Json = {
    "type": "object",
    "required": ["name", "datatype", "shape"],
    "properties": {
        "name": {"const": "image"},
        "datatype": {"enum": ["UINT8", "BYTES"]},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 1}},
        "parameters": _PARAMETERS,
        "data": {"type": "array", "description": "Pixels, flat or nested as the shape; or binary_data_size instead."},
    },
}
_INFER_REQUEST: _Json = {
    "type": "object",
    "required": ["inputs"],
    "properties": {
        "id": {"type": "string"},
        "parameters": _PARAMETERS,
        "inputs": {"type": "array", "minItems": 1, "maxItems": 1, "items": _INPUT},
        "outputs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": {"enum": ["logits", "probabilities"]}, "parameters": _PARAMETERS},
            },
        },
    },
}
_INFER_ANSWER: _Json = {
    "type": "object",
    "required": ["model_name", "outputs"],
    "properties": {
        "model_name": {"type": "string"},
        "model_version": {"type": "string"},
        "id": {"type": "string"},
        "outputs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name", "datatype", "shape"],
                "properties": {
                    "name": {"type": "string"},
                    "datatype": {"enum": ["FP32", "BYTES"]},
                    "shape": {"type": "array", "items": {"type": "integer"}},
                    "parameters": _PARAMETERS,
                    "data": {"type": "array"},
                },
            },
        },
    },
}
_LABELS: _Json = {
    "type": "object",
    "required": ["model_name", "model_version", "results"],
    "properties": {
        "model_name": {"type": "string"},
        "model_version": {"type": "string"},
        "results": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["index", "status", "label", "probability"],
                "properties": {
                    "index": {"type": "integer"},
                    "name": {"type": ["string", "null"]},
                    "status": {"enum": ["ok", "damaged", "error"]},
                    "label": {"type": ["string", "null"]},
                    "probability": {"type": ["number", "null"]},
                    "top": {"type": "array", "description": "With top_k above 1: name and probability of each."},
                    "error": {"type": "string"},
                    "drift": {"type": "object", "description": "With drift=true."},
                },
            },
        },
        "drift": {"type": "object", "description": "With drift=true: the verdict about all images of the request."},
    },
}
_NAME: _Json = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
_VERSION: _Json = {"name": "version", "in": "path", "required": True, "schema": {"type": "string"}}


def document(models: Sequence[str], limits: Limits) -> _Json:
    """The OpenAPI 3.1 document of a service with these models and limits."""
    paths: dict[str, _Json] = {
        "/v2": {"get": _read("The service's name, version and extensions")},
        "/v2/health/live": {"get": _read("Whether the service runs")},
        "/v2/health/ready": {"get": _read("Whether the service takes requests; 503 once it is about to end", "503")},
        "/v2/repository/index": {"post": _read("The models")},
        "/v2/models/stats": {"get": _read("Statistics of all models, as Triton has them")},
        "/metrics": {"get": _read("Metrics for Prometheus", kind="text/plain")},
    }
    for path, parameters in (
        ("/v2/models/{name}", [_NAME]),
        ("/v2/models/{name}/versions/{version}", [_NAME, _VERSION]),
    ):
        for end, text in (
            ("", "Inputs and outputs of a model"),
            ("/ready", "Whether a model takes requests"),
            ("/config", "A model's configuration, as Triton has it"),
            ("/stats", "A model's statistics, as Triton has them"),
        ):
            paths[path + end] = {"parameters": parameters, "get": _read(text, "404")}
        paths[f"{path}/infer"] = {"parameters": parameters, "post": _infer(limits)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "AutoDIAL",
            "version": __version__,
            "description": f"Labels for images, by the Open Inference Protocol. Models: {', '.join(models)}.",
        },
        "paths": paths,
        "components": {
            "schemas": {
                "Error": _ERROR,
                "InferRequest": _INFER_REQUEST,
                "InferAnswer": _INFER_ANSWER,
                "Labels": _LABELS,
            },
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _read(text: str, *errors: str, kind: str = "application/json") -> _Json:
    return {"summary": text, "responses": {"200": {"description": "OK", "content": {kind: {}}}, **_errors(*errors)}}


def _infer(limits: Limits) -> _Json:
    image = {"schema": {"type": "string", "format": "binary"}}
    form = {"schema": {"type": "object", "properties": {"image": {"type": "array", "items": image["schema"]}}}}
    answers = {
        "application/json": {"schema": {"anyOf": [_ref("Labels"), _ref("InferAnswer")]}},
        "application/octet-stream": image,
    }
    return {
        "summary": "Labels for images",
        "description": (
            "The body is a request by the Open Inference Protocol (JSON, with or without binary tensors behind it), "
            "one image file as it is, or a form with files. The first two are told apart by their first bytes. At most "
            f"{limits.images} images and {limits.body / MIB:g} MiB; gzip and deflate are understood."
        ),
        "parameters": [
            {
                "name": "top_k",
                "in": "query",
                "description": "Labels per uploaded image.",
                "schema": {"type": "integer", "minimum": 1, "default": 1},
            },
            {
                "name": "drift",
                "in": "query",
                "description": "Whether uploaded images look like those that the model was trained on.",
                "schema": {"type": "boolean", "default": False},
            },
            {
                "name": "Inference-Header-Content-Length",
                "in": "header",
                "description": "Bytes of the JSON in front of binary tensors; 0 for the pixels of one image alone.",
                "schema": {"type": "integer", "minimum": 0},
            },
        ],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": _ref("InferRequest")},
                "application/octet-stream": image,
                "image/*": image,
                "multipart/form-data": form,
            },
        },
        "responses": {
            "200": {"description": "Labels, or the protocol's answer", "content": answers},
            **_errors("400", "401", "404", "408", "413", "415", "500", "503"),
        },
    }


def _ref(name: str) -> _Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _errors(*statuses: str) -> _Json:
    error = {"description": "An error", "content": {"application/json": {"schema": _ref("Error")}}}
    return dict.fromkeys(statuses, error)
