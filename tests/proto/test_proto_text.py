"""The text format, held against protoc's C++ parser - the one that Caffe uses - and the recorded files."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from originals import RECORDS, shared_files

from autodial.errors import InputError, WorkError
from autodial.net.net import Net
from autodial.proto import (
    LayerWeights,
    Weights,
    fork_fields,
    messages,
    parse_net,
    parse_solver,
    read_net,
    read_solver,
    read_weights,
    to_text,
    write_text,
    write_weights,
)
from autodial.proto.parser import Parser

ROOT = Path(__file__).parents[2]


def solver(field: str, *values: str) -> list[tuple[str, str]]:
    return [("SolverParameter", f"{field}: {value}") for value in values]


def net(*texts: str) -> list[tuple[str, str]]:
    return [("NetParameter", text) for text in texts]


VALID = [
    *solver("base_lr", "1", "-1", "- 1", "1.", ".5", "1e5", "1e-3f", "5E-3F", "1f", "0", "-0"),
    *solver("base_lr", "inf", "-INF", "Infinity", "nan", "99999999999999999999999", "1e50", "1e-50"),
    *solver("max_iter", "3", "0x3", "0XfF", "010", "0", "- 3", "-3", "2147483647", "-2147483648", "3;", "3,"),
    *solver("random_seed", "-9223372036854775808", "9223372036854775807"),
    *solver("test_initialization", "true", "True", "t", "1", "0x1", "01", "false", "False", "f", "0"),
    *solver("solver_mode", "CPU", "0", "1", "0x1"),
    *solver("net", '"a"', "'a'", "''", '"a" "b"', "'a'\n\"b\"", "'a\"b'", '"a#b"', '"é"', '"\t"'),
    *solver("net", r'"\n\t\\\"\'\?"', r'"\x41\101\0"', r'"\303\251"', r'"\u4e2d"', r'"\400"'),
    *net("", "# only a comment", 'name: "a" # comment', 'name: "a"#', 'name: "a",', 'name: "a";', 'name\n:\r\n\v\f"a"'),
    *net("layer {}", "layer: {}", "layer <>", "layer < name: 'x' >", "layer { include { phase: TRAIN } include: <> }"),
    *net("layer [{ name: 'a' }, < name: 'b' >]", "layer: [{}]", "layer: []", "layer { loss_weight: [1, 2e-1f] }"),
    *net("input_dim: [3, 5]", "input_dim: []", "input_dim: [1], input_dim: [2];"),
    *net("input_dim:1,input_dim:2;input_dim:3"),
    *net("input: ['a', \"b\" 'c']"),
]  # fmt: skip

INVALID = [
    *solver("base_lr", "0x3", "010", "08", "00.5", "1.5.2", "+1", "1_0", "1e", "1px", '"1"', "true"),
    *solver("base_lr", "infinit", "--1", ""),
    *solver("max_iter", "3.0", "3f", "1e3", "+3", "08", "0x", "1_0", "2147483648", "-2147483649", '"3"'),
    *solver("max_iter", "3;;", "3,;", "x"),
    *solver("max_iter", "3 max_iter: 3", "3display: 4", "9" * 5000),
    *solver("random_seed", "9223372036854775808"),
    *solver("test_initialization", "TRUE", "yes", "2", "-1", '"true"'),
    *solver("solver_mode", "cpu", "2", "-1", '"CPU"', "Cpu"),
    *solver("net", "abc", '"a', "'a\n'", '"\\q"', '"\\8"', '"\\x"', '"\\\n"', "['a']", "1", "'a' b"),
    *net("\ufeffname: 'a'", "name 'a'", "name: 'a' name: 'b'", "name: 'a';;", "name::'a'", "Name: 'a'", "'name': 'a'"),
    *net("state { phase: TEST } state { level: 1 }", "foo: 1", "[foo]: 1", "1: 2", "-"),
    *net("// comment", "name: 'a' /* b */"),
    *net("layer {", "layer { name: 'x' >", "layer < }", "}", "layer { } }", "layer {{}}", "layer: : {}"),
    *net("layer", "layer 1"),
    *net("layer [{}", "layer [{},]", "layer {} ;, name: 'a'", "input_dim: [1 2]", "input_dim: [1,]"),
    *net("input_dim: [1", "input_dim 1"),
    *net("name: 'a'\u00a0", "name: 'a'\0", "é: 1", "name: [", "input_dim: [[1]]"),
]  # fmt: skip


def parse(kind: str, text: str) -> Any:
    """The message as the text states it, with nothing brought up to date."""
    message = getattr(messages, kind)()
    Parser(text, "<string>").parse_into(message)
    return message


@pytest.fixture(scope="module")
def cpp(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], bytes | None]:
    """What protoc's parser makes of each text: the message's bytes, or None for an error."""
    pytest.importorskip("grpc_tools.protoc", reason="needs grpcio-tools")
    # protoc reads descriptor 0 and writes descriptors 1 and 2; one process for all saves 20 seconds.
    code = """
import json, os, sys
from grpc_tools import protoc
folder, include = sys.argv[1:]
cases = json.load(open(f"{folder}/cases.json"))
results = []
for kind, text in cases:
    open(f"{folder}/in", "wb").write(text.encode())
    os.dup2(os.open(f"{folder}/in", os.O_RDONLY), 0)
    os.dup2(os.open(f"{folder}/out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
    failed = protoc.main(["protoc", f"-I{include}", f"--encode=caffe.{kind}", "caffe.proto"])
    results.append(None if failed else open(f"{folder}/out", "rb").read().hex())
json.dump(results, open(f"{folder}/results.json", "w"))
"""
    folder = tmp_path_factory.mktemp("protoc")
    cases = VALID + INVALID
    (folder / "cases.json").write_text(json.dumps(cases))
    arguments = [sys.executable, "-c", code, str(folder), str(ROOT / "autodial" / "proto")]
    subprocess.run(arguments, check=True, capture_output=True)
    results = json.loads((folder / "results.json").read_text())
    return {
        case: None if result is None else bytes.fromhex(result) for case, result in zip(cases, results, strict=True)
    }


@pytest.mark.parametrize(("kind", "text"), VALID, ids=lambda value: value[:40])
def test_valid_text_gives_the_message_of_the_cpp_parser(
    kind: str, text: str, cpp: dict[tuple[str, str], bytes]
) -> None:
    assert parse(kind, text).SerializeToString() == cpp[kind, text]


@pytest.mark.parametrize(("kind", "text"), INVALID, ids=lambda value: value[:40])
def test_invalid_text_is_refused_here_and_by_the_cpp_parser(
    kind: str, text: str, cpp: dict[tuple[str, str], bytes | None]
) -> None:
    with pytest.raises(InputError):
        parse(kind, text)
    assert cpp[kind, text] is None


def test_string_that_is_not_utf8_is_refused() -> None:
    # C++ takes it, and protobuf for Python can't hold it.
    with pytest.raises(InputError, match="<string>:1:6: the escapes in net do not give UTF-8 text"):
        parse_solver(r'net: "\377"')


RECORDED = [pytest.param(path, id=f"{path.parent.name}/{path.stem}") for path in sorted(RECORDS.rglob("*.prototxt"))]


@pytest.mark.parametrize("path", RECORDED + shared_files("reference/autodial/*.prototxt", "reference/bvlc/*.prototxt"))
def test_files_give_the_messages_of_protobufs_own_parser(path: Path) -> None:
    kind = "SolverParameter" if "solver" in path.stem else "NetParameter"
    message = parse(kind, path.read_text())
    assert message == text_format.Parse(path.read_text(), getattr(messages, kind)())
    assert parse(kind, to_text(message)) == message


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            'layer {\n  name: "conv1"\n  convolution_param {\n    kernal_size: 3\n  }\n}',
            'n:4:5: layer "conv1": ConvolutionParameter has no field "kernal_size": did you mean "kernel_size"?',
        ),
        (
            'layer {\n  biass_param { axis: 1 }\n  name: "late"\n}',
            'n:2:3: layer "late": LayerParameter has no field "biass_param": did you mean "bias_param"?',
        ),
        (
            'layer { name: "a"\n  vendor_param { a: 1 } }',
            'n:2:3: layer "a": LayerParameter has no field "vendor_param": correct its name; a field that only another '
            "version of Caffe knows is not supported, and without it the net may be another one",
        ),
        (
            'layer { name: "a" type: "ReLU"\nlayer { name: "b" }',
            'n:2:1: layer "a": LayerParameter has no field "layer": remove it, or close the block before it with "}"',
        ),
        ("base_lr: 1", 'n:1:1: NetParameter has no field "base_lr", SolverParameter has: a net is expected here'),
        (
            'layer { name: "a"\n type: "ReLU"\n bottom: "x"\n type: "TanH" }',
            'n:4:2: layer "a": type is given a second time, after line 2: remove one of them',
        ),
        (
            'layer { name: "fc" inner_product_param { num_output: 10.0 } }',
            'n:1:54: layer "fc": num_output must be an integer from 0 to 4294967295, not 10.0',
        ),
        (
            'layer { name: "fc" inner_product_param { num_output: -1 } }',
            'n:1:54: layer "fc": num_output must be an integer from 0 to 4294967295, not -1',
        ),
        (
            "layer {} layer { param { lr_mult: two } }",
            "n:1:35: layer 2, which has no name: lr_mult must be a decimal number, not two",
        ),
        (
            'layer { name: "p" pooling_param { pool: max } }',
            'n:1:41: layer "p": pool must be one of MAX, AVE, STOCHASTIC, without quotes, not max',
        ),
        (
            'layers { name: "c" type: "Convolution" }',
            'n:1:26: layer "c": type must be a name like CONVOLUTION, in capitals and without quotes, '
            'not "Convolution"',
        ),
        (
            'layer { name: "c" type: CONVOLUTION }',
            'n:1:25: layer "c": type must be a string in quotes, not CONVOLUTION',
        ),
        ("layers { layer { name: 'v0' biasterm: 7 } }", 'n:1:39: layer "v0": biasterm must be true or false, not 7'),
        (
            'layer { name: "d" image_data_param { source: "C:\\images\\list" } }',
            'n:1:46: layer "d": in source, \\i is no escape: write "/" in paths, or "\\\\" for a "\\"',
        ),
        ('layer { name: "d\n }', "n:1:15: layer 1, which has no name: name must be a string in quotes, "
         'not a string whose closing " is missing on this line'),
        ('layer { name: "x"', 'n:1:7: layer "x": this "{" is never closed: a "}" is missing'),
        ('layer { name: "x" } }', 'n:1:21: this "}" closes nothing: remove it, or look above for one too many'),
        ('layer {\n name: "x" >', 'n:2:12: layer "x": "}" must close the "{" of line 1'),
        ('layer { name "x" }', 'n:1:14: layer 1, which has no name: ":" must follow name, not "x"'),
        ("layer: name", 'n:1:8: "{" must follow layer, not name'),
        ("input_dim: [1 2]", 'n:1:15: "," or "]" must follow in the list of input_dim, not 2'),
        ("input_dim:", "n:1:11: input_dim must be an integer from -2147483648 to 2147483647, not the end of the file"),
        ("\ufeffname: 'a'", "n:1:1: a field's name must stand here, not a byte order mark: save the file without it"),
        ("name: 'a'\n\u00a0", "n:2:1: a field's name must stand here, not the character U+00A0"),
    ],
)  # fmt: skip
def test_errors_name_line_column_layer_and_field(text: str, error: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_net(text, "n")
    assert str(caught.value) == error


def test_a_net_given_as_solver() -> None:
    with pytest.raises(InputError, match='SolverParameter has no field "layer", NetParameter has: a solver is'):
        parse_solver("layer {}", "n")


@pytest.mark.parametrize("text", ["hello\n", "path,label\na.png,1\n", '{"a": [1]}', "import torch\n", "<html></html>"])
def test_a_text_of_another_kind(text: str) -> None:
    with pytest.raises(InputError, match=r"^n is not the prototxt of a net: it has none of its fields, such as layer$"):
        parse_net(text, "n")
    with pytest.raises(
        InputError, match=r"^n is not the prototxt of a solver: it has none of its fields, such as net$"
    ):
        parse_solver(text, "n")


FOREIGN = """layer {
  name: "boxes"
  type: "BoxOutput"
  box_output_param: { thr: -5 # not an end: }
    field < name: "a } b" > sizes: [1, 2] }
  bottom: "x"
  top: "y"
  scale_param { axis: 2 }
  more_param <>
}"""


def test_options_of_a_layer_type_that_nobody_knows_are_kept_as_they_are(tmp_path: Path) -> None:
    net = parse_net(FOREIGN)
    (layer,) = net.layer
    assert (layer.name, list(layer.top), layer.scale_param.axis) == ("boxes", ["y"], 2)
    text = to_text(net)
    for part in (
        'box_output_param: { thr: -5 # not an end: }\n    field < name: "a } b" > sizes: [1, 2] }',
        "more_param <>",
    ):
        assert part in text
    assert parse_net(text) == net
    assert fork_fields(layer) == ["box_output_param", "more_param"]
    write_weights(Weights("n", [LayerWeights(layer, [np.ones(2, np.float32)])]), tmp_path / "n.caffemodel")
    (read,) = read_weights(tmp_path / "n.caffemodel").layers
    assert read.param.foreign_text == layer.foreign_text and len(read.blobs) == 1


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('type: "Convolution" box_output_param { a: 1 }', 'LayerParameter has no field "box_output_param"'),
        ('type: "Silence" box_output_param { a: 1 }', 'LayerParameter has no field "box_output_param"'),
        ('type: "BoxOutput" box_output { a: 1 }', 'LayerParameter has no field "box_output"'),
        ('type: "BoxOutput" box_output_param: 1', 'LayerParameter has no field "box_output_param"'),
        ('type: "BoxOutput" foreign_text: "a"', 'LayerParameter has no field "foreign_text"'),
        ('type: "BoxOutput" box_output_param { a: 1 >', '"}" must close the "{" of line 1'),
        ('type: "BoxOutput" box_output_param { a { b: 1 }', 'this "{" is never closed'),
        ('type: "BoxOutput" box_output_param { a: "b }', 'here is a string whose closing " is missing'),
    ],
)
def test_other_unknown_fields_are_refused(text: str, error: str) -> None:
    with pytest.raises(InputError, match=re.escape(error)):
        parse_net(f'layer {{ name: "a" {text}')


def test_a_layer_with_options_that_nobody_knows_is_not_built() -> None:
    text = 'layer { name: "a" type: "Axpy" bottom: "x" top: "y" axpy_param { a: 1 } }'
    with pytest.raises(InputError, match=r'layer "a".*axpy_param, which only other versions of Caffe have'):
        Net(parse_net('input: "x" input_shape { dim: 1 }' + text), messages.TEST)


def test_vendor_fields_name_is_not_taken_from_a_neighbouring_layer_or_block() -> None:
    text = 'layer { name: "one" } layer { param { name: "shared" } bad: 1 name: "two" } layer { name: "three" }'
    with pytest.raises(InputError, match='layer "two": LayerParameter has no field "bad"'):
        parse_net(text)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b'name: "a"\nlayer { name: "caf\xe9" }', "{}:2:19: the byte 0xe9 is not UTF-8: save the file as UTF-8"),
        ('name: "a"'.encode("utf-16"), "{} is UTF-16 text: save it as UTF-8"),
        (
            messages.NetParameter(name="a", layer=[{"name": "b"}]).SerializeToString(),
            "{} is a binary file, like a caffemodel: name a prototxt, which is text",
        ),
    ],
)
def test_files_that_are_no_text(content: bytes, error: str, tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_net(path)
    assert str(caught.value) == error.format(path)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist: check the name of the prototxt file"):
        read_solver(tmp_path / "solver.prototxt")
    with pytest.raises(InputError, match="is a folder: name the prototxt file itself"):
        read_net(tmp_path)


def test_errors_of_files_begin_with_their_path(tmp_path: Path) -> None:
    path = tmp_path / "solver.prototxt"
    path.write_text("base_lr: 0.1\nlr_policy: fixed\n")
    with pytest.raises(InputError) as caught:
        read_solver(path)
    assert str(caught.value) == f"{path}:2:12: lr_policy must be a string in quotes, not fixed"


def test_written_text_is_read_back(tmp_path: Path) -> None:
    message = parse_net("name: 'ünïcode \"quoted\" \\\\' layer { name: 'a' loss_weight: 0.1 dial_param { eps: 1e-5 } }")
    path = tmp_path / "net.prototxt"
    write_text(message, path)
    assert "ünïcode" in path.read_text(encoding="utf-8")
    assert read_net(path) == message
    assert list(tmp_path.iterdir()) == [path]


def test_unwritable_path_is_a_work_error(tmp_path: Path) -> None:
    with pytest.raises(WorkError, match="can't be written"):
        write_text(messages.NetParameter(), tmp_path / "no" / "net.prototxt")
    with pytest.raises(WorkError, match="can't be written"):
        write_text(messages.NetParameter(), tmp_path)
    assert list(tmp_path.iterdir()) == []
