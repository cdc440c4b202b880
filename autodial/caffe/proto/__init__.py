"""`caffe.proto.caffe_pb2`, as scripts expect it."""

from autodial.caffe.proto import caffe_pb2

__all__ = ["caffe_pb2"]
