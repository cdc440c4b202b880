"""All that is measured on a GPU, in at most eight minutes: one command, a table, and a JSON file with the same.

    python benchmarks/gpu.py [PART ...] [-o gpu.json] [--device cuda|cpu] [--model target_predictor.onnx ...] [--quick]

PART is one or more of these; without any, all run, in this order, each in a process of its own with a time limit:

- machine: what it is, with the versions of what drives it; it always runs, and without a GPU nothing else does
- kernels: the DA-layer's kernels on every blob that the shipped nets align, in three dtypes, against float64
- layer: a DA-layer's passes against batch normalization by torch and by cuDNN, and against a copy's bandwidth
- steps: training steps of AlexNet, Inception-BN and ResNet-50 in float32, TF32 and bf16, and their memory
- tests: the tests with the marker `gpu`
- ranks: steps under torchrun with one rank, whose sums go through NCCL at the end of the backward pass or beside it,
  against steps without it
- train: training on JPEG files, against reading and computing alone, and how much of its time it waits for data
- predict: an exported net in float32 and fp16, with and without I/O binding, against decoding and running alone

A part that fails, or runs out of time, keeps what it has measured, and the next one starts. What needs a package that
is not installed is skipped, and says which; `autodial` itself need not be installed. `--model` names files that
`autodial export` wrote elsewhere, for a machine that can't export. On the CPU the parts run as far as they can, and
their numbers mean little; `--quick` takes tiny shapes and nets, and its numbers mean nothing.

The exit status is 1 if a part failed or ran out of time, or if a result is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import math
import multiprocessing
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "benchmarks"
LIMIT = 480.0
"""Seconds of all parts together."""
GRACE = 5.0
"""Seconds that a part has to end after its time."""

Row = dict[str, Any]
"""`what` was measured, and numbers by name; `failed` or `skipped`, why there are none; `wrong`, what is not right."""
Item = tuple[str, Callable[[], Iterable[Row]]]
"""One or a few rows, and a name for them in case there are none."""


@dataclass(frozen=True)
class Options:
    """What a part is told."""

    device: str
    quick: bool
    models: list[Path]


# --- the parts; each imports what it needs, which may not be there


def machine(options: Options) -> Iterator[Item]:
    yield "machine", lambda: [{"what": "machine", **described(options)}]


def described(options: Options) -> dict[str, str]:
    import torch
    from measuring import describe

    found = {"device": describe(torch.device(options.device)), "Python": platform.python_version()}
    found["CPUs"] = str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())
    if options.device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        found["memory"] = f"{properties.total_memory / 2**30:.0f} GiB"
        found["capability"] = f"{properties.major}.{properties.minor}"
        found["CUDA"], found["cuDNN"] = str(torch.version.cuda), str(torch.backends.cudnn.version())
        if importlib.util.find_spec("triton") is not None:
            import triton

            found["Triton"] = triton.__version__
    return found


def kernels(options: Options) -> Iterator[Item]:
    import torch

    from autodial.netparam.shipped import shipped_names

    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for arch in ["digits"] if options.quick else sorted(shipped_names(), key=lambda name: name == "inception_bn"):
            name = f"{arch} {str(dtype).removeprefix('torch.')}"
            yield name, lambda arch=arch, dtype=dtype, name=name: [{"what": name, **agreement(arch, dtype, options)}]


def agreement(arch: str, dtype: Any, options: Options) -> Row:
    """How far the kernels are from float64 on the blobs of a net: the largest difference, in units of dtype's epsilon.

    Differences of blobs are shares of the largest number, those of alpha, scale and bias of the gradient's norm. The
    units that torch's own kernels are apart by follow.
    """
    import torch
    from alignment import layouts

    from autodial.layers import alignment_torch
    from autodial.layers.alignment import kernels_for

    device = torch.device(options.device)
    seconds = 2.0 if options.quick else 6.0
    blobs = [
        (shape, layout) for shape in aligned_shapes(arch, 6 if options.quick else None) for layout in layouts(shape)
    ]
    kinds = [(alpha, cut, affine) for affine in (False, True) for alpha, cut in MIXTURES]
    # each blob once before one comes again, and neighbours of different kinds: the time may be over before the end
    cases = [(*blob, *kinds[(turn + i) % len(kinds)]) for turn in range(len(kinds)) for i, blob in enumerate(blobs)]
    worst: dict[str, float] = {}
    done = 0
    deadline = time.monotonic() + seconds
    used = kernels_for(torch.empty(2, 2, device=device, dtype=dtype))
    for case in cases:
        apart = differences(case, dtype, device, {"": None, "torch ": alignment_torch})
        worst = {name: max(value, worst.get(name, 0.0)) for name, value in apart.items()}
        done += 1
        if time.monotonic() > deadline:
            break
    row: Row = {"kernels": used.__name__.rpartition(".")[2], "cases": done, "of": len(cases)}
    row |= {name: value for name, value in worst.items() if math.isfinite(value)}  # JSON has no others
    limit = 8 if dtype != torch.float32 else 2**8  # of sums of up to a million numbers
    wrong = [name for name, value in worst.items() if value > max(limit, 2 * worst.get(f"torch {name}", math.inf))]
    return row | (
        {"wrong": f"{', '.join(wrong)} beyond {limit} epsilons and twice torch's difference"} if wrong else {}
    )


MIXTURES = ((0.75, 117), (1.0, 64), (0.5, 250), (0.9, 1))
"""alpha, and the source's samples in 256."""


def aligned_shapes(arch: str, batch: int | None) -> list[tuple[int, ...]]:
    """The different blobs that a net's DA-layers take, at its own batch size or another."""
    from training_step import batch_settings

    from autodial.evaluation.timing import replace_missing_data
    from autodial.net.net import Net
    from autodial.netparam.net_state import filter_net
    from autodial.netparam.overrides import apply_to_nets
    from autodial.netparam.shipped import shipped_net
    from autodial.proto import messages as pb
    from autodial.proto import read_net

    param = filter_net(read_net(shipped_net(arch)), pb.TRAIN)
    if batch is not None:
        apply_to_nets(batch_settings(param, batch), [param])
    net = Net(replace_missing_data(param, None)[0], pb.TRAIN)
    aligned = (message.bottom[0] for message in net.param.layer if message.type == "Dial")
    return list(dict.fromkeys(tuple(net.blob_shapes[name]) for name in aligned))


def differences(case: Any, dtype: Any, device: Any, by: dict[str, Any]) -> dict[str, float]:
    """Of a case's outputs and gradients, for each of several kernels; PlainAlignment in float64 is exact."""
    import torch
    from plain import PlainAlignment

    from autodial.layers.alignment import align

    shape, layout, alpha, cut, affine = case
    slice_point = min(max(2, shape[0] * cut // 256), shape[0] - 2)  # of one sample, a variance may be 0
    generator = torch.Generator(device).manual_seed(0)

    def drawn() -> Any:
        return torch.randn(shape, generator=generator, device=device).to(dtype, memory_format=layout)

    x, grad = drawn() * 3 + 1, drawn()
    x[slice_point:] *= 0.5
    channels = torch.arange(shape[1], device=device)
    rows = [0.5 + channels % 3, channels % 5 / 5 - 0.4] if affine else []
    leaves = [x, torch.full((1,), alpha, device=device), *(row.float() for row in rows)]

    exact = [leaf.double().requires_grad_() for leaf in leaves]
    plain = PlainAlignment(shape[1], slice_point=slice_point, alpha=alpha).to(device).double()
    plain.alpha = torch.nn.Parameter(exact[1].detach())
    before = y = plain(exact[0])
    if affine:
        along = (1, -1, *[1] * (len(shape) - 2))
        before = y * exact[2].view(along) + exact[3].view(along)
        y = before.relu()
    wanted = [y, *torch.autograd.grad(y, [exact[0], plain.alpha, *exact[2:]], grad.double())]
    far = (before.abs() > 0.05) if affine else torch.ones_like(before, dtype=torch.bool)  # from a ReLU's bend

    result = {}
    epsilon = torch.finfo(dtype).eps
    for prefix, modules in by.items():
        given = [leaf.detach().clone().requires_grad_() for leaf in leaves]
        y, _, _ = align(given[0], given[1], slice_point, plain.eps, *given[2:], relu=affine, kernels=modules)
        got = [y, *torch.autograd.grad(y, given, grad)]
        for name, ours, theirs in zip(("y", "grad x", "grad alpha", "grad scale", "grad bias"), got, wanted):  # noqa: B905
            apart = (ours.double() - theirs).abs()
            if name in ("y", "grad x"):
                share = (apart * far).max() / theirs.abs().max()
            else:
                share = apart.max() / max(theirs.abs().max().item(), grad.double().norm().item())
            value = share.item() / epsilon
            result[prefix + name] = math.inf if math.isnan(value) else value
    return result


def layer(options: Options) -> Iterator[Item]:
    import alignment
    import torch

    device = torch.device(options.device)
    for dtype in [torch.bfloat16] if options.quick else [torch.float32, torch.bfloat16]:
        for shape in alignment.QUICK if options.quick else alignment.SHAPES:
            for layout in alignment.layouts(shape):
                name = f"{' '.join(alignment.named(shape, layout).split())} {str(dtype).removeprefix('torch.')}"

                def measured(
                    shape: Any = shape, layout: Any = layout, dtype: Any = dtype, name: str = name
                ) -> Iterator[Row]:
                    found = alignment.measure(shape, layout, device, 2 if options.quick else 10, dtype)
                    for form, times in found.times.items():
                        row = {"ms": 1000 * min(times), "MiB": found.memory[form]}
                        if form in found.busy:
                            row["busy ms"] = 1000 * found.busy[form]
                        if form == "DA-layer":
                            row["to BatchNorm"] = found.ratios(form, "BatchNorm")[1]
                            row |= {} if found.of_a_copy is None else {"of a copy": found.of_a_copy}
                        yield {"what": f"{name}, {form}", **row}

                yield name, measured


def steps(options: Options) -> Iterator[Item]:
    import torch
    import training_step

    from autodial.netparam.shipped import shipped_net
    from autodial.system.allocator import keep_freed_memory
    from autodial.system.devices import choose_device

    device = choose_device(options.device)
    if device.type == "cpu":
        keep_freed_memory()
    torch.set_num_threads(1)
    rounds = 1 if options.quick else 3

    def caffe(name: str, arch: str, batch: int) -> Iterator[Row]:
        found = training_step.measure(shipped_net(arch), rounds, device, batch)
        for form in found.times:
            rates = found.rates(form)
            row = {"images/s": statistics.median(rates), "least": rates[0], "most": rates[-1]}
            yield {"what": f"{name}, {form}", **row, "to plain": found.faster(form), "MiB": found.memory[form]}

    def resnet50(name: str, batch: int) -> Iterator[Row]:
        import resnet50_step

        precisions = ("", "TF32", "bf16") if device.type == "cuda" else ("",)
        found = resnet50_step.measure(batch, 224, rounds, device, precisions)
        for form in found.times:
            rates = found.rates(form)
            row = {"images/s": statistics.median(rates), "least": rates[0], "most": rates[-1]}
            if form.startswith("aligned"):
                ratios = found.ratios(form, form.replace("aligned", "BatchNorm"))
                row["time to BatchNorm"] = statistics.median(ratios)
            yield {"what": f"{name}, {form}", **row, "MiB": found.memory[form]}

    nets = [("digits", 6)] if options.quick else [("alexnet", 256), ("inception_bn", 48), ("inception_bn", 256)]
    for arch, batch in nets:
        name = f"{arch} at {batch}"
        yield name, lambda name=name, arch=arch, batch=batch: caffe(name, arch, batch)
    for batch in [] if options.quick else [64]:  # its own benchmark has a quick form
        name = f"ResNet-50 at {batch}"
        yield name, lambda name=name, batch=batch: resnet50(name, batch)


def tests(options: Options) -> Iterator[Item]:
    import pytest  # noqa: F401
    import xdist  # noqa: F401  (tests/conftest.py uses one of its hooks)

    marked = sorted(path for path in (ROOT / "tests").rglob("test_*.py") if "mark.gpu" in path.read_text())
    for path in [path for path in marked if path.name == "test_providers.py"] if options.quick else marked:
        yield path.name, lambda path=path: [tested(path)]


def tested(path: Path) -> Row:
    """The tests of a file."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.xml"
        plain = ["-o", "addopts=", "--import-mode=importlib", "-p", "no:cacheprovider", "-q"]
        plain += ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)]
        command = [sys.executable, "-m", "pytest", *plain, "-m", "gpu", f"--junitxml={record}", str(path)]
        # elsewhere: in the checkout, Python would import what lies there and not what is installed
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        row: Row = {"what": path.name}
        if not record.exists():
            return row | {"wrong": last_line(done.stdout + done.stderr)}
        cases = list(ElementTree.parse(record).iter("testcase"))
    bad = [
        str(case.get("name")) for case in cases if case.find("failure") is not None or case.find("error") is not None
    ]
    skipped = sum(case.find("skipped") is not None for case in cases)
    row |= {"passed": len(cases) - len(bad) - skipped, "skipped tests": skipped, "failed tests": len(bad)}
    return row | ({"wrong": ", ".join(bad)} if bad else {})


def ranks(options: Options) -> Iterator[Item]:
    def launched() -> Iterable[Row]:
        with tempfile.TemporaryDirectory() as folder:
            result = Path(folder) / "row.json"
            launch = ["-m", "torch.distributed.run", "--nproc-per-node", "1"]
            command = [sys.executable, *launch, __file__, "--rank", str(result), "--device", options.device]
            command += ["--quick"] if options.quick else []
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
            if done.returncode:
                raise RuntimeError(last_line(done.stderr))
            return [json.loads(result.read_text())]

    yield "torchrun, one rank", launched


def be_rank(result: Path, options: Options) -> None:
    """The one rank that torchrun starts."""
    signal.alarm(60)  # torchrun gives it a process group of its own, and NCCL may wait for ever
    import ranks as benchmark
    import torch

    from autodial.netparam.shipped import shipped_net
    from autodial.system.ranks import Ranks

    path, count = (shipped_net("digits"), 2) if options.quick else (shipped_net("alexnet"), 20)
    cuda = options.device == "cuda"
    group = Ranks.meet()
    speeds = {
        "without": benchmark.speed(path, count, options.device, None),
        "at the end": benchmark.speed(path, count, options.device, group, overlap=False),
        "beside": benchmark.speed(path, count, options.device, group),
    }
    row: Row = {"what": f"torchrun, one rank, sums by {'NCCL' if cuda else 'gloo'}"}
    row |= {f"images/s {name}": value for name, value in speeds.items()}
    if cuda:
        row["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))
    result.write_text(json.dumps(row))
    Ranks.leave()


def train(options: Options) -> Iterator[Item]:
    import train_images

    from autodial.net.feed import default_workers
    from autodial.system.allocator import keep_freed_memory
    from autodial.system.cpus import available_cpus
    from autodial.system.devices import choose_device

    device = choose_device(options.device)
    if device.type == "cpu":
        keep_freed_memory()

    work = Path(tempfile.mkdtemp())  # in the part's folder, which goes with it
    train_images.write_images(work, 8 if options.quick else 300)

    def trained(name: str, arch: str, precision: str, workers: int) -> Iterable[Row]:
        with tempfile.TemporaryDirectory() as folder:
            train_images.write_project(Path(folder), arch, work)
            measurement = train_images.Measurement(
                Path(folder),
                device,
                batch_size=6 if options.quick else None,
                iterations=1 if options.quick else 20,
                workers=workers,
                precision=precision,
            )
            found = measurement.round()._asdict()
            measurement.close()
        return [{"what": name, **found}]

    counts = dict.fromkeys([default_workers(), available_cpus()])
    for arch, precision in (
        [("digits", "float32")] if options.quick else [("alexnet", "bf16"), ("inception_bn", "bf16")]
    ):
        for workers in [1] if options.quick else counts:
            name = f"{arch} in {precision}, {workers} workers"
            arguments = name, arch, precision, workers
            yield name, lambda arguments=arguments: trained(*arguments)


def predict(options: Options) -> Iterator[Item]:
    import predict_folder

    work = Path(tempfile.mkdtemp())  # in the part's folder, which goes with it
    (work / "images").mkdir()
    count = 20 if options.quick else 1500
    predict_folder.write_images(work / "images", count)
    models = [predict_folder.write_averaging_model(work / "averaging.onnx")] if options.quick else options.models
    if models:
        for model in models:
            yield model.name, lambda model=model: [predicted(model, model.name, work, count, options)]
        return
    for precision in ("float32", "fp16"):
        name = f"inception_bn in {precision}"

        def exported(precision: Any = precision, name: str = name) -> Iterable[Row]:
            model = work / f"{precision}.onnx"
            export_shipped("inception_bn", precision, model)
            return [predicted(model, name, work, count, options)]

        yield name, exported


def export_shipped(arch: str, precision: Any, model: Path) -> None:
    """A shipped net with its fillers' weights as a predictor."""
    import folding

    from autodial.converters.net_export import export
    from autodial.evaluation.timing import replace_missing_data
    from autodial.net.net import Net
    from autodial.netparam.net_state import filter_net
    from autodial.netparam.shipped import shipped_net
    from autodial.proto import messages as pb
    from autodial.proto import read_net

    param = read_net(shipped_net(arch))
    fed, _ = replace_missing_data(filter_net(param, pb.TEST), None)
    weights = folding.random_weights(Net(fed, pb.TEST, seed=0))
    # weights of no meaning give scores that are near each other, and need not agree
    export(param, weights, model, precision=precision, min_agreement=None if precision == "float32" else 0)


def predicted(model: Path, name: str, work: Path, count: int, options: Options) -> Row:
    """Images per second of decoding, running either way and predicting."""
    import numpy as np
    import predict_folder

    from autodial.deploy.binding import BoundRun
    from autodial.deploy.providers import open_model
    from autodial.model_file import INPUT, OUTPUTS
    from autodial.system.cpus import available_cpus

    batch_size = 8 if options.quick else 64
    told = argparse.Namespace(device=options.device, workers=None, batch_size=batch_size)
    measured = predict_folder.Measurement(model, work / "images", count, told)
    opened = open_model(model, options.device, available_cpus())
    batch = np.random.default_rng(0).integers(0, 256, (batch_size, *opened.info.image_shape), dtype=np.uint8)
    bound = BoundRun(opened.session, opened.device, len(opened.info.classes))

    def rate(run: Callable[[], object]) -> float:
        run()
        rounds = 2 if options.quick else 30
        started = time.perf_counter()
        for _ in range(rounds):
            run()
        return rounds * batch_size / (time.perf_counter() - started)

    row: Row = {
        "decode images/s": measured.decode(),
        "run images/s": rate(lambda: opened.session.run(OUTPUTS, {INPUT: batch})),
        "bound images/s": rate(lambda: bound(batch)),
        "predict images/s": measured.predict(),
    }
    run = max(row["run images/s"], row["bound images/s"])
    bound_by = min(row["decode images/s"], run)
    if opened.provider == "CPUExecutionProvider":
        bound_by = 1 / (1 / row["decode images/s"] + 1 / run)
    return {"what": f"{name}, {opened.provider}", **row, "of both": row["predict images/s"] / bound_by}


@dataclass(frozen=True)
class Part:
    """What a part does, and the seconds that it may take."""

    items: Callable[[Options], Iterator[Item]]
    seconds: float


PARTS = {
    "machine": Part(machine, 15),
    "kernels": Part(kernels, 80),
    "layer": Part(layer, 55),
    "steps": Part(steps, 105),
    "tests": Part(tests, 70),
    "ranks": Part(ranks, 35),
    "train": Part(train, 60),
    "predict": Part(predict, 75),
}


# --- a part's own process


def run_part(name: str, folder: Path, options: Options) -> None:
    """Write a line into `folder`/rows as soon as there is a row, and what else there is to say into `folder`/errors."""
    os.setsid()  # what it starts can be ended with it
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
    with (folder / "errors").open("w") as errors:
        for stream in (1, 2):
            os.dup2(errors.fileno(), stream)
    sys.path.insert(0, str(BENCHMARKS))
    with (folder / "rows").open("w", encoding="utf-8") as file:

        def write(row: Row) -> None:
            file.write(json.dumps(row) + "\n")
            file.flush()

        with missing_package_skips(write, name):
            for what, measured in PARTS[name].items(options):
                try:
                    with missing_package_skips(write, what):
                        for row in measured():
                            write(row)
                except Exception as error:
                    traceback.print_exc()
                    write({"what": what, "failed": f"{type(error).__name__}: {error}".splitlines()[0]})


@contextlib.contextmanager
def missing_package_skips(write: Callable[[Row], None], what: str) -> Iterator[None]:
    """Write a row that names a package of others that is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package == "autodial" or (BENCHMARKS / f"{package}.py").exists():
            raise
        write({"what": what, "skipped": f"needs {package}"})


# --- the process that starts them


def start_part(name: str, seconds: float, options: Options, processes: Any) -> dict[str, Any]:
    """Run a part for at most that many seconds; its outcome and its rows."""
    with tempfile.TemporaryDirectory() as name_of_folder:
        folder = Path(name_of_folder)
        started = time.monotonic()
        seconds = max(1.0, seconds)
        process = processes.Process(target=run_part, args=(name, folder, options))
        process.start()
        process.join(seconds)
        status = process.exitcode
        end(process)
        rows, errors = ((folder / file) for file in ("rows", "errors"))
        lines = rows.read_text(encoding="utf-8").splitlines() if rows.exists() else []
        outcome = "done" if status == 0 else f"out of time after {seconds:.0f} s"
        if status:
            said = last_line(errors.read_text(errors="replace")) if errors.exists() else ""
            outcome = f"failed with status {status}: {said}"
        return {
            "outcome": outcome,
            "seconds": round(time.monotonic() - started, 1),
            "rows": [json.loads(line) for line in lines if line.endswith("}")],
        }


def end(process: Any) -> None:
    """End a part and all that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        process.join(GRACE)


def last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def make_importable(folder: Path) -> None:
    """Let this process and all that it starts import `autodial`: from `folder`, if it is not installed."""
    if importlib.util.find_spec("autodial") is not None:
        return
    package, record = folder / "autodial", folder / "autodial_layers-0.dist-info"
    package.mkdir()
    for path in [*(ROOT / "autodial").iterdir(), *(ROOT / name for name in ("converters", "deploy", "prototxt"))]:
        (package / path.name).symlink_to(path)
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: autodial-layers\nVersion: 0\n")
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


def print_rows(name: str, part: dict[str, Any]) -> None:
    print(f"{name}: {part['outcome']}, {part['seconds']} s")
    for row in part["rows"]:
        numbers = (f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items())
        print(f"  {row['what']:<44} {', '.join(list(numbers)[1:])}", flush=True)


def is_good(part: dict[str, Any]) -> bool:
    return part["outcome"] == "done" and not any("failed" in row or "wrong" in row for row in part["rows"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("-o", "--output", type=Path, default=Path("gpu.json"))
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--model", type=Path, nargs="+", default=[], help="exported files for the part predict")
    parser.add_argument("--quick", action="store_true", help="tiny shapes, to see that it runs")
    parser.add_argument("--rank", type=Path, metavar="RESULT", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    options = Options(arguments.device, arguments.quick, [path.absolute() for path in arguments.model])
    if arguments.rank:
        return be_rank(arguments.rank, options)
    if unknown := [name for name in arguments.parts if name not in PARTS]:
        parser.error(f'there is no part "{unknown[0]}"; these are: {", ".join(PARTS)}')
    if options.quick:
        os.environ["OMP_NUM_THREADS"] = "1"
    started = time.monotonic()
    found: dict[str, Any] = {"device": options.device, "quick": options.quick, "parts": {}}
    processes = multiprocessing.get_context("forkserver")  # which loads torch once, and never touches a GPU
    processes.set_forkserver_preload(["torch"])
    with tempfile.TemporaryDirectory() as folder:
        make_importable(Path(folder))
        for name in dict.fromkeys(["machine", *(arguments.parts or PARTS)]):
            left = LIMIT - (time.monotonic() - started)
            found["parts"][name] = part = start_part(name, min(PARTS[name].seconds, left), options, processes)
            print_rows(name, part)
            aside = arguments.output.with_name(f"{arguments.output.name}.part")
            aside.write_text(json.dumps(found, indent=1), encoding="utf-8")
            aside.replace(arguments.output)
            if name == "machine" and not is_good(part):
                raise SystemExit(f"nothing can be measured on {options.device} here")
    print(f"{time.monotonic() - started:.0f} s; all of it is in {arguments.output}")
    if not all(map(is_good, found["parts"].values())):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
