from __future__ import annotations

import ast
import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from originals import shared

from autodial.proto import messages

ROOT = Path(__file__).parents[2]
PROTO = ROOT / "autodial" / "proto"


@pytest.fixture(scope="module")
def compiled() -> Any:
    """caffe.desc, which the messages are made from."""
    return descriptor_pb2.FileDescriptorSet.FromString((PROTO / "caffe.desc").read_bytes())


@pytest.fixture(scope="module")
def schema(compiled: Any) -> Any:
    """The messages of AutoDIAL's own Caffe."""
    (file,) = (file for file in compiled.file if file.name == "caffe.proto")
    return file


def as_recorded(field: Any) -> dict[str, Any]:
    """A FieldDescriptorProto in the form of caffe_format.json."""
    kind = field.Type.Name(field.type).removeprefix("TYPE_").lower()
    record = {
        "number": field.number,
        "name": field.name,
        "label": field.Label.Name(field.label).removeprefix("LABEL_").lower(),
        "type": kind,
    }
    if kind in ("message", "enum"):
        record[kind] = field.type_name.removeprefix(".caffe.")
    if field.options.HasField("packed"):
        record["packed"] = field.options.packed
    if field.HasField("default_value"):
        convert = {"bool": "true".__eq__, "float": float, "string": str, "enum": str}.get(kind, int)
        record["default"] = convert(field.default_value)
    return record


def test_every_message_field_and_enum_is_the_originals(schema: Any) -> None:
    recorded = json.loads(shared("reference/caffe_format.json").read_text())
    assert schema.package == recorded["package"]
    assert {enum.name: {value.name: value.number for value in enum.value} for enum in schema.enum_type} == recorded[
        "enums"
    ]
    assert {message.name for message in schema.message_type} == set(recorded["messages"])
    for message in schema.message_type:
        original = recorded["messages"][message.name]
        enums = {enum.name: {value.name: value.number for value in enum.value} for enum in message.enum_type}
        assert enums == original["enums"], message.name
        assert [nested.name for nested in message.nested_type] == original["nested"], message.name
        fields = {field.name: as_recorded(field) for field in message.field}
        expected = {field["name"]: field for field in original["fields"]}
        for values in (fields, expected):  # a default is compared as the single-precision number that it is
            for field in values.values():
                if field["type"] == "float" and "default" in field:
                    field["default"] = pytest.approx(field["default"], rel=1e-7)
        assert fields == expected, message.name


def test_defaults_are_the_originals_floats() -> None:
    # The nearest single-precision numbers to 0.999 and 1e-5.
    assert messages.DialParameter().moving_average_fraction == 0.9990000128746033
    assert messages.DialParameter().eps == 9.999999747378752e-06


def test_descriptor_set_is_the_compiled_protos(compiled: Any, tmp_path: Path) -> None:
    protoc = pytest.importorskip("grpc_tools.protoc", reason="needs grpcio-tools")
    fresh = tmp_path / "caffe.desc"
    dialects = sorted(path.relative_to(PROTO).as_posix() for path in PROTO.glob("dialects/*.proto"))
    assert protoc.main(["protoc", f"-I{PROTO}", f"--descriptor_set_out={fresh}", "caffe.proto", *dialects]) == 0
    again = descriptor_pb2.FileDescriptorSet.FromString(fresh.read_bytes())
    assert {file.name: file for file in again.file} == {file.name: file for file in compiled.file}


def test_stub_has_the_messages_of_every_dialect(compiled: Any) -> None:
    # Versions of protoc write stubs that differ in form, so names are compared.
    stub = ast.parse((PROTO / "messages.pyi").read_text(encoding="utf-8"))
    classes = {node.name: node for node in stub.body if isinstance(node, ast.ClassDef)}
    assert classes.keys() == {
        *(message.name for file in compiled.file for message in file.message_type),
        *(enum.name for file in compiled.file for enum in file.enum_type),
    }
    for message in (message for file in compiled.file for message in file.message_type):
        names = {node.target.id for node in classes[message.name].body if isinstance(node, ast.AnnAssign)}
        assert {field.name for field in message.field} <= names, message.name
        assert {field.name for field in message.field} <= set(getattr(messages, message.name).DESCRIPTOR.fields_by_name)


def test_names() -> None:
    assert (messages.TRAIN, messages.TEST) == (0, 1)
    assert messages.PoolingParameter.AVE == 1
    assert messages.DialParameter.TARGET == 1
    assert {"NetParameter", "SolverState", "TRAIN"} <= set(dir(messages))
    assert messages.PriorBoxParameter.CENTER_SIZE == 2
    with pytest.raises(AttributeError, match="SwooshParameter"):
        _ = messages.SwooshParameter


@pytest.mark.parametrize("theirs_first", [True, False])
def test_beside_another_packages_caffe_proto(theirs_first: bool) -> None:
    theirs = """
        from google.protobuf import descriptor_pb2, descriptor_pool
        file = descriptor_pb2.FileDescriptorProto(name="caffe.proto", package="caffe", syntax="proto2")
        message = file.message_type.add(name="NetParameter")
        message.field.add(name="other", number=1, type=5, label=1)
        descriptor_pool.Default().Add(file)
        descriptor_pool.Default().FindMessageTypeByName("caffe.NetParameter")
    """
    ours = "from autodial.proto import parse_net"
    parts = [textwrap.dedent(theirs), ours] if theirs_first else [ours, textwrap.dedent(theirs)]
    code = "\n".join([*parts, "print(parse_net('name: \"a\"').name)"])
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "a\n"


def test_import_brings_no_torch() -> None:
    code = "import sys, autodial.proto; print({'torch', 'onnx', 'onnxruntime', 'cv2'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"
