"""Layers written in Python, in pycaffe's nets and in those that the command line trains."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import autodial.caffe as caffe
from autodial.errors import InputError
from autodial.net.net import Net
from autodial.proto import parse_net, parse_solver
from autodial.training.solver import Solver

Write = Callable[..., str]

MODULE = """
import numpy as np
import autodial.caffe as caffe


class Times(caffe.Layer):
    '''Multiplies by param_str, or by ten.'''

    def setup(self, bottom, top):
        if len(bottom) != len(top):
            raise ValueError("as many tops as bottoms")
        self.factor = float(self.param_str or 10)
        self.shapes = []

    def reshape(self, bottom, top):
        self.shapes.append(tuple(bottom[0].shape))
        top[0].reshape(*bottom[0].data.shape)

    def forward(self, bottom, top):
        top[0].data[...] = self.factor * bottom[0].data

    def backward(self, top, propagate_down, bottom):
        if propagate_down[0]:
            bottom[0].diff[...] = self.factor * top[0].diff


class Squared(caffe.Layer):
    '''EuclideanLoss.'''

    def reshape(self, bottom, top):
        if bottom[0].count != bottom[1].count:
            raise ValueError("the inputs must have the same count")
        self.difference = np.zeros_like(bottom[0].data)
        top[0].reshape(1)

    def forward(self, bottom, top):
        self.difference[...] = bottom[0].data - bottom[1].data
        top[0].data[...] = (self.difference**2).sum() / bottom[0].num / 2

    def backward(self, top, propagate_down, bottom):
        for i, sign in enumerate((1, -1)):
            if propagate_down[i]:
                bottom[i].diff[...] = sign * top[0].diff * self.difference / bottom[i].num


class Slope(caffe.Layer):
    '''Multiplies by a learned number, which starts at 2.'''

    def setup(self, bottom, top):
        self.blobs.add_blob(1)
        self.blobs[0].data[...] = 2

    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].shape)

    def forward(self, bottom, top):
        top[0].data[...] = self.blobs[0].data * bottom[0].data

    def backward(self, top, propagate_down, bottom):
        self.blobs[0].diff[...] += (top[0].diff * bottom[0].data).sum()
        if propagate_down[0]:
            bottom[0].diff[...] = self.blobs[0].data * top[0].diff


class Rows(caffe.Layer):
    '''Data of a size that grows from pass to pass, and the phase.'''

    rows = 0

    def reshape(self, bottom, top):
        top[0].reshape(1, 2)
        top[1].reshape()

    def forward(self, bottom, top):
        self.rows += 1
        top[0].reshape(self.rows, 2)
        top[0].data[...] = self.rows
        top[1].data[()] = self.phase


class InPlace(caffe.Layer):
    def reshape(self, bottom, top):
        pass

    def forward(self, bottom, top):
        top[0].data[...] += 1

    def backward(self, top, propagate_down, bottom):
        pass


class Bare(caffe.Layer):
    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].shape)

    def forward(self, bottom, top):
        pass


class Failing(caffe.Layer):
    def setup(self, bottom, top):
        raise RuntimeError("on purpose")


class Other:
    pass
"""
X = 'force_backward: true input: "x" input_shape { dim: 2 dim: 3 } '


def python(cls: str, bottoms: str = "x", tops: str = "y", **fields: str) -> str:
    """A layer that is named like its class, in small letters; `fields` may hold name, module, param_str, more."""
    names = [f'bottom: "{name}"' for name in bottoms.split()] + [f'top: "{name}"' for name in tops.split()]
    return (
        f'layer {{ name: "{fields.get("name", cls.lower())}" type: "Python" {" ".join(names)} {fields.get("more", "")} '
        f'python_param {{ module: "{fields.get("module", "user_layers")}" layer: "{cls}" '
        f'param_str: "{fields.get("param_str", "")}" }} }} '
    )


@pytest.fixture(autouse=True)
def user_layers(tmp_path: Path) -> Any:
    (tmp_path / "user_layers.py").write_text(MODULE)
    yield
    sys.modules.pop("user_layers", None)


@pytest.fixture
def net(write: Write) -> Callable[..., caffe.Net]:
    return lambda text, phase=caffe.TRAIN: caffe.Net(write(text), phase)


def test_passes(net: Callable[..., caffe.Net]) -> None:
    made = net(X + python("Times") + python("Times", "y", "z", name="b", param_str="2"))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(made.forward(x=x)["z"], 20 * x)
    np.testing.assert_array_equal(made.blobs["y"].data, 10 * x)
    assert made.backward(z=np.ones((2, 3)))["x"].tolist() == [[20] * 3] * 2
    made.blobs["x"].reshape(4, 1, 5)
    assert made.forward()["z"].shape == (4, 1, 5)
    assert [blob.diff.shape for blob in made.blobs.values()] == [(4, 1, 5)] * 3
    # it is the user's own object that scripts find among the layers
    assert made.layers[1].factor == 10 and made.layer_dict["b"].factor == 2 and made.layers[1].type == "Python"
    assert made.layers[1].shapes[-1] == (4, 1, 5)


def test_the_way_back_without_a_pass_forward(net: Callable[..., caffe.Net]) -> None:
    made = net(X + python("Times"))
    made.blobs["y"].diff[...] = 7
    assert (made.backward()["x"] == 70).all()


def test_parameters(net: Callable[..., caffe.Net], tmp_path: Path) -> None:
    text = X + python("Slope")
    made, other = net(text), net(text)
    assert [blob.shape for blob in made.params["slope"]] == [(1,)] and made.layers[1].blobs[0].data == [2]
    made.forward(x=np.full((2, 3), 3))
    for times in (1, 2):
        made.backward(y=np.ones((2, 3)))
        assert made.layers[1].blobs[0].diff == [18 * times]
    made.clear_param_diffs()
    assert made.layers[1].blobs[0].diff == [0]
    made.layers[1].blobs[0].data[0] = 5
    made.save(tmp_path / "w.caffemodel")
    other.copy_from(tmp_path / "w.caffemodel")
    assert other.params["slope"][0].data == [5]
    third = net(text)
    third.share_with(made)
    made.params["slope"][0].data[0] = 6
    assert third.layers[1].blobs[0].data == [6] and (third.forward(x=np.ones((2, 3)))["y"] == 6).all()


def test_data_of_changing_size_and_the_phase(net: Callable[..., caffe.Net]) -> None:
    text = python("Rows", "", "d phase") + python("Times", "d")
    for phase in (caffe.TRAIN, caffe.TEST):
        made = net(text, phase)
        for rows in (1, 2, 3):
            result = made.forward()
            assert result["phase"] == phase and result["y"].tolist() == [[10 * rows] * 2] * rows


def test_in_place(net: Callable[..., caffe.Net]) -> None:
    power = 'layer { name: "p" type: "Power" bottom: "x" top: "y" power_param { scale: 2 } }'
    made = net(X + power + python("InPlace", "y", "y") + python("Times", "y", "z"))
    assert (made.forward(x=np.ones((2, 3)))["z"] == 30).all() and (made.blobs["y"].data == 3).all()
    assert (made.backward(z=np.ones((2, 3)))["x"] == 20).all()
    module = Net(parse_net(X + power + python("InPlace", "y", "y")), caffe.TRAIN)
    assert (module({"x": torch.ones(2, 3)})["y"] == 3).all()


def test_a_loss_like_the_one_that_there_is(net: Callable[..., caffe.Net]) -> None:
    text = 'force_backward: true input: "a" input_shape { dim: 3 dim: 4 } input: "b" input_shape { dim: 3 dim: 4 } '
    ours = net(text + python("Squared", "a b", "loss", more="loss_weight: 2"))
    theirs = net(text + 'layer { name: "l" type: "EuclideanLoss" bottom: "a" bottom: "b" top: "loss" loss_weight: 2 }')
    rng = np.random.default_rng(0)
    inputs = {name: rng.normal(size=(3, 4)).astype(np.float32) for name in "ab"}
    for made in (ours, theirs):
        made.forward(**inputs)
        made.backward()
    np.testing.assert_allclose(ours.blobs["loss"].data[0], theirs.blobs["loss"].data, rtol=1e-5)
    for name in "ab":
        np.testing.assert_allclose(ours.blobs[name].diff, theirs.blobs[name].diff, rtol=1e-5)


TRAINED = """
layer { name: "d" type: "DummyData" top: "x" top: "t" dummy_data_param {
  shape { dim: 4 dim: 3 } shape { dim: 4 dim: 1 } data_filler { type: "gaussian" } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "h" inner_product_param { num_output: 1
  weight_filler { type: "xavier" } bias_filler { value: 1 } } }
"""
LOSS = 'layer { name: "loss" type: "EuclideanLoss" bottom: "y" bottom: "t" top: "loss" }'
BUILT_IN = (
    'layer { name: "slope" type: "Scale" bottom: "h" top: "y" scale_param { axis: 1 num_axes: 1 filler { value: 2 } } }'
)


def test_training_from_the_command_line_with_them(tmp_path: Path) -> None:
    """A net with two Python layers learns what the same net of built-in ones does."""
    texts = [
        TRAINED + python("Slope", "h") + python("Squared", "y t", "loss", more="loss_weight: 1"),
        TRAINED + BUILT_IN + LOSS,
    ]
    runs = []
    for text in texts:
        param = parse_solver(
            'base_lr: 0.05 momentum: 0.9 lr_policy: "fixed" max_iter: 8 iter_size: 2 weight_decay: 0.01'
        )
        param.net_param.CopyFrom(parse_net(text))
        solver = Solver(param, base_dir=tmp_path)
        solver.step(8)
        runs.append(solver)
    assert [param.layer for param in runs[0].net.params] == ["ip", "ip", "slope"]
    for ours, theirs in zip(*(run.net.params for run in runs), strict=True):
        np.testing.assert_allclose(ours.tensor.detach(), theirs.tensor.detach(), rtol=1e-5)
    assert abs(float(runs[0].net.params[2].tensor.detach()) - 2) > 0.01


def test_solvers_of_pycaffe_with_them(write: Write) -> None:
    solvers = []
    for i, text in enumerate((TRAINED + python("Slope", "h") + LOSS, TRAINED + BUILT_IN + LOSS)):
        net_file = write(text, f"{i}.prototxt")
        solver = caffe.SGDSolver(write(f'net: "{net_file}" base_lr: 0.05 lr_policy: "fixed"', f"solver{i}.prototxt"))
        solver.step(5)
        solvers.append(solver)
    ours, theirs = (solver.net.params for solver in solvers)
    for name in theirs:
        np.testing.assert_allclose(ours[name][0].data, theirs[name][0].data, rtol=1e-5)


# --- finding the class, and errors


def test_modules_are_found_on_the_path_in_the_working_directory_and_beside_the_prototxt(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {"on_path": tmp_path / "path", "in_cwd": tmp_path / "cwd", "beside": tmp_path}
    for name, folder in places.items():
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.py").write_text(MODULE)
    text = X + "".join(python("Times", "x", name, module=name, name=name) for name in places)
    monkeypatch.syspath_prepend(places["on_path"])
    monkeypatch.chdir(places["in_cwd"])
    path = list(sys.path)
    assert len(caffe.Net(write(text), caffe.TEST).forward()) == 3
    assert sys.path == path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (python("Times", module="no_such"), 'no module "no_such" is on Python\'s path or in .* or '),
        (python("Times", module="no_such.part"), 'no module "no_such.part"'),
        (python("Missing"), 'module "user_layers" has no class "Missing" derived from autodial.caffe.Layer'),
        (python("Other"), 'has no class "Other" derived from autodial.caffe.Layer'),
        (python("Times", module="uses_caffe"), '"uses_caffe" imports caffe: write "import autodial.caffe as caffe"'),
    ],
)
def test_classes_that_are_not_there(text: str, message: str, net: Callable[..., caffe.Net], tmp_path: Path) -> None:
    (tmp_path / "uses_caffe.py").write_text("import caffe\n")
    with pytest.raises(InputError, match=r'layer "\w+" \(Python\): .*' + message):
        net(X + text)


def test_what_the_users_code_raises_comes_through(net: Callable[..., caffe.Net], tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="on purpose"):
        net(X + python("Failing"))
    with pytest.raises(ValueError, match="could not convert"):
        net(X + python("Times", param_str="ten"))
    (tmp_path / "needs_more.py").write_text("import no_such_package\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        net(X + python("Times", module="needs_more"))
    made = net(X + python("Bare"))
    made.forward()
    with pytest.raises(
        NotImplementedError, match=r"Bare must have a method backward\(self, top, propagate_down, bottom"
    ):
        made.backward()


def test_nets_without_them_do_not_load_pycaffe() -> None:
    code = """
        import sys
        import autodial.net.net
        from autodial.proto import parse_net
        net = 'layer { name: "x" type: "DummyData" top: "x" dummy_data_param { shape { dim: 1 } } }'
        autodial.net.net.Net(parse_net(net), 0)
        assert "autodial.layers.python_layer" in sys.modules
        assert not any(name.startswith("autodial.caffe") for name in sys.modules)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)
