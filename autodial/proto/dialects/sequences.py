"""Text in sequences of columns (tianzhi0549/CTPN, yalecyu/crnn.caffe); the messages' numbers are not the forks'."""

from __future__ import annotations

from autodial.proto.dialects.dialect import Dialect

DIALECT = Dialect(
    "sequences",
    {
        "transpose_param": ("Transpose",),
        "reverse_param": ("Reverse",),
        "lstm_param": ("Lstm",),
        "continuation_indicator_param": ("ContinuationIndicator",),
    },
)
