"""`python -m autodial.proto.stub` writes messages.pyi, the types of all dialects' messages; needs grpcio-tools."""

from __future__ import annotations

import tempfile
from pathlib import Path

from google.protobuf import descriptor_pb2

from autodial.proto.schema import schema


def write_stub(path: Path) -> None:
    """Write the classes of the merged schema as protoc writes them for type checkers."""
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as scratch:
        merged = Path(scratch, "merged.desc")
        merged.write_bytes(descriptor_pb2.FileDescriptorSet(file=[schema().file]).SerializeToString())
        if protoc.main(["protoc", f"--descriptor_set_in={merged}", f"--pyi_out={scratch}", "caffe.proto"]) != 0:
            raise SystemExit("protoc failed")
        path.write_bytes(Path(scratch, "caffe_pb2.pyi").read_bytes())


if __name__ == "__main__":
    write_stub(Path(__file__).with_name("messages.pyi"))
