"""The Triton kernels of the domain alignment, without a GPU: what they compute, and that they compile for GPUs."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

triton = pytest.importorskip("triton", reason="Triton comes with torch on Linux only")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

import autodial.layers  # noqa: E402
from autodial.layers import alignment, alignment_cpu, alignment_kernels, alignment_torch, alignment_triton  # noqa: E402
from autodial.layers.alignment import align  # noqa: E402

KERNELS = ("moments", "merge", "mix", "normalize", "grad_sums", "coefficients", "input_grad")
TYPES = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16"}


def test_numbers_under_the_interpreter() -> None:
    """In a process of its own, as it takes the compiler's place for all of Triton."""
    tests = Path(__file__).with_name("interpreted_alignment.py")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(tests)],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr


class Compiled:
    """Stands for a kernel: what would launch it compiles it, as those arguments make Triton do, for sm_80 and sm_90."""

    def __init__(self, kernel: Any, done: dict[tuple[str, ...], Any]) -> None:
        self.kernel, self.done = kernel, done

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        assert len(grid) == 1 and 0 < grid[0] < 2**31
        return self.launch

    def launch(self, *arguments: object, num_warps: int = 4, **constants: object) -> None:
        signature, constexprs, attributes = {}, {}, {}
        values = dict(zip(self.kernel.arg_names, arguments, strict=False)) | constants
        for i, parameter in enumerate(self.kernel.params):
            name, value = parameter.name, values[parameter.name]
            known = not parameter.do_not_specialize
            if parameter.is_constexpr or value is None or (known and isinstance(value, int) and value == 1):
                signature[name], constexprs[name] = "constexpr", value
            elif isinstance(value, Tensor):
                signature[name] = TYPES[value.dtype]
            elif isinstance(value, float):
                signature[name] = "fp32"
            else:
                assert isinstance(value, int)
                signature[name] = "i32" if value < 2**31 else "i64"
            if isinstance(value, Tensor) or (known and signature[name] in ("i32", "i64") and values[name] % 16 == 0):
                attributes[(i,)] = [["tt.divisibility", 16]]
        key = (self.kernel.__name__, *map(str, (signature, constexprs, attributes, num_warps)))
        if key not in self.done:
            source = ASTSource(self.kernel, signature, constexprs, attributes)
            options = {"num_warps": num_warps}
            self.done[key] = [
                triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
                for capability in (80, 90)
            ]


@pytest.fixture(scope="module")
def programs() -> dict[tuple[str, ...], Any]:
    return {}


@pytest.fixture
def compiled(
    programs: dict[tuple[str, ...], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> dict[tuple[str, ...], Any]:
    """The programs of all kernels that have been launched; nothing is compiled twice."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for name in KERNELS:
        monkeypatch.setattr(alignment_kernels, name, Compiled(getattr(alignment_kernels, name), programs))
    return programs


def passes(x: Tensor, scale: Tensor | None, bias: Tensor | None, relu: bool) -> None:
    n, x, alpha = max(1, len(x) // 3), x.detach().requires_grad_(), torch.ones(1)
    align(x, alpha, n, 1e-5, scale, bias, relu=relu, kernels=alignment_triton)[0].backward(torch.empty_like(x))


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
def test_both_forms_of_every_blob_compile(
    dtype: torch.dtype, channels_last: bool, compiled: dict[tuple[str, ...], Any]
) -> None:
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    x, row = torch.empty(48, 64, 56, 56, dtype=dtype).to(memory_format=memory_format), torch.empty(64)
    before = set(compiled)
    passes(x, None, None, False)
    passes(x, row, row, True)
    # the passes over the data read four or eight neighbours at once
    new = {key: compiled[key] for key in compiled.keys() - before}
    over_data = [key for key in new if key[0] in ("moments", "normalize", "grad_sums", "input_grad")]
    assert len(over_data) == 7
    for key in over_data:
        assert all("ld.global.v4.b32" in program.asm["ptx"] for program in new[key]), key


def test_all_forms_compile(compiled: dict[tuple[str, ...], Any]) -> None:
    x, row = torch.empty(48, 64, 56, 56), torch.empty(64)
    for scale, bias, relu in itertools.product((None, row), (None, row), (False, True)):
        passes(x, scale, bias, relu)
    assert {key[0] for key in compiled} == set(KERNELS)


@pytest.mark.parametrize("shape", [(6, 1), (48, 7, 55, 55), (2, 70, 1, 1)])
def test_shapes_that_fill_no_block_compile(shape: tuple[int, ...], compiled: dict[tuple[str, ...], Any]) -> None:
    before = len(compiled)
    row = torch.empty(shape[1], dtype=torch.bfloat16)
    passes(torch.empty(shape), row, row, True)
    assert len(compiled) > before


@pytest.mark.parametrize("shape", [(3, 1, 3 * 2**30), (2**31, 3)])
def test_blobs_of_more_than_2_31_elements_compile(shape: tuple[int, ...], compiled: dict[tuple[str, ...], Any]) -> None:
    before = set(compiled)
    with torch.device("meta"):
        passes(torch.empty(shape), None, None, False)
    assert any("'i64'" in key[1] for key in compiled.keys() - before)


def choose(dtype: torch.dtype) -> ModuleType:
    alignment.gpu_kernels.cache_clear()
    try:
        return alignment.gpu_kernels(torch.device("cpu"), dtype)
    finally:
        alignment.gpu_kernels.cache_clear()


def test_kernels_that_fail_are_warned_of_and_not_taken(caplog: pytest.LogCaptureFixture) -> None:
    assert choose(torch.bfloat16) is alignment_torch  # compiled kernels can't run on the CPU
    (record,) = caplog.records
    start = "DA-layers of torch.bfloat16 on cpu run without Triton's kernels, which fail there: "
    assert record.getMessage().startswith(start)


def test_without_triton_torch_is_taken(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.delattr(autodial.layers, "alignment_triton")
    monkeypatch.setitem(sys.modules, "autodial.layers.alignment_triton", None)
    assert choose(torch.float32) is alignment_torch
    assert not caplog.records


def test_the_cpu_has_torch_s_kernels() -> None:
    assert alignment.kernels_for(torch.empty(2, 3)) is alignment_cpu
