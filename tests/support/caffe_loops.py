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
