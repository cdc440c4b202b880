"""The command `autodial serve`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from autodial.commands.options import ModelDeviceOption, naming_options
from autodial.errors import InputError, WorkError

KEY_VARIABLE = "AUTODIAL_SERVE_KEY"
OPTIONS = {
    "names": "--name",
    "host": "--host",
    "port": "--port",
    "certificate": "--certificate",
    "certificate_key": "--certificate-key",
    "max_images": "--max-images",
    "queue": "--queue",
    "raw_input": "--raw-input",
}
"""The options by which parameters of the library are set, and `raw_input` of `autodial export`."""


def serve(
    models: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="MODEL",
            help="The .onnx files that `autodial export` wrote; each is served under its file's name without .onnx.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="N=PATH", help="Serve the file PATH under the name N; may be repeated.", show_default=False
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 for all addresses of this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for a free one.")] = 8000,
    key_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A file with the key that clients have to send as 'Authorization: Bearer KEY'.",
            show_default=f"${KEY_VARIABLE}, or no key",
        ),
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The certificate for TLS, in PEM.", show_default="no TLS")
    ] = None,
    certificate_key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The certificate's private key, in PEM.", show_default="in --certificate"),
    ] = None,
    device: ModelDeviceOption = "auto",
    batch_size: Annotated[int, typer.Option(min=1, help="Images that a model sees at once.")] = 32,
    delay: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="MS",
            help="Milliseconds that an image waits for others at most, where a model is idle and others are coming.",
        ),
    ] = 2.0,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Threads that decode images.", show_default="one per CPU")
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="CPUs that a model keeps busy where it runs on the CPU.", show_default="all"),
    ] = None,
    queue: Annotated[
        int, typer.Option(min=1, metavar="N", help="Images under way per model; beyond them clients get 503.")
    ] = 512,
    max_body: Annotated[float, typer.Option(min=0.001, metavar="MIB", help="A request's body, unpacked.")] = 64,
    max_bodies: Annotated[float, typer.Option(min=0.001, metavar="MIB", help="All bodies in memory at a time.")] = 256,
    max_images: Annotated[int, typer.Option(min=1, metavar="N", help="Images of one request.")] = 256,
    max_pixels: Annotated[
        float, typer.Option(min=0.001, metavar="MILLIONS", help="Pixels of an image, by its header.")
    ] = 67,
    max_seconds: Annotated[float, typer.Option(min=0.01, metavar="S", help="Time for a request's images.")] = 30,
    head_seconds: Annotated[float, typer.Option(min=0.01, metavar="S", help="Time for a request's head.")] = 10,
    body_seconds: Annotated[float, typer.Option(min=0.01, metavar="S", help="Time for a request's body.")] = 60,
    max_connections: Annotated[int, typer.Option(min=1, metavar="N", help="Connections at a time.")] = 4096,
    drain: Annotated[
        float,
        typer.Option(min=0, metavar="S", help="After SIGTERM, serve on for so long while readiness says no, then end."),
    ] = 5,
    watch: Annotated[
        bool, typer.Option("--watch", help="Take over a model's file when it is replaced by another one.")
    ] = False,
    log_format: Annotated[
        str, typer.Option(metavar="text|json", help="Text lines, or one JSON object per line.")
    ] = "text",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No line for every request.")] = False,
) -> None:
    """Serve models over HTTP, by the Open Inference Protocol and for plain pictures.

    `curl --data-binary @x.jpg http://127.0.0.1:8000/v2/models/NAME/infer` gives a picture's label. Clients of Triton
    and KServe work as they are. There is a page at / to try it, one at /docs that says more, and /metrics for
    Prometheus.

    The service ends on SIGTERM (after --drain seconds) or Ctrl-C, answers what it has taken in, and has the exit
    status 0.
    """
    # OpenCV reads it when it is imported.
    os.environ["OPENCV_IO_MAX_IMAGE_PIXELS"] = str(round(max_pixels * 10**6))
    try:
        from autodial.deploy.serve.limits import MIB, Limits
        from autodial.deploy.serve.models import ModelOptions, named_models
        from autodial.deploy.serve.server import ServeOptions
        from autodial.deploy.serve.server import serve as run
    except ModuleNotFoundError as error:
        remedy = 'pip install ".[serve]" in AutoDIAL\'s checkout brings it'
        raise WorkError(f"serving needs {error.name}, which is not installed: {remedy}") from error
    if log_format not in ("text", "json"):
        raise InputError(f"--log-format {log_format}: choose text or json")
    with naming_options(**OPTIONS):
        run(
            named_models(models or [], map(_named, name or [])),
            ServeOptions(
                host=host,
                port=port,
                key=_key(key_file),
                certificate=certificate,
                certificate_key=certificate_key,
                drain=drain,
                watch=watch,
                workers=workers,
                json_log=log_format == "json",
                log_requests=not quiet,
                model=ModelOptions(device, threads, batch_size, delay / 1000),
                limits=Limits(
                    body=round(max_body * MIB),
                    bodies=round(max(max_bodies, max_body) * MIB),
                    pixels=round(max_pixels * 10**6),
                    images=max_images,
                    queue=queue,
                    seconds=max_seconds,
                    head_seconds=head_seconds,
                    body_seconds=body_seconds,
                    connections=max_connections,
                ),
            ),
        )


def _named(text: str) -> tuple[str, str]:
    name, sign, path = text.partition("=")
    if not (name and sign and path):
        raise InputError(f"--name {text}: write N=PATH, as in digits=target_predictor.onnx")
    return name, path


def _key(file: Path | None) -> str | None:
    """The key in a file, or in the environment; InputError for one that can't be sent as a header."""
    if file is None:
        source, key = f"${KEY_VARIABLE}", os.environ.get(KEY_VARIABLE)
        if key is None:
            return None
    else:
        source = f"--key-file {file}"
        try:
            key = file.read_text(encoding="utf-8")
        except OSError as error:
            raise InputError(f"{source} can't be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise InputError(f"{source} holds no text: write the key into it, in ASCII") from error
    key = key.strip()
    if not key:
        raise InputError(f"{source} is empty: write a key into it, or leave it out to serve without one")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise InputError(f"{source}: the key has to be printable ASCII without spaces")
    return key
