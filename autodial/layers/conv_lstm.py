"""ConvLSTM, an LSTM whose states are maps."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, Stored, check_size, register
from autodial.layers.fillers import fill
from autodial.layers.recurrent import check_blob_counts, lstm_step
from autodial.layers.shares import Rows
from autodial.layers.windows import Windows
from autodial.proto import messages as pb

_log = logging.getLogger(__name__)

_STATES = 2


@register("ConvLSTM")
class ConvLSTM(Layer):
    """LSTM with convolutions in the place of products (conv_lstm_layer.cpp of DAVSOD).

    T steps of N independent streams, x (T, N, C, H, W), give h (T, N, K, H, W), where K is `num_output`. With * for a
    convolution that keeps H and W, and . for a product of pixels:
    (i, f, o, g) = W_x * x + W_s * s + W_h * (cont h) + b + (V_i . c, V_f . c, V_o . c, 0), sigmoid of the first three
    and tanh of g; c' = cont f c + i g and h' = o tanh(c'). The peepholes V see c as the step before left it, whatever
    `cont` is; so does the output's, which in the paper sees c'.

    Bottoms: x; cont (T, N), 0 where a sequence begins and 1 where it continues; with a static input s, (1, N, S, H, W);
    with `expose_hidden` h and c before the first step, (1, N, K, H, W) each. Tops: h of all steps; with `expose_hidden`
    also h and c behind the last step, (1, N, K, H, W) each. The exposed states have gradients. Without `expose_hidden`
    each pass begins with a state of 0.

    Blobs: W_x (4K, C, kernel height, kernel width); W_s where there is a static input; two numbers that do nothing; W_h
    (4K, K, kernel height, kernel width); b (4K); V_i, V_f, V_o; two more numbers that do nothing. DAVSOD's code passes
    the states before the first step and behind the last one through layers of its own, which have these numbers. The
    weights start at zero, as Caffe's default filler leaves them, and V at one.

    Args:
        size: (H, W).
        num_output: K.
        hidden_windows: of W_h.
        channels: C; None for a layer that reads x for its number of steps alone.
        input_windows: of W_x and W_s; `hidden_windows` unless given.
        static_channels: S; None for no static input.
        peepholes: the axes of (K, H, W) that V has, from the first to before the last number; None for no peepholes.
        expose_hidden: see above.
    """

    bottoms = (2, 5)
    tops = (1, 3)
    no_gradient = (1,)
    in_place = False
    full_precision = True  # rounding adds up over the steps
    options = ("recurrent_param", "lstm_conv_param", "lstm_debug_param")
    rows = Rows.NONE

    def __init__(
        self,
        size: tuple[int, int],
        num_output: int,
        hidden_windows: Windows,
        *,
        channels: int | None,
        input_windows: Windows | None = None,
        static_channels: int | None = None,
        peepholes: tuple[int, int] | None = (1, 3),
        expose_hidden: bool = False,
    ) -> None:
        super().__init__()
        if num_output < 1:
            raise LayerError("lstm_conv_param.num_output is missing or 0")
        self.num_output, self.channels, self.static_channels = num_output, channels, static_channels
        self.hidden_windows, self.input_windows = hidden_windows, input_windows or hidden_windows
        self.expose_hidden = expose_hidden
        self.input_weight = None if channels is None else self._weight("W_x", channels, self.input_windows)
        self.static_weight = (
            None if static_channels is None else self._weight("W_s", static_channels, self.input_windows)
        )
        self.hidden_weight = self._weight("W_h", num_output, self.hidden_windows)
        self.bias = nn.Parameter(torch.zeros(4 * num_output))
        self.peephole_axes = peepholes
        if peepholes is not None:
            shape = check_size("the peepholes' weight", _part((num_output, *size), peepholes))
            self.peephole_i, self.peephole_f, self.peephole_o = (nn.Parameter(torch.ones(shape)) for _ in range(3))
        self.unused_c0, self.unused_h0 = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
        self.unused_h, self.unused_c = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))

    @classmethod
    def from_caffe(cls, context: LayerContext) -> ConvLSTM:
        recurrent, debug = context.param.recurrent_param, context.param.lstm_debug_param
        _check_options(context.param)
        shape = _maps("the first bottom", context.bottom_shapes[0])
        static = check_blob_counts(context, _STATES if recurrent.expose_hidden else 0)
        of_input, of_hidden = _convolutions(context.param.lstm_conv_param)
        if debug.ignore_x and static:
            raise LayerError("with lstm_debug_param.ignore_x there can be no static input: remove one of them")
        layer = cls(
            (shape[3], shape[4]),
            of_hidden.num_output,
            _windows(of_hidden),
            channels=None if debug.ignore_x else shape[2],
            input_windows=_windows(of_input),
            static_channels=_maps("the static input", context.bottom_shapes[2])[2] if static else None,
            peepholes=None if debug.disable_hadamard else _peephole_axes(debug),
            expose_hidden=recurrent.expose_hidden,
        )
        for weight in (layer.input_weight, layer.static_weight):
            if weight is not None:
                fill(weight, of_input.weight_filler, context.generator)
        fill(layer.hidden_weight, of_hidden.weight_filler, context.generator)
        fill(layer.bias, of_hidden.bias_filler, context.generator)
        return layer

    @property
    def blobs(self) -> tuple[Tensor, ...]:
        inputs = [weight for weight in (self.input_weight, self.static_weight) if weight is not None]
        before = (self.unused_c0, self.unused_h0)
        return (*inputs, *before, self.hidden_weight, self.bias, *self.peepholes, self.unused_h, self.unused_c)

    @property
    def peepholes(self) -> tuple[Tensor, ...]:
        """V_i, V_f and V_o, or nothing."""
        return () if self.peephole_axes is None else (self.peephole_i, self.peephole_f, self.peephole_o)

    def taken(self, arrays: Sequence[Stored | None]) -> Sequence[Stored | None]:
        """The blobs of DAVSOD's caffemodels, also without the numbers that do nothing; and those of agethen's, which
        has a convolution for each of the gates i, f, o and g."""
        given = [array for array in arrays if array is not None]
        inputs, rest = (self.input_weight is not None) + (self.static_weight is not None), len(self.peepholes)
        if len(given) < len(arrays):
            return arrays
        if len(given) == 4 * inputs + 8 + rest:
            hidden = given[4 * inputs : 4 * inputs + 8]
            by_gate = [*(given[4 * i : 4 * i + 4] for i in range(inputs)), hidden[::2], hidden[1::2]]
            if any(each.shape != gates[0].shape or not each.ndim for gates in by_gate for each in gates):
                return arrays
            given = [*map(np.concatenate, by_gate), *given[4 * inputs + 8 :]]
        if len(given) == inputs + 2 + rest:
            nothing = np.zeros(1, np.float32)
            return [*given[:inputs], nothing, nothing, *given[inputs:], nothing, nothing]
        return arrays

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        x, cont, *others = bottom_shapes
        _maps("the first bottom", x)
        if cont != x[:2]:
            raise LayerError(f"the second bottom must have the shape {x[:2]} (steps, streams), not {cont}")
        if self.channels not in (None, x[2]):
            raise LayerError(f"bottom {x} has {x[2]} channels, the weights expect {self.channels}")
        state = (1, x[1], self.num_output, *x[3:])
        if self.channels is not None:
            self._check_size_kept(x, self.input_windows)
            check_size("the transformed input", (*x[:2], 4 * self.num_output, *x[3:]))
        self._check_size_kept(state, self.hidden_windows)
        check_size("the transformed state", (1, x[1], 4 * self.num_output, *x[3:]))
        if self.peephole_axes is not None:
            given, needed = tuple(self.peephole_i.shape), _part(state[2:], self.peephole_axes)
            if given != needed:
                raise LayerError(f"the peepholes have the shape {given}, and bottom {x} needs {needed}")
        if self.static_channels is not None:
            wanted = (1, x[1], self.static_channels, *x[3:])
            static = others.pop(0)
            if static != wanted:
                raise LayerError(f"the static input must have the shape {wanted}, not {static}")
        for shape in others:
            if shape != state:
                raise LayerError(f"a state must have the shape {state}, not {shape}")
        return [check_size("the top", (x[0], *state[1:])), *[state] * len(others)]

    def forward(self, x: Tensor, cont: Tensor, *others: Tensor) -> Tensor | tuple[Tensor, ...]:
        inputs = None
        if self.input_weight is not None:
            flat = _convolve(x.flatten(0, 1), self.input_weight, None, self.input_windows)
            inputs = flat.reshape(*x.shape[:2], *flat.shape[1:])
            if self.static_weight is not None:
                inputs = inputs + _convolve(others[0].squeeze(0), self.static_weight, None, self.input_windows)
        if self.expose_hidden:
            hidden, cell = (state.squeeze(0) for state in others[-_STATES:])
        else:
            hidden = cell = x.new_zeros(x.shape[1], self.num_output, *x.shape[3:])
        outputs = []
        for t, continues in enumerate(cont.detach()[..., None, None, None].unbind()):
            sums = _convolve(continues * hidden, self.hidden_weight, self.bias, self.hidden_windows)
            if inputs is not None:
                sums = sums + inputs[t]
            gates = list(sums.chunk(4, 1))
            for gate, weight in enumerate(self.peepholes):
                gates[gate] = gates[gate] + self.spread(weight) * cell
            hidden, cell = lstm_step(gates, continues * cell)
            outputs.append(hidden)
        top = torch.stack(outputs)
        return (top, hidden.unsqueeze(0), cell.unsqueeze(0)) if self.expose_hidden else top

    def _weight(self, name: str, channels: int, windows: Windows) -> nn.Parameter:
        return nn.Parameter(torch.zeros(check_size(name, (4 * self.num_output, channels, *windows.kernel_size))))

    def spread(self, weight: Tensor) -> Tensor:
        """A peephole's weight with all axes of (K, H, W)."""
        assert self.peephole_axes is not None
        return weight.reshape(*weight.shape, *[1] * (3 - self.peephole_axes[1]))

    def _check_size_kept(self, shape: Shape, windows: Windows) -> None:
        kept = windows.checked_counts(shape)
        if kept != shape[3:]:
            raise LayerError(
                f"pad, kernel_size and dilation of lstm_conv_param make {_by(kept)} pixels of {_by(shape[3:])}; they "
                "must keep height and width"
            )


def _convolve(maps: Tensor, weight: Tensor, bias: Tensor | None, windows: Windows) -> Tensor:
    return F.conv2d(maps, weight, bias, padding=windows.pad, dilation=windows.dilation)


def _by(size: Sequence[int]) -> str:
    return " x ".join(map(str, size))


def _check_options(param: pb.LayerParameter) -> None:
    """LayerError for options that do nothing in the fork, or that are not computed."""
    for field, _ in param.recurrent_param.ListFields():
        if field.name not in ("expose_hidden", "debug_info"):
            raise LayerError(
                f"recurrent_param.{field.name} does nothing here: remove it; what counts is lstm_conv_param"
            )
    if param.recurrent_param.debug_info:
        _log.warning('Layer "%s": recurrent_param.debug_info is ignored', param.name)
    if param.lstm_debug_param.expose:
        raise LayerError("lstm_debug_param.expose, which gives blobs within the layer, is not supported: remove it")
    for each in param.lstm_conv_param:
        for field, _ in each.ListFields():
            if field.name.endswith(("_h", "_w")):
                instead = {"kernel": "kernel_size"}.get(field.name[:-2], field.name[:-2])
                raise LayerError(f"lstm_conv_param.{field.name} does nothing in the fork: state {instead}")
        if not each.bias_term:
            raise LayerError("lstm_conv_param.bias_term: false does not run in the fork: remove it")
        if each.group != 1:
            raise LayerError("lstm_conv_param.group other than 1 is not supported")
        if each.HasField("axis") and each.axis != 2:
            raise LayerError(f"lstm_conv_param.axis is 2, whatever is stated, and {each.axis} is: remove it")


def _convolutions(
    params: Sequence[pb.LSTMConvolutionParameter],
) -> tuple[pb.LSTMConvolutionParameter, pb.LSTMConvolutionParameter]:
    """The options for x and those for h."""
    if not params:
        raise LayerError(
            "needs lstm_conv_param, as in the layer of agethen and of DAVSOD; forks whose ConvLSTM has other options "
            "compute something else"
        )
    types = {each.type: each for each in params}
    if len(params) == 1 and "all" in types:
        return params[0], params[0]
    if len(params) != 2 or types.keys() != {"input", "hidden"}:
        raise LayerError(
            'needs lstm_conv_param once, of the type "all", or twice, of the types "input" and "hidden", not '
            f"{', '.join(each.type for each in params)}"
        )
    if params[0].num_output != params[1].num_output:
        raise LayerError(
            f"lstm_conv_param.num_output must be the same for both types, not {params[0].num_output} and "
            f"{params[1].num_output}"
        )
    return types["input"], types["hidden"]


def _windows(param: pb.LSTMConvolutionParameter) -> Windows:
    windows = Windows.from_caffe(param, 2)
    if windows.stride != (1, 1):
        raise LayerError(f"lstm_conv_param.stride must be 1, which keeps height and width, not {_by(windows.stride)}")
    return windows


def _maps(what: str, shape: Shape) -> Shape:
    """The shape, or a LayerError if it is none of maps."""
    if len(shape) != 5 or 0 in shape:
        raise LayerError(
            f"{what} must have 5 axes (steps, streams, channels, height, width), none of length 0, not {shape}"
        )
    return shape


def _part(shape: Shape, axes: tuple[int, int]) -> Shape:
    """The lengths of these axes."""
    return shape[slice(*axes)]


def _peephole_axes(debug: pb.LSTMDebugParameter) -> tuple[int, int]:
    """The axes of (K, H, W) that a peephole's weight has, first and one behind the last."""
    first, count = debug.axis_hadamard - 2, debug.num_axes_hadamard
    if first < 0 or count < 1 or first + count > 3:
        raise LayerError(
            f"lstm_debug_param.axis_hadamard {debug.axis_hadamard} and num_axes_hadamard {count} must name axes from 2 "
            "to 4 (channels, height, width)"
        )
    return first, first + count
