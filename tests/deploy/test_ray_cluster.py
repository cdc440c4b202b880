"""`predict` on a Ray cluster against `predict` in one process; run with -m slow where Ray is installed."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from exported_model import save_apart

from autodial.data.decoder_messages import watch_decoders
from autodial.deploy import PredictOptions, predict_folder
from autodial.errors import InputError, WorkError

MANY = 2000


def test_without_ray_a_sentence_says_so(
    model: Any, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(WorkError, match=r'^`ray` needs Ray, which is not installed: pip install "\.\[ray\]"'):
        predict_folder(model.path, [photos], tmp_path / "out.csv", PredictOptions(ray="auto"))
    with pytest.raises(InputError, match="device cuda:1: Ray chooses each worker's GPU: write cuda"):
        from autodial.deploy.engine import Work
        from autodial.deploy.ray_cluster import Cluster
        from autodial.deploy.rows import Columns

        work = Work(Columns(("a",)), 32, statistics=False, label_damaged=True)
        Cluster("auto", model.path, work, device="cuda:1", workers=None, threads=1, fetching=1)
    large = save_apart(model.path, tmp_path / "large.onnx")
    with pytest.raises(
        InputError, match=r"has its weights in a second file, large\.onnx\.data, and `ray` sends workers one"
    ):
        predict_folder(large, [photos], tmp_path / "out.csv", PredictOptions(ray="auto"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Ray with two CPUs on this machine."""
    ray = pytest.importorskip("ray")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init("local", num_cpus=2, object_store_memory=2 * 10**8, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEG and PNG, grey, with 16 bits, damaged, no image, empty, too large, a link to nowhere."""
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("mixed")
    for i in range(MANY):
        pixels = rng.integers(0, 256, (*rng.integers(5, 60, 2), 3), dtype=np.uint8)
        kind = i % 10
        if kind == 7:
            pixels = pixels.astype(np.uint16) * 257
        suffix = ".jpg" if kind < 4 or kind == 8 else ".png"
        data = cv2.imencode(suffix, pixels[..., 0] if kind == 6 else pixels)[1].tobytes()
        if kind == 8:
            data = data[:-2]
        if kind == 9:
            data = b"no image" if i % 20 == 9 else data[: len(data) // 2]
        (folder / f"{i % 7}").mkdir(exist_ok=True)
        (folder / f"{i % 7}" / f"{i:04}{suffix}").write_bytes(data)
    (folder / "empty.png").touch()
    with (folder / "huge.png").open("wb") as file:
        file.truncate(3 * 2**30)
    (folder / "nowhere.png").symlink_to(folder / "not there.png")
    return folder


def labels(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def workers_here(what: bytes = b"ray::Worker") -> list[int]:
    """Process numbers of Ray's workers, or of those that do a certain thing, as Ray's names of the processes say."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if what in (process / "cmdline").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue
    return found


def predict_as_a_command(
    model: Any, photos: Path, output: Path, *options: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """`autodial predict` in a process whose environment names no cluster."""
    command = [sys.executable, "-m", "autodial", "predict", model.path, photos.name, "-o", output, *options]
    environment = {name: text for name, text in os.environ.items() if not name.startswith("RAY_")}
    return subprocess.run(
        command,
        cwd=photos.parent,
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow
def test_without_a_cluster_a_sentence_says_so(model: Any, photos: Path, tmp_path: Path) -> None:
    """The tests below start a cluster, which Ray would find among this machine's processes."""
    pytest.importorskip("ray")
    for address, words in [
        ("auto", "there is no Ray cluster that this machine can use"),
        ("127.0.0.1:1", "nothing answers there (Connection refused)"),
        ("ray://127.0.0.1:1", "nothing answers there (Connection refused)"),
    ]:
        aside = {"RAY_TMPDIR": str(tmp_path)}  # where Ray would read of a cluster of this machine
        refused = predict_as_a_command(model, photos, tmp_path / "no.csv", "--ray", address, **aside)
        assert refused.returncode == 2
        assert refused.stderr.startswith(f"autodial: error: --ray {address}: {words}")
        assert len(refused.stderr.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="processes are found in /proc")
def test_a_killed_worker_changes_nothing(
    model: Any, mixed: Path, cluster: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options: Any = {"top_k": 2, "logits": True, "entropy": True, "batch_size": 8}
    killed: list[int] = []

    def kill_one(done: int) -> None:
        if done > 500 and not killed and (at_work := workers_here(b"ray::Worker.label")):
            killed.append(at_work[0])
            os.kill(killed[0], signal.SIGKILL)

    with watch_decoders():
        predict_folder(model.path, [mixed], tmp_path / "one.csv", PredictOptions(**options))
        summary = predict_folder(
            model.path,
            [mixed],
            tmp_path / "ray.csv",
            PredictOptions(**options, ray="auto", workers=2),
            progress=kill_one,
        )
    assert killed and "A worker of Ray died" in caplog.text
    assert (tmp_path / "ray.csv").read_bytes() == (tmp_path / "one.csv").read_bytes()
    assert summary.images == MANY + 3 == len(labels(tmp_path / "ray.csv"))
    assert set(summary.statuses) == {"ok", "damaged", "error"} and summary.statuses["error"] >= 200
    assert "worker" in summary.reason and "of Ray on 1 machine" in summary.reason
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.csv", "ray.csv"]


@pytest.mark.slow
def test_every_option_gives_the_same(model: Any, photos: Path, cluster: Any, tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    import pyarrow as pa

    (photos / "broken.png").write_bytes(b"broken")
    (photos / "cut.jpg").write_bytes(cv2.imencode(".jpg", np.zeros((9, 9, 3), np.uint8))[1].tobytes()[:-2])
    files = sorted(path for path in photos.rglob("*") if path.is_file())
    (tmp_path / "list.txt").write_text("".join(f"{path.relative_to(tmp_path)}\n" for path in files[::2]) + "none.png")
    pq.write_table(pa.table({"photo": [path.read_bytes() for path in files] + [None]}), tmp_path / "t.parquet")
    inputs = [photos, tmp_path / "list.txt", tmp_path / "t.parquet", f"local://{photos}/sub"]
    for suffix, options in [
        ("jsonl", {"label_damaged": False, "shard": (2, 3)}),
        ("parquet", {"top_k": 4, "batch_size": 3, "workers": 1}),
        ("csv", {"spreadsheet_safe": True, "threads": 2}),
    ]:
        texts = []
        for ray in (None, "auto"):
            out = tmp_path / f"out-{ray}.{suffix}"
            summary = predict_folder(model.path, inputs, out, PredictOptions(column="photo", ray=ray, **options))
            texts.append(Path(summary.table).read_bytes())
        assert texts[0] == texts[1]
    sorted_into = tmp_path / "one", tmp_path / "ray"
    for folder, ray in zip(sorted_into, (None, "auto"), strict=True):
        predict_folder(model.path, [photos], tmp_path / "o.csv", PredictOptions(sort_into=folder, ray=ray))
    one, other = (sorted(path.relative_to(top) for path in top.rglob("*")) for top in sorted_into)
    assert one == other and len(one) > 10


@pytest.mark.slow
def test_an_interrupted_run_goes_on_with_or_without_ray(model: Any, mixed: Path, cluster: Any, tmp_path: Path) -> None:
    predict_folder(model.path, [mixed], tmp_path / "whole.csv")
    out = tmp_path / "out.csv"

    def stop(done: int) -> None:
        if done > 300:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=r"the rows of the first \d+ images are in"):
        predict_folder(model.path, [mixed], out, PredictOptions(ray="auto"), progress=stop)
    assert not out.exists()
    with pytest.raises(InputError, match="holds what an interrupted run has done"):
        predict_folder(model.path, [mixed], out, PredictOptions(ray="auto"))
    with pytest.raises(KeyboardInterrupt):
        predict_folder(model.path, [mixed], out, PredictOptions(resume=True), progress=lambda done: stop(done - 300))
    summary = predict_folder(model.path, [mixed], out, PredictOptions(ray="auto", resume=True))
    assert 600 < summary.resumed < summary.images
    assert out.read_bytes() == (tmp_path / "whole.csv").read_bytes()
    deadline = time.monotonic() + 20
    while workers_here() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not workers_here()


@pytest.mark.slow
def test_what_can_not_be_used_is_said(model: Any, photos: Path, cluster: Any, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    for options, words in [
        ({"threads": 3}, "no machine of the cluster has 3 CPUs for a worker, and the largest has 2 CPUs"),
        ({"device": "cuda"}, "no machine of the cluster has 1 CPU and a GPU for a worker"),
        ({"max_failures": 0}, "more than 0 failures, so the run stops"),
    ]:
        (photos / "broken.png").write_bytes(b"broken")
        with pytest.raises((InputError, WorkError), match=words):
            predict_folder(model.path, [photos], out, PredictOptions(ray="auto", **options))
    assert not out.exists()
    out.write_text("old")
    predict_folder(model.path, [photos], out, PredictOptions(ray="auto"))
    assert len(labels(out)) == 13


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="processes are found in /proc")
def test_images_of_which_workers_die_end_the_run(model: Any, photos: Path, cluster: Any, tmp_path: Path) -> None:
    done = threading.Event()

    def kill_all() -> None:
        while not done.is_set():
            for number in workers_here():
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            time.sleep(0.05)

    killer = threading.Thread(target=kill_all)
    killer.start()
    try:
        with pytest.raises(WorkError, match=r"Ray's workers die as they start|of Ray's workers died of the \d+ images"):
            predict_folder(model.path, [photos], tmp_path / "out.csv", PredictOptions(ray="auto"))
    finally:
        done.set()
        killer.join()
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.slow
def test_the_command_starts_ray_by_itself(model: Any, photos: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    one = predict_as_a_command(model, photos, tmp_path / "one.csv")
    ran = predict_as_a_command(model, photos, tmp_path / "ray.csv", "--ray", "local", "--workers", "1")
    assert one.returncode == ran.returncode == 0, ran.stderr
    assert (tmp_path / "ray.csv").read_bytes() == (tmp_path / "one.csv").read_bytes()
    assert "1 worker of Ray on 1 machine" in ran.stderr and "INFO" not in ran.stderr
