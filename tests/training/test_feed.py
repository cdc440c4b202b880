"""Batches ahead of the trainer, and what is wrong with lists before it starts."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable, Sequence
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from damaged import damaged_jpeg, said_of
from numpy.typing import NDArray

from autodial.data.decoder_messages import watch_decoders
from autodial.errors import InputError
from autodial.net.data_checks import check_data, label_readers
from autodial.net.feed import Feed, image_format, sources, workers_that_fit
from autodial.net.net import Net
from autodial.proto import messages as pb
from autodial.proto import read_net

Edit = Callable[[str, str, str], None]
CPU = torch.device("cpu")


def train_net(phase: int = pb.TRAIN) -> Net:
    return Net(read_net("net.prototxt"), phase, seed=5)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_batches_are_the_readers_in_order(project: Path, workers: int) -> None:
    net = train_net()
    feed = Feed(net, itertools.count(7), device=CPU, workers=workers)
    for index in range(7, 12):
        inputs = next(feed)
        assert list(inputs) == ["source", "label", "target", "target-label"] == list(net.inputs)
        expected = [torch.from_numpy(array) for reader in sources(net).values() for array in reader.batch(index)]
        for got, wanted in zip(inputs.values(), expected, strict=True):
            assert got.dtype == torch.float32
            assert torch.equal(got, wanted)
    feed.close()


@pytest.mark.parametrize("convolves", [False, True])
def test_images_lie_channels_last_for_convolutions_on_the_cpu(project: Path, convolves: bool) -> None:
    param = read_net("net.prototxt")
    if not convolves:
        del param.layer[next(i for i, layer in enumerate(param.layer) if "Data" not in layer.type) :]
    net = Net(param, pb.TRAIN)
    assert any(layer.type == "Convolution" for layer in net.param.layer) == convolves
    inputs = next(Feed(net, range(1), device=CPU, workers=0))
    expected = [torch.from_numpy(array) for reader in sources(net).values() for array in reader.batch(0)]
    for got, wanted in zip(inputs.values(), expected, strict=True):
        assert torch.equal(got, wanted)
        if got.dim() == 4:
            assert got.is_contiguous(memory_format=torch.channels_last if convolves else torch.contiguous_format)
    assert image_format(net, torch.device("cuda")) == torch.contiguous_format


@pytest.mark.parametrize("brief", [False, True])
def test_batches_last_for_ever_or_until_the_next_is_asked_for(project: Path, brief: bool) -> None:
    net = train_net()
    read = [
        [torch.from_numpy(array) for reader in sources(net).values() for array in reader.batch(index)]
        for index in range(12)
    ]
    feed = Feed(net, range(12), device=CPU, workers=2, brief=brief)
    batches = []
    for inputs, expected in zip(feed, read, strict=True):
        batches.append(list(inputs.values()))
        assert all(map(torch.equal, batches[-1], expected))
        if brief:
            for image in batches[-1]:
                image.fill_(-1)  # whoever trains may change what it is given
    if not brief:
        for batch, expected in zip(batches, read, strict=True):
            assert all(map(torch.equal, batch, expected))


def test_a_last_batch_may_be_shorter(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = train_net()
    source = sources(net)["source"]
    whole = source.batch

    def short(index: int, rows: slice = slice(None)) -> Sequence[NDArray[np.float32]]:
        return [array[:1] if index == 3 else array for array in whole(index, rows)]

    monkeypatch.setattr(source, "batch", short)
    for index, inputs in enumerate(Feed(net, range(4), device=CPU, workers=1)):
        assert len(inputs["source"]) == len(inputs["label"]) == (1 if index == 3 else 4)
        assert torch.equal(inputs["source"], torch.from_numpy(short(index)[0]))
    assert index == 3


def test_a_finite_feed_ends(project: Path) -> None:
    assert len(list(Feed(train_net(pb.TEST), range(3), device=CPU, workers=2))) == 3


def test_reading_leaves_torchs_generator_alone(project: Path) -> None:
    before = torch.get_rng_state()
    next(Feed(train_net(), range(3), device=CPU, workers=0))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_image_is_one_sentence_with_its_line(project: Path, workers: int) -> None:
    feed = Feed(train_net(), itertools.count(), device=CPU, workers=workers)
    data = (project / "image 8.png").read_bytes()
    (project / "image 8.png").write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError) as caught:
        for _ in range(12):
            next(feed)
    assert "target.txt:3: " in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "Traceback" not in str(caught.value)
    feed.close()


def test_little_shared_memory_means_fewer_workers(
    project: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    batch = 4 * ((4 + 3) * 3 * 8 * 8 + 4 + 3)
    readers = list(sources(train_net()).values())
    usage = namedtuple("usage", "free")
    for free, workers in ((11 * batch, 5), (9 * batch, 4), (3 * batch, 1), (3 * batch - 1, 0), (0, 0)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: usage(free))
        assert workers_that_fit(5, readers, project) == workers
    assert len(caplog.records) == 4
    assert caplog.records[0].getMessage().startswith("Reading with 4 instead of 5 workers: ")


def test_labels_that_are_compared_must_be_classes(project: Path) -> None:
    assert [reader[:3] for reader in label_readers(train_net())] == [("loss-source", "source", 1)]
    test_readers = [reader[:3] for reader in label_readers(train_net(pb.TEST))]
    assert test_readers == [("loss-test", "test", 1), ("accuracy", "test", 1)]
    check_data(train_net())
    lines = Path("source.txt").read_text().splitlines()
    for label in (3, -1):
        lines[4] = f"image 4.png {label}"
        Path("source.txt").write_text("\n".join(lines))
        with pytest.raises(
            InputError, match=rf'source.txt:5: label {label} is not in \[0, 3\), the classes that layer "loss-source"'
        ):
            check_data(train_net())


def test_ignored_label_may_be_anything(project: Path, edit: Edit) -> None:
    Path("source.txt").write_text("image 0.png 255\nimage 1.png 1\n")
    edit("net.prototxt", 'top: "loss-source"\n', 'top: "loss-source" loss_param { ignore_label: 255 }\n')
    check_data(train_net())


def test_images_are_checked(project: Path) -> None:
    Path("target.txt").write_text("image 0.png 0\nimage 99.png 0\n")
    with pytest.raises(InputError, match=r"target.txt:2: .*image 99.png"):
        check_data(train_net())


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on the size of files")
def test_a_batch_that_does_not_fit_into_shared_memory_ends_the_run(project: Path) -> None:
    code = """
import pathlib, resource, torch
from autodial.net.feed import Feed
from autodial.net.net import Net
from autodial.proto import read_net
net = Net(read_net("net.prototxt"), 0, base_dir=pathlib.Path())
resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))
next(Feed(net, range(4), device=torch.device("cpu"), workers=1))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "WorkError: a batch can't be put into shared memory" in result.stderr


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_damaged_image_is_named_once_and_trained_on(
    project: Path, workers: int, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """In the process that trains, whichever read it; the decoder's own line, without a name, reaches no one."""
    path = project / sources(train_net())["source"].names(0)[0]
    path.write_bytes(damaged_jpeg(side=cv2.imread(str(path)).shape[0]))
    words = said_of(path, capfd)
    with watch_decoders():
        feed = Feed(train_net(), range(30), device=CPU, workers=workers)
        batches = list(feed)
        feed.close()
    assert len(batches) == 30
    assert [message for message in caplog.messages if "damaged" in message] == [caplog.messages[0]]
    assert "source.txt:" in caplog.messages[0] and path.name in caplog.messages[0] and words in caplog.messages[0]
    assert "Corrupt" not in capfd.readouterr().err
