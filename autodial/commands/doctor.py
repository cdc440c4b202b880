"""The command `autodial doctor`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from autodial.commands.options import JsonOption

if TYPE_CHECKING:
    from autodial.deploy.doctor import Check


def doctor(
    as_json: JsonOption = False,
) -> None:
    """Check this machine: versions, GPUs, and what is missing or conflicting.

    Each problem comes with what to install. The exit status is 1 if something that is installed doesn't work, else 0.
    """
    from autodial.deploy.doctor import Status, examine

    checks = [*examine(), _training()]
    broken = any(check.status is Status.PROBLEM for check in checks)
    if as_json:
        typer.echo(json.dumps({"ok": not broken, "checks": [asdict(check) for check in checks]}, indent=2))
    else:
        typer.echo(describe(checks))
    raise typer.Exit(1 if broken else 0)


def describe(checks: Iterable[Check]) -> str:
    """Checks as lines of text; a check's remedy follows on the next line."""
    checks = list(checks)
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{check.status.value:8} {check.name:{width}}  {check.found}")
        if check.remedy is not None:
            lines.append(f"{'':8} {'':{width}}  -> {check.remedy}")
    return "\n".join(lines)


def _training() -> Check:
    """Whether torch is installed, works, and sees the GPU."""
    from autodial.deploy.doctor import Check, Status, version
    from autodial.deploy.providers import cuda_device_count

    number = version("torch")
    if number is None:
        return Check("torch", Status.ABSENT, 'training and export need it (pip install ".[train]")')
    try:
        import torch
    except Exception as error:  # whatever a broken install raises
        remedy = 'pip install --force-reinstall torch, or pip install ".[train]"'
        return Check("torch", Status.PROBLEM, f"{number} can't be imported: {error}", remedy)
    if torch.cuda.is_available():
        names = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
        return Check("torch", Status.OK, f"{number}, trains on {names}")
    if cuda_device_count() > 0:
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built for the CPU alone"
        remedy = "install the torch that suits this machine's driver: see pytorch.org/get-started"
        return Check("torch", Status.WARNING, f"{number}, {built}, doesn't use the GPU that the driver shows", remedy)
    return Check("torch", Status.OK, f"{number}, trains on the CPU")
