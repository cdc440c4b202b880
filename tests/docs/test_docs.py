"""Each command and each Python block of the README and of docs/, run in the order of its page."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from shell import run_commands
from typer.testing import CliRunner

from autodial.cli import app

ROOT = Path(__file__).resolve().parents[2]
FAST = ("docs/caffe.md", "docs/from-caffe-to-onnx.md", "docs/predict.md", "docs/pytorch.md")
"""The pages that take seconds; the others are slow."""
SHOP = (
    "autodial init shop --arch digits --source studio/ --target phone/ --epochs 1 &&"
    "autodial train --solver shop/solver.prototxt --workers 0 &&"
    "autodial export --net shop/train_val.prototxt --weights shop/solver_iter_2.caffemodel"
)
BEFORE = {
    "docs/caffe.md": "autodial export --net train_val.prototxt --weights digits.caffemodel --caffe deploy",
    "docs/predict.md": SHOP,
    "docs/serve.md": SHOP,
    "docs/choosing.md": "autodial train --solver solver.prototxt",
    "docs/export.md": "cp digits.caffemodel digits_iter_8.caffemodel && cp digits.caffemodel digits_iter_4.caffemodel",
}
"""Commands that earlier pages have run, or that a page takes for granted."""
OPTIONAL = ("accelerate", "lightning")
"""Packages whose Python blocks run only where they are installed."""
STAND_INS = {
    r"^pip install .*": "",
    r"autodial demo": "autodial demo --help",
    r"--arch alexnet": "--arch digits",
    r"autodial (init|compare \w+ --source) .*": r"\g<0> --epochs 1",
    r"solver_iter_\d+": "solver_iter_2",
    r"(digits_iter_[48])00": r"\1",
    r"--nproc-per-node 4": "--nproc-per-node 2",
    r"=0.05,0.1,0.2,0.4": "=0.05,0.1",
    r"--to-label 50": "--to-label 12",
    r"torchrun .*": r"OMP_NUM_THREADS=1 \g<0>",
    r"s3://models/": "local://$PWD/",
    r"s3://photos/2024/": "local://$PWD/photos/",
    r"s3://tables/": "local://$PWD/",
    r" --ray auto": "",
}
"""What a block says, and what stands for it here: a small net, few iterations, and what this machine has already."""


class Block(NamedTuple):
    """A fenced block: its language, its text, and the line of the page that it begins at."""

    language: str
    code: str
    line: int


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text("utf-8")
    found = re.finditer(r"^```(bash|python)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(match[1], match[2], text.count("\n", 0, match.start()) + 1) for match in found]


def pages() -> list[Any]:
    found = ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]
    return [pytest.param(page, marks=() if page in FAST else pytest.mark.slow) for page in found if blocks(page)]


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_a_table_names_every_command(page: str) -> None:
    table = (ROOT / page).read_text("utf-8").partition("## Which command when")[2].partition("\n## ")[0]
    words = set(re.findall(r"`(?:autodial )?([a-z]+)`", table))
    assert {
        command.name or command.callback.__name__ for command in app.registered_commands if command.callback
    } <= words


@pytest.mark.parametrize("page", pages())
def test_the_blocks_of_a_page_run(page: str, prepared: dict[str, Any]) -> None:
    missing = [name for name in OPTIONAL if find_spec(name) is None]
    if page in BEFORE:
        for command in BEFORE[page].split("&&"):
            run_before(command, page)
    for block in blocks(page):
        where = f"{page}:{block.line}"
        if any(f"import {name}" in block.code or f"from {name}" in block.code for name in missing):
            continue
        if block.language == "python":
            exec(compile("\n" * block.line + block.code, page, "exec"), prepared)
        else:
            run(stood_in(block.code), where)


def stood_in(code: str) -> str:
    for said, stands in STAND_INS.items():
        code = re.sub(said, stands, code, flags=re.MULTILINE)
    return code


def run_before(command: str, page: str) -> None:
    """Run a command that the page takes for granted; one of `autodial` here, as its imports would take seconds."""
    if command.split()[:1] != ["autodial"]:
        run(command, f"before {page}")
        return
    result = CliRunner().invoke(app, command.split()[1:])
    assert result.exit_code == 0, f"before {page}\n{command}\n{result.output}"


def run(code: str, where: str) -> None:
    """Run commands, each of which must end well."""
    result = run_commands(code)
    assert result.returncode == 0, f"{where}\n{code}\n{result.stdout}\n{result.stderr}"
