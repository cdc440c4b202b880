"""`autodial upgrade` from a file to a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import typer
from google.protobuf import text_format
from originals import UPGRADE
from typer.testing import CliRunner

from autodial.commands.upgrade import upgrade
from autodial.errors import InputError
from autodial.proto import LayerWeights, State, Weights, messages, read_weights, write_state, write_weights

app = typer.Typer()
app.command()(upgrade)


def run(source: Path, output: Path) -> str:
    result = CliRunner().invoke(app, [str(source), str(output)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize(
    ("stem", "kind", "old"),
    [
        ("v0_net", "NetParameter", "V0 layers, padding layers, inputs outside of a layer"),
        ("v1_data", "NetParameter", "V1 layers, transformations outside of transform_param"),
        ("old_solver", "SolverParameter", "solver_type"),
    ],
)
def test_texts(stem: str, kind: str, old: str, tmp_path: Path) -> None:
    source, output = UPGRADE / f"{stem}.prototxt", tmp_path / "new.prototxt"
    assert run(source, output) == f"Wrote {output}; upgraded: {old}\n"
    written, expected = (
        text_format.Parse(path.read_text(), getattr(messages, kind)())
        for path in (output, UPGRADE / f"{stem}.upgraded.prototxt")
    )
    assert written == expected
    assert run(output, tmp_path / "again.prototxt").endswith(f"; nothing in {output} was old\n")
    assert (tmp_path / "again.prototxt").read_text() == output.read_text()


@pytest.mark.parametrize(
    "text",
    [
        'net: "n.prototxt" solver_mode: GPU',
        "debug_info: true # layer { }\nsnapshot_prefix: 'layer {'",
        "test_state { stage: 'layer' } test_state < level: 1 >",
        "net_param { layer { name: 'a' } }",
    ],
)
def test_solvers_are_told_from_nets(text: str, tmp_path: Path) -> None:
    (tmp_path / "in.prototxt").write_text(text)
    run(tmp_path / "in.prototxt", tmp_path / "out.prototxt")
    expected = text_format.Parse(text, messages.SolverParameter())
    assert text_format.Parse((tmp_path / "out.prototxt").read_text(), messages.SolverParameter()) == expected


def test_nets_of_fields_that_solvers_have_too(tmp_path: Path) -> None:
    (tmp_path / "in.prototxt").write_text("debug_info: true layer { name: 'net' }")
    run(tmp_path / "in.prototxt", tmp_path / "out.prototxt")
    assert (tmp_path / "out.prototxt").read_text() == 'debug_info: true\nlayer {\n  name: "net"\n}\n'


def test_weights(tmp_path: Path) -> None:
    source, output = UPGRADE / "v1_weights.caffemodel", tmp_path / "new.caffemodel"
    assert run(source, output) == f"Wrote {output}; upgraded: V1 layers\n"
    assert not messages.NetParameter.FromString(output.read_bytes()).layers
    assert run(output, tmp_path / "again.caffemodel").endswith("was old\n")
    assert (tmp_path / "again.caffemodel").read_bytes() == output.read_bytes()


def test_weights_to_hdf5_and_back(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    run(UPGRADE / "v1_weights.caffemodel", tmp_path / "w.caffemodel.h5")
    run(tmp_path / "w.caffemodel.h5", tmp_path / "w.caffemodel")
    expected = np.load(UPGRADE / "v1_expected.npz")
    for layer in read_weights(tmp_path / "w.caffemodel").layers:
        for index, blob in enumerate(layer.blobs):
            np.testing.assert_array_equal(blob, expected[f"param/{layer.name}/{index}"])


@pytest.mark.parametrize("name", ["x.h5", "x.caffemodel"])
def test_text_does_not_become_weights(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"v1_net\.prototxt is a prototxt: name a prototxt to write"):
        run(UPGRADE / "v1_net.prototxt", tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_weights_do_not_become_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"v1_weights\.caffemodel holds weights: name a \.caffem"):
        run(UPGRADE / "v1_weights.caffemodel", tmp_path / "w.prototxt")
    assert list(tmp_path.iterdir()) == []


def test_the_file_itself_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text("# comment\ninput: 'x' input_shape { dim: 1 }")
    (tmp_path / "link.prototxt").symlink_to(path)
    for output in (path, tmp_path / "link.prototxt"):
        with pytest.raises(InputError, match="the same command reads this file"):
            run(path, output)
    assert path.read_text().startswith("# comment")


def test_errors_write_nothing(tmp_path: Path) -> None:
    (tmp_path / "mixed.prototxt").write_text("layer { name: 'a' } layers { name: 'b' }")
    write_state(State(1, 0, "", []), tmp_path / "s.solverstate")
    write_weights(Weights("", [LayerWeights(messages.LayerParameter(name="a"), [])]), tmp_path / "w.caffemodel")
    (tmp_path / "cut.caffemodel").write_bytes((tmp_path / "w.caffemodel").read_bytes()[:-1])
    for name, error in (
        ("mixed.prototxt", 'the net has "layers", the old form, and "layer"'),
        ("s.solverstate", "is a solverstate: name a caffemodel"),
        ("cut.caffemodel", "is cut short or damaged"),
        ("none.prototxt", "does not exist: check the name of the prototxt or caffemodel file"),
    ):
        with pytest.raises(InputError, match=error):
            run(tmp_path / name, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match=r"there is no folder .*missing: make it first"):
        run(tmp_path / "w.caffemodel", tmp_path / "missing" / "out")
