"""Recurrence over maps (agethen/ConvLSTM-for-Caffe, and DengPingFan/DAVSOD, which goes on from there)."""

from __future__ import annotations

from autodial.proto.dialects.dialect import Dialect

DIALECT = Dialect("conv_lstm", {"lstm_conv_param": ("ConvLSTM",), "lstm_debug_param": ("ConvLSTM",)})
