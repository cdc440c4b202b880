"""What the benchmarks of layers and steps measure with."""

from __future__ import annotations

import gc
import json
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile


def describe(device: torch.device) -> str:
    """The versions and the machine."""
    if device.type == "cuda":
        return f"torch {torch.__version__}, {torch.cuda.get_device_name(device)}"
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        name = models[0] if models else name
    threads = torch.get_num_threads()
    return f"torch {torch.__version__}, {name}, {threads} thread{'s' if threads > 1 else ''}"


def seconds(run: Callable[[], object], device: torch.device, repeats: int = 1) -> float:
    """Mean seconds of a call: of the GPU's clock, or of CPU time, which other processes hardly disturb."""
    if device.type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(repeats):
            run()
        end.record()
        torch.cuda.synchronize(device)
        return start.elapsed_time(end) / 1000 / repeats
    began = time.process_time()
    for _ in range(repeats):
        run()
    return (time.process_time() - began) / repeats


def side_by_side(
    runs: Mapping[str, Callable[[], object]], device: torch.device, *, rounds: int, repeats: int = 1, warmup: int = 1
) -> dict[str, list[float]]:
    """Seconds of each run in each round; the runs take turns, so that whatever slows the machine slows all."""
    for run in runs.values():
        for _ in range(warmup):
            run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(seconds(run, device, repeats))
    return times


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Whether products and convolutions of float32 may run in TF32 on a GPU; `autodial` itself never allows it."""
    for kind in (torch.backends.cuda.matmul, torch.backends.cudnn):
        kind.allow_tf32 = allowed
    try:
        yield
    finally:
        for kind in (torch.backends.cuda.matmul, torch.backends.cudnn):
            kind.allow_tf32 = False


def busy_seconds(run: Callable[[], object], device: torch.device) -> float:
    """Seconds that a GPU's kernels and copies take in a call, without the gaps in which it waits for the program."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        run()
        torch.cuda.synchronize(device)
    # the CPU's rows hold the times of the kernels that they start once more
    events = [event for event in profiled.key_averages() if event.device_type == DeviceType.CUDA]
    return sum(event.self_device_time_total for event in events if not event.is_user_annotation) / 1e6


def peak_bytes(run: Callable[[], object], device: torch.device) -> int:
    """The most memory that tensors took at once in a call, beyond what they took before it."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        run()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(trace))
        events = [event for event in json.loads(trace.read_text())["traceEvents"] if event.get("name") == "[memory]"]
    peak = total = 0
    for event in sorted(events, key=lambda event: event["ts"]):
        total += event["args"]["Bytes"]
        peak = max(peak, total)
    return peak
