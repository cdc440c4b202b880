"""Caffe's recurrent layers: RNN, LSTM, and LSTMUnit, a step of an LSTM; and those of forks that read text."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Sequence
from math import prod
from typing import ClassVar, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, check_size, register
from autodial.layers.fillers import fill
from autodial.layers.shares import Rows
from autodial.proto import messages as pb
from autodial.wording import counted

_log = logging.getLogger(__name__)

R = TypeVar("R", bound="Recurrent")
State = tuple[Tensor, ...]
"""The hidden state, float (N, H) each: h for an RNN, h and c for an LSTM."""


class Recurrent(Layer):
    """What RNN and LSTM have in common (recurrent_layer.cpp): T steps of N independent streams.

    Bottoms: x (T, N, ...); cont (T, N), by which the hidden state is multiplied before each step, 0 where a sequence
    begins and 1 where it continues; with a static input s, (N, ...), which every step sees; with `expose_hidden` the
    state before the first step, (1, N, H) each. Tops: (T, N, H); with `expose_hidden` also the state behind the last
    step, (1, N, H) each.

    Without `expose_hidden` the state is kept from one forward pass to the next. It is 0 in the first pass, and whenever
    N changes. As in Caffe no gradient flows from one pass to another, so that none flows to or from the exposed states.
    A pass that is traced or exported begins with a state of 0 and keeps none.

    The weights start at zero, as Caffe's default filler leaves them.

    Args:
        in_features: number of values of a stream in a step of x.
        num_output: H.
        static_features: number of values of a stream in s; None for no static input.
        expose_hidden: see above.
    """

    bottoms = (2, 5)
    tops = (1, 3)
    no_gradient = (1,)
    in_place = False
    full_precision = True  # rounding adds up over the steps
    options = ("recurrent_param",)
    rows = Rows.NONE

    states: ClassVar[int]
    """How many tensors make the hidden state."""
    gates: ClassVar[int]
    """How many values of the transformed input make one of the hidden state."""

    def __init__(
        self, in_features: int, num_output: int, *, static_features: int | None = None, expose_hidden: bool = False
    ) -> None:
        super().__init__()
        if num_output < 1:
            raise LayerError("num_output is missing or 0")
        self.in_features, self.num_output = in_features, num_output
        self.static_features, self.expose_hidden = static_features, expose_hidden
        width = self.gates * num_output
        self.input_weight = _zeros("the input's weight", width, in_features)
        self.input_bias = _zeros("the input's bias", width)
        self.static_weight = (
            None if static_features is None else _zeros("the static input's weight", width, static_features)
        )
        self.hidden_weight = _zeros("the hidden state's weight", width, num_output)
        self._state: State | None = None
        self._state_before: State | None = None

    @classmethod
    def from_caffe(cls: type[R], context: LayerContext) -> R:
        param = context.param.recurrent_param
        if param.debug_info:
            _log.warning('Layer "%s": recurrent_param.debug_info is ignored', context.param.name)
        has_static = check_blob_counts(context, cls.states if param.expose_hidden else 0)
        static = context.bottom_shapes[2] if has_static else None
        layer = cls(
            prod(context.bottom_shapes[0][2:]),
            param.num_output,
            static_features=None if static is None else prod(static[1:]),
            expose_hidden=param.expose_hidden,
        )
        for blob in layer.blobs:
            fill(blob, param.bias_filler if blob.ndim == 1 else param.weight_filler, context.generator)
        return layer

    @property
    def blobs(self) -> tuple[Tensor, ...]:
        static = () if self.static_weight is None else (self.static_weight,)
        return (self.input_weight, self.input_bias, *static, self.hidden_weight)

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        x, cont, *others = bottom_shapes
        if len(x) < 3:
            raise LayerError(f"the first bottom must have at least 3 axes (steps, streams, values), not be {x}")
        if cont != x[:2]:
            raise LayerError(f"the second bottom must have the shape {x[:2]} (steps, streams), not {cont}")
        if prod(x[2:]) != self.in_features:
            raise LayerError(f"bottom {x} has {prod(x[2:])} values per step, the weights expect {self.in_features}")
        if self.static_features is not None:
            static = others.pop(0)
            if len(static) < 2 or static[0] != x[1] or prod(static[1:]) != self.static_features:
                raise LayerError(
                    f"the static input must have the shape ({x[1]}, ...) (streams, values), with "
                    f"{self.static_features} values per stream, not {static}"
                )
        hidden = (1, x[1], self.num_output)
        for shape in others:
            if shape != hidden:
                raise LayerError(f"a hidden state must have the shape {hidden}, not {shape}")
        check_size("the transformed input", (*x[:2], self.gates * self.num_output))
        return [(*x[:2], self.num_output), *[hidden] * len(others)]

    def forward(self, x: Tensor, cont: Tensor, *others: Tensor) -> Tensor | tuple[Tensor, ...]:
        inputs = F.linear(x.flatten(2), self.input_weight, self.input_bias)
        if self.static_weight is not None:
            inputs = inputs + F.linear(others[0].flatten(1), self.static_weight)
        given = others[0 if self.static_weight is None else 1 :]
        state = tuple(each.squeeze(0) for each in given) if self.expose_hidden else self._kept(inputs)
        outputs = []
        for step, continues in zip(inputs.unbind(), cont.detach().unsqueeze(2).unbind(), strict=True):
            state = self._step(step, tuple(continues * each for each in state))
            outputs.append(state[0])
        top = self._output(torch.stack(outputs))
        if self.expose_hidden:
            return (top, *(each.detach().unsqueeze(0) for each in state))
        if not torch.compiler.is_compiling():
            self._state_before, self._state = self._state, tuple(each.detach() for each in state)
        return top

    def rewind(self) -> None:
        self._state = self._state_before

    def _kept(self, inputs: Tensor) -> State:
        """The state that the last pass left."""
        streams = inputs.shape[1]
        fits = self._state is not None and self._state[0].shape[0] == streams and not torch.compiler.is_compiling()
        if self._state is None or not fits:
            return (inputs.new_zeros(streams, self.num_output),) * self.states
        return tuple(each.to(inputs.device, inputs.dtype) for each in self._state)

    @abstractmethod
    def _step(self, inputs: Tensor, state: State) -> State:
        """The state behind a step, h first, from the transformed input (N, gates * H) and the state before."""

    def _output(self, hidden: Tensor) -> Tensor:
        """The top, (T, N, H), of the hidden states h of all steps."""
        return hidden


@register("LSTM")
class LSTM(Recurrent):
    """Long short-term memory (lstm_layer.cpp, lstm_unit_layer.cpp); Recurrent says what the bottoms and tops are.

    With (i, f, o, g) = W_x x + b + W_s s + W_h h, sigmoid of the first three and tanh of g:
    c' = f c + i g and h' = o tanh(c'). Blobs: W_x (4H, values), b (4H), W_s (4H, values of s) where there is a static
    input, W_h (4H, H). The arguments are those of Recurrent.
    """

    states = 2
    gates = 4

    @classmethod
    def unread_options(cls, param: pb.LayerParameter) -> list[str]:
        others = ["lstm_param"] if "lstm_param" not in cls.options and param.HasField("lstm_param") else []
        return [*super().unread_options(param), *others]

    def _step(self, inputs: Tensor, state: State) -> State:
        hidden, cell = state
        return lstm_step(torch.addmm(inputs, hidden, self.hidden_weight.t()).chunk(4, -1), cell)


@register("Lstm")
class Lstm(LSTM):
    """LSTM over whole sequences (lstm_layer.cpp of CTPN): (T, N, values) -> (T, N, H).

    Each pass begins with a state of 0. The blobs are W_x, W_h, b. The arguments are those of Recurrent.
    """

    bottoms = (1, 1)
    tops = (1, 1)
    options = ("lstm_param",)

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Lstm:
        param = context.param.lstm_param
        if param.clipping_threshold:
            _log.warning(
                'Layer "%s": lstm_param.clipping_threshold, a bound of gradients, is ignored', context.param.name
            )
        layer = cls(context.bottom_shapes[0][-1], param.num_output)
        for blob in layer.blobs:
            fill(blob, param.bias_filler if blob.ndim == 1 else param.weight_filler, context.generator)
        return layer

    @property
    def blobs(self) -> tuple[Tensor, ...]:
        return self.input_weight, self.hidden_weight, self.input_bias

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        (shape,) = bottom_shapes
        if len(shape) != 3:
            raise LayerError(f"Lstm needs a bottom of 3 axes (steps, streams, values), not {shape}")
        return super().top_shapes([shape, shape[:2]])

    def forward(self, bottom: Tensor) -> Tensor | tuple[Tensor, ...]:  # type: ignore[override]
        return super().forward(bottom, torch.ones_like(bottom[:, :, 0]))

    def _kept(self, inputs: Tensor) -> State:
        return (inputs.new_zeros(inputs.shape[1], self.num_output),) * self.states


@register("ContinuationIndicator")
class ContinuationIndicator(Layer):
    """Where sequences continue, as LSTM reads it (continuation_indicator_layer.cpp of CRNN): nowhere in the first step.

    Args:
        time_step: T.
        batch_size: N; the top is (T, N).
    """

    bottoms = (0, 0)
    rows = Rows.NONE

    def __init__(self, time_step: int, batch_size: int) -> None:
        super().__init__()
        for name, value in (("time_step", time_step), ("batch_size", batch_size)):
            if value < 1:
                raise LayerError(f"{name} must be positive, not {value}")
        check_size("the top", (time_step, batch_size))
        self.register_buffer("value", torch.ones(time_step, batch_size))
        self.value: Tensor
        self.value[0] = 0

    @classmethod
    def from_caffe(cls, context: LayerContext) -> ContinuationIndicator:
        param = context.param.continuation_indicator_param
        return cls(param.time_step, param.batch_size)

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        return [tuple(self.value.shape)]

    def forward(self) -> Tensor:
        return self.value


@register("LSTMUnit")
class LSTMUnit(Layer):
    """A step of an LSTM behind its linear maps (lstm_unit_layer.cpp), for nets that write out the steps.

    Bottoms: c, (1, N, H); the sums that (i, f, o, g) are made of, (1, N, 4H); cont, (1, N), by which c is multiplied
    before, and which gets no gradient. Tops: c' and h', (1, N, H) each, as LSTM has them.
    """

    bottoms = (3, 3)
    tops = (2, 2)
    no_gradient = (2,)
    in_place = False
    rows = Rows.NONE
    backward_reads_bottoms = True

    @classmethod
    def from_caffe(cls, context: LayerContext) -> LSTMUnit:
        return cls()

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        cell, sums, cont = bottom_shapes
        if len(cell) != 3 or cell[0] != 1:
            raise LayerError(f"the first bottom must be a state (1, streams, values), not {cell}")
        if sums != (1, cell[1], 4 * cell[2]):
            raise LayerError(f"the second bottom must have the shape {(1, cell[1], 4 * cell[2])}, not {sums}")
        if cont != cell[:2]:
            raise LayerError(f"the third bottom must have the shape {cell[:2]}, not {cont}")
        return [cell, cell]

    def forward(self, cell: Tensor, sums: Tensor, cont: Tensor) -> tuple[Tensor, Tensor]:
        hidden, cell = lstm_step(sums.chunk(4, -1), cont.unsqueeze(2) * cell)
        return cell, hidden


@register("RNN")
class RNN(Recurrent):
    """Plain recurrence (rnn_layer.cpp); Recurrent says what the bottoms and tops are.

    h' = tanh(W_x x + b + W_s s + W_h h), and the top is tanh(W_o h' + b_o). Blobs: W_x (H, values), b (H), W_s (H,
    values of s) where there is a static input, W_h (H, H), W_o (H, H), b_o (H). The arguments are those of Recurrent.
    """

    states = 1
    gates = 1

    def __init__(
        self, in_features: int, num_output: int, *, static_features: int | None = None, expose_hidden: bool = False
    ) -> None:
        super().__init__(in_features, num_output, static_features=static_features, expose_hidden=expose_hidden)
        self.output_weight = _zeros("the output's weight", num_output, num_output)
        self.output_bias = _zeros("the output's bias", num_output)

    @property
    def blobs(self) -> tuple[Tensor, ...]:
        return (*super().blobs, self.output_weight, self.output_bias)

    def _step(self, inputs: Tensor, state: State) -> State:
        return (torch.addmm(inputs, state[0], self.hidden_weight.t()).tanh(),)

    def _output(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.output_weight, self.output_bias).tanh()


def check_blob_counts(context: LayerContext, exposed: int) -> bool:
    """Whether a recurrent layer has a static input.

    Args:
        exposed: number of states that are bottoms and tops; 0 without `expose_hidden`.

    Raises:
        LayerError: a number of bottoms or tops that no such layer has.
    """
    count = len(context.bottom_shapes)
    how = "with expose_hidden" if exposed else "without expose_hidden"
    if count - exposed not in (2, 3):
        raise LayerError(
            f"takes {2 + exposed} bottoms {how}, or {3 + exposed} with a static input, and the prototxt names {count}"
        )
    if context.num_tops != 1 + exposed:
        raise LayerError(f"has {counted(1 + exposed, 'top')} {how}, not {context.num_tops}")
    return count - exposed == 3


def lstm_step(gates: Sequence[Tensor], cell: Tensor) -> tuple[Tensor, Tensor]:
    """h' and c' from the sums that i, f, o and g are made of and c, all of one shape."""
    let_in, keep, let_out, candidate = gates
    cell = keep.sigmoid() * cell + let_in.sigmoid() * candidate.tanh()
    return let_out.sigmoid() * cell.tanh(), cell


def _zeros(what: str, *shape: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(check_size(what, shape)))
