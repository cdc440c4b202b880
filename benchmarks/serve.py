"""How fast `autodial serve` answers, beside `autodial predict` on the same files and what one would write instead.

    python benchmarks/serve.py [--model target_predictor.onnx ...] [--connections 1 8 64] [--seconds 5] [--repeats 3]

Each request is one generated JPEG of 256 x 256 pixels, over connections that are kept. It is sent as curl --data-binary
sends it; LitServe, which takes no such bodies, gets it as from curl -F. Client and service share the machine. For each
model the benchmark takes, in turn and `--repeats` times,

- predict: `autodial predict` on the files, in images/s;
- serve: `autodial serve`, in images/s, with the latencies that half and 99 % of the requests keep within, in ms, and
  the CPU time that it takes, in all and of the one thread that reads and answers requests (Linux);
- fastapi: a route that calls `Predictor.predict` for each request (pip install fastapi);
- litserve: LitServe with batches of 32 (pip install litserve).

The last two are left out where their packages are missing. Then it says what half and 99 % of single images keep within
in a `Predictor` of this process, beside the 99 % of serve at one connection. Medians are printed, with the least and
the most. Without --model, a model that averages its pixels runs, which costs next to nothing. `--quick` only tries the
program.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

import numpy as np
from predict_folder import write_averaging_model, write_images

from autodial.deploy import Predictor, predict_folder
from autodial.system.cpus import available_cpus

FASTAPI = """
import sys
import uvicorn
from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from autodial.deploy import Predictor

predictor = Predictor(sys.argv[1])
app = FastAPI()

@app.post("/")
async def label(request: Request):
    found = await run_in_threadpool(predictor.predict, [await request.body()])
    best = found.top(1)[0][0]
    return {"label": best.name, "probability": best.probability}

uvicorn.run(app, port=int(sys.argv[2]), log_level="error")
"""
LITSERVE = """
import sys
import litserve
from autodial.deploy import Predictor

class Labels(litserve.LitAPI):
    def setup(self, device):
        self.predictor = Predictor(sys.argv[1])
    def decode_request(self, request):
        return request["image"].file.read()
    def batch(self, inputs):
        return inputs
    def predict(self, images):
        return [labels[0] for labels in self.predictor.predict(images).top(1)]
    def unbatch(self, output):
        return output
    def encode_response(self, output):
        return {"label": output.name, "probability": output.probability}

if __name__ == "__main__":
    api = Labels(max_batch_size=32, batch_timeout=0.002, api_path="/")
    litserve.LitServer(api, accelerator="cpu").run(port=int(sys.argv[2]), log_level="error", generate_client_file=False)
"""
OTHERS = {"fastapi": FASTAPI, "litserve": LITSERVE}


class Rate(NamedTuple):
    """What a service did for a number of clients."""

    images: float
    """Per second."""
    median: float
    """Milliseconds that half of the requests keep within."""
    slow: float
    """Milliseconds that 99 % of them do."""


async def _client(port: int, requests: list[bytes], until: float, seconds: list[float]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    number = len(seconds)
    while time.perf_counter() < until:
        started = time.perf_counter()
        writer.write(requests[number % len(requests)])
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        if not head.startswith(b"HTTP/1.1 200") or length is None:
            raise SystemExit(f"no answer: {head!r}")
        await reader.readexactly(int(length[1]))
        seconds.append(time.perf_counter() - started)
        number += 7
    writer.close()


async def _load(port: int, requests: list[bytes], connections: int, seconds: float) -> Rate:
    taken: list[float] = []
    started = time.perf_counter()
    await asyncio.gather(*(_client(port, requests, started + seconds, taken) for _ in range(connections)))
    elapsed = time.perf_counter() - started
    taken.sort()
    return Rate(len(taken) / elapsed, 1000 * taken[len(taken) // 2], 1000 * taken[int(len(taken) * 0.99)])


def clients(port: int, path: str, form: bool, folder: Path, connections: int, seconds: float) -> Rate:
    """The rate of a service, by clients in a process of their own."""
    arguments = [str(port), path, "form" if form else "body", str(folder), str(connections), str(seconds)]
    command = [sys.executable, __file__, "--clients", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the clients failed: {done.stderr}")
    return Rate(*json.loads(done.stdout))


def be_clients(port: str, path: str, form: str, folder: str, connections: str, seconds: str) -> None:
    """What that process does."""
    requests = []
    for file in sorted(Path(folder).iterdir())[:200]:
        data = file.read_bytes()
        kind = ""
        if form == "form":
            kind = "Content-Type: multipart/form-data; boundary=---benchmark\r\n"
            part = b'-----benchmark\r\nContent-Disposition: form-data; name="image"; filename="a.jpg"\r\n\r\n'
            data = part + data + b"\r\n-----benchmark--\r\n"
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{kind}Content-Length: {len(data)}\r\n\r\n"
        requests.append(head.encode() + data)
    asyncio.run(_load(int(port), requests, int(connections), 0.5))
    print(json.dumps(asyncio.run(_load(int(port), requests, int(connections), float(seconds)))))


@contextlib.contextmanager
def running(command: list[str], port: int) -> Iterator[int]:
    """A service in a process of its own, by its id, once it listens."""
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            until = time.monotonic() + 120
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                except OSError:
                    if process.poll() is not None or time.monotonic() > until:
                        assert process.stderr is not None
                        raise SystemExit(f"{command[:4]} doesn't listen: {process.stderr.read()[-2000:]!r}") from None
                    time.sleep(0.1)
            yield process.pid
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def spent(service: int, port: int) -> tuple[float, float, float]:
    """Images that a service has labelled, and seconds of CPU time of all its threads and of the first.

    The first one reads and answers all requests, and has one CPU at most, however many there are.
    """
    with urlopen(f"http://127.0.0.1:{port}/v2/models/m/stats") as answer:
        images = json.load(answer)["model_stats"][0]["inference_count"]
    seconds = []
    for path in (Path(f"/proc/{service}/stat"), Path(f"/proc/{service}/task/{service}/stat")):
        user, system = path.read_text().rpartition(")")[2].split()[11:13]
        seconds.append((int(user) + int(system)) / os.sysconf("SC_CLK_TCK"))
    return images, *seconds


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def measure(model: Path, folder: Path, options: argparse.Namespace) -> None:
    files = sorted(folder.iterdir())
    found: dict[tuple[str, int], list[Rate]] = {}
    costs: dict[int, list[list[float]]] = {}
    predicted: list[float] = []
    for _ in range(options.repeats):
        predicted.append(predict_folder(model, [folder], folder.parent / "out.csv").images_per_second)
        for name in ["serve", *(name for name in OTHERS if find_spec(name) is not None)]:
            port = free_port()
            if name == "serve":
                path = "/v2/models/m/infer"
                command = [sys.executable, "-m", "autodial", "serve", "--name", f"m={model}", "--port", str(port), "-q"]
            else:
                path, script = "/", folder.parent / f"{name}_service.py"
                script.write_text(OTHERS[name])
                command = [sys.executable, str(script), str(model), str(port)]
            with running(command, port) as service:
                for connections in options.connections:
                    before = spent(service, port) if name == "serve" else None
                    rate = clients(port, path, name == "litserve", folder, connections, options.seconds)
                    found.setdefault((name, connections), []).append(rate)
                    if before is not None:
                        images, *cpu = (b - a for a, b in zip(before, spent(service, port), strict=True))
                        costs.setdefault(connections, []).append([1000 * seconds / images for seconds in cpu])
    print(f"  predict             {_spread(predicted):>24} images/s")
    for (name, connections), rates in found.items():
        images, median, slow = (_spread([rate[i] for rate in rates], digits) for i, digits in enumerate((0, 1, 1)))
        print(f"  {name:9} {connections:3} conn. {images:>26} images/s   50 % {median} ms   99 % {slow} ms", flush=True)
    for connections, rows in costs.items():
        whole, first = (_spread(list(column), 2) for column in zip(*rows, strict=True))
        print(f"  serve     {connections:3} conn. {whole} ms of CPU time an image, {first} of them in its first thread")
    predictor, contents = Predictor(model), [file.read_bytes() for file in files[:200]]
    seconds = []
    for data in [*contents[:10], *contents]:
        started = time.perf_counter()
        predictor.predict([data])
        seconds.append(time.perf_counter() - started)
    alone, slow = np.percentile(seconds[10:], (50, 99))
    print(
        f"  one image takes a Predictor {1000 * alone:.1f} ms, and 99 % of them {1000 * slow:.1f} ms; "
        f"1.5 times the first and 3 ms are {1500 * alone + 3:.1f} ms"
    )


def _spread(values: list[float], digits: int = 0) -> str:
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def main() -> None:
    if sys.argv[1:2] == ["--clients"]:
        be_clients(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, nargs="+", help="files that `autodial export` wrote")
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.images, options.seconds, options.repeats, options.connections = 20, 0.3, 1, [1, 4]
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "images"
        folder.mkdir()
        size = write_images(folder, options.images)
        print(f"JPEGs of {size} bytes, {available_cpus()} of {os.cpu_count()} CPUs")
        for model in options.model or [write_averaging_model(Path(work) / "averaging.onnx")]:
            print(model.name)
            measure(model.absolute(), folder, options)


if __name__ == "__main__":
    main()
