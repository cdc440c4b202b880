"""Nets that read image lists, for tests that fill them by hand."""

from __future__ import annotations

from typing import Any

from autodial.netparam.net_state import filter_net
from autodial.proto import messages as pb


def with_inputs(net: Any, height: int, width: int) -> Any:
    """The TEST phase, Input layers in place of its image lists."""
    param = filter_net(net, pb.TEST)
    for layer in param.layer:
        if layer.type == "ImageData":
            side = layer.transform_param.crop_size
            channels = 3 if layer.image_data_param.is_color else 1
            layer.type = "Input"
            layer.ClearField("transform_param")
            layer.ClearField("image_data_param")
            layer.input_param.shape.add(dim=[2, channels, side or height, side or width])
            layer.input_param.shape.add(dim=[2])
    return param
