"""Caffe's spatial layers as plain loops over its formulas: what the tests hold the layers against.

Images are (N, C, H, W); sizes, strides, pads and dilations are (height, width). Taps outside the image add nothing.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

FLT_MAX = float(np.finfo(np.float32).max)


def pool(x, method, kernel, stride, pad):
    """pooling_layer.cpp, a window at a time."""
    size, axes = x.shape[2:], range(x.ndim - 2)
    out = [math.ceil((size[i] + 2 * pad[i] - kernel[i]) / stride[i]) + 1 for i in axes]
    if any(pad):
        out = [n - ((n - 1) * stride[i] >= size[i] + pad[i]) for i, n in enumerate(out)]
    top = np.empty((*x.shape[:2], *out), x.dtype)
    for place in itertools.product(*map(range, out)):
        start = [place[i] * stride[i] - pad[i] for i in axes]
        end = [min(start[i] + kernel[i], size[i] + pad[i]) for i in axes]
        extent = math.prod(end[i] - start[i] for i in axes)
        window = x[:, :, *(slice(max(start[i], 0), min(end[i], size[i])) for i in axes)]
        spatial = tuple(range(2, x.ndim))
        if method == "MAX":
            top[:, :, *place] = window.max(spatial, initial=-FLT_MAX)
        else:
            with np.errstate(invalid="ignore"):
                top[:, :, *place] = window.sum(spatial) / extent
    return top


def max_places(x, kernel, stride, pad, out):
    """The mask of pooling_layer.cpp: where each window's first maximum is, counted along the rows of the image."""
    size = x.shape[2:]
    mask = np.full((*x.shape[:2], *out), -1, x.dtype)
    for n, c, *window in np.ndindex(mask.shape):
        best = -FLT_MAX
        for within in np.ndindex(*kernel):
            at = tuple(w * s - p + i for w, s, p, i in zip(window, stride, pad, within, strict=True))
            if all(0 <= i < length for i, length in zip(at, size, strict=True)) and x[n, c, *at] > best:
                best = x[n, c, *at]
                mask[n, c, *window] = np.ravel_multi_index(at, size)
    return mask


def convolve(x, weight, bias, stride, pad, dilation, group):
    """conv_layer.cpp: each output pixel gathers what its taps see."""
    kernel, size = weight.shape[2:], x.shape[2:]
    out = [(size[i] + 2 * pad[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 for i in range(2)]
    top = np.zeros((len(x), len(weight), *out), x.dtype)
    for (row, column), (i, j) in itertools.product(np.ndindex(*out), np.ndindex(*kernel)):
        h, w = row * stride[0] - pad[0] + i * dilation[0], column * stride[1] - pad[1] + j * dilation[1]
        if 0 <= h < size[0] and 0 <= w < size[1]:
            for ins, outs in groups(x.shape[1], len(weight), group):
                top[:, outs, row, column] += x[:, ins, h, w] @ weight[outs, :, i, j].T
    return top + bias[:, None, None]


def deconvolve(x, weight, bias, stride, pad, dilation, group):
    """deconv_layer.cpp: each input pixel scatters through its taps."""
    kernel, size = weight.shape[2:], x.shape[2:]
    out = [stride[i] * (size[i] - 1) + dilation[i] * (kernel[i] - 1) + 1 - 2 * pad[i] for i in range(2)]
    top = np.zeros((len(x), len(bias), *out), x.dtype)
    for (row, column), (i, j) in itertools.product(np.ndindex(*size), np.ndindex(*kernel)):
        h, w = row * stride[0] - pad[0] + i * dilation[0], column * stride[1] - pad[1] + j * dilation[1]
        if 0 <= h < out[0] and 0 <= w < out[1]:
            for ins, outs in groups(x.shape[1], len(bias), group):
                top[:, outs, h, w] += x[:, ins, row, column] @ weight[ins, :, i, j]
    return top + bias[:, None, None]


def groups(in_channels, out_channels, group):
    """(input channels, output channels) of each group, as slices."""
    for g in range(group):
        yield tuple(slice(g * n // group, (g + 1) * n // group) for n in (in_channels, out_channels))


def lrn_across(x, size, alpha, beta, k):
    """lrn_layer.cpp over neighbouring channels."""
    top = np.empty_like(x)
    for c in range(x.shape[1]):
        window = x[:, max(c - size // 2, 0) : c + size // 2 + 1]
        top[:, c] = x[:, c] / (k + alpha / size * (window**2).sum(1)) ** beta
    return top


def lrn_within(x, size, alpha, beta):
    """lrn_layer.cpp over a square of pixels, whose part outside the image counts as zeros."""
    top = np.empty_like(x)
    for row, column in np.ndindex(*x.shape[2:]):
        window = x[:, :, max(row - size // 2, 0) : row + size // 2 + 1, max(column - size // 2, 0) :][
            ..., : min(column, size // 2) + size // 2 + 1
        ]
        mean = (window**2).sum((2, 3)) / size**2
        top[:, :, row, column] = x[:, :, row, column] / (1 + alpha * mean) ** beta
    return top


def crop(x, shape, axis, offset):
    """crop_layer.cpp, an element at a time."""
    top = np.empty((*x.shape[:axis], *shape[axis:]), x.dtype)
    starts = [0] * axis + (list(offset) * (x.ndim - axis) if len(offset) == 1 else list(offset))
    for place in np.ndindex(*top.shape):
        top[place] = x[tuple(i + start for i, start in zip(place, starts, strict=True))]
    return top


def same_size(bottoms):
    """resize.py of MEnet, a value at a time: its top."""
    height, width = bottoms[0].shape[2:]
    parts = []
    for x in bottoms:
        part = np.zeros((*x.shape[:2], height, width))
        down, across = height // x.shape[2], width // x.shape[3]
        for i, j in np.ndindex(x.shape[2:]):
            for row in range(i * down, (i + 1) * down):
                for column in range(j * across, (j + 1) * across):
                    part[:, :, row, column] = x[:, :, i, j]
        parts.append(part)
    return np.concatenate(parts, axis=1)


def conv_lstm(x, cont, blobs, hidden, cell, pads, dilations, static=None):
    """conv_lstm_layer.cpp and conv_lstm_unit_layer.cpp of DAVSOD, a step, a stream and a pixel at a time.

    x is (T, N, C, H, W); `hidden` and `cell`, before the first step, (N, K, H, W); pads and dilations are those of x's
    convolution and of the state's. `blobs` holds hidden and bias, and x, static and three peepholes where the layer has
    them; the cell is multiplied by the peepholes as numpy broadcasts them. Returns all h, and the last h and c.
    """
    steps, streams = cont.shape
    top = np.empty((steps, *hidden.shape))
    hidden, cell = hidden.astype(float), cell.astype(float)

    def convolved(maps, name, place):
        weight = blobs[name].astype(float)
        pad, dilation = ((number[place],) * 2 for number in (pads, dilations))
        return convolve(maps[None].astype(float), weight, np.zeros(len(weight)), (1, 1), pad, dilation, 1)[0]

    for t, n in np.ndindex(steps, streams):
        sums = convolved(cont[t, n] * hidden[n], "hidden", 1) + blobs["bias"][:, None, None]
        if "x" in blobs:
            sums += convolved(x[t, n], "x", 0)
        if "static" in blobs:
            sums += convolved(static[n], "static", 0)
        before, channels = cell[n].copy(), len(cell[n])
        for k, row, column in np.ndindex(before.shape):
            i, f, o, g = (sums[gate * channels + k, row, column] for gate in range(4))
            if "peepholes" in blobs:
                c = before[k, row, column]
                i, f, o = (
                    gate + np.broadcast_to(weight, before.shape)[k, row, column] * c
                    for gate, weight in zip((i, f, o), blobs["peepholes"], strict=True)
                )
            forget = 0 if cont[t, n] == 0 else cont[t, n] * sigmoid(f)
            cell[n, k, row, column] = forget * before[k, row, column] + sigmoid(i) * math.tanh(g)
            top[t, n, k, row, column] = sigmoid(o) * math.tanh(cell[n, k, row, column])
        hidden[n] = top[t, n]
    return top, hidden, cell


def sigmoid(x):
    return 1 / (1 + math.exp(-x))
