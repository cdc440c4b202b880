"""Layers of FlowNet 2.0 as plain loops after its source: what the tests hold the layers against.

Maps are (N, C, H, W), float32. Where the source adds floats in some order, the loops use float64.
"""

from __future__ import annotations

import math

import numpy as np

F = np.float32


def correlation(first, second, *, pad, kernel, reach, stride_1=1, stride_2=1, subtract=False):
    """correlation_layer.cu: maps rearranged to (N, H, W, C) within a border of zeros, then a window at a time."""
    first, second = (
        np.pad(np.moveaxis(x, 1, 3).astype(float), [(0, 0), *[(pad, pad)] * 2, (0, 0)]) for x in (first, second)
    )
    count, height, width, channels = first.shape
    radius = (kernel - 1) // 2
    top_height, top_width = (math.ceil((n - 2 * (reach + radius)) / stride_1) for n in (height, width))
    grid_radius = reach // stride_2
    grid_width = 2 * grid_radius + 1
    top = np.zeros((count, grid_width**2, top_height, top_width))
    for n, c, y, x in np.ndindex(*top.shape):
        down, right = (c // grid_width - grid_radius) * stride_2, (c % grid_width - grid_radius) * stride_2
        y1, x1 = y * stride_1 + reach, x * stride_1 + reach
        for j, i in np.ndindex(kernel, kernel):
            ours, theirs = first[n, y1 + j, x1 + i], second[n, y1 + down + j, x1 + right + i]
            top[n, c, y, x] += np.abs(ours - theirs).sum() if subtract else ours @ theirs
    return top / (kernel**2 * channels)


def correlation_1d(first, second, *, pad, kernel, reach, stride_1=1, stride_2=1, direction=0, subtract=False):
    """correlation_layer1d.cu, which addresses memory as one long row."""
    first, second = (
        np.pad(np.moveaxis(x, 1, 3).astype(float), [(0, 0), (0, 0), (pad, pad), (0, 0)]) for x in (first, second)
    )
    count, height, width, channels = first.shape
    radius = (kernel - 1) // 2
    top_width = math.ceil((width - 2 * (reach + radius)) / stride_1)
    top_height = math.ceil((height - 2 * radius) / stride_1)
    grid_radius = reach // stride_2
    grid_width = grid_radius + 1 if direction else 2 * grid_radius + 1
    shift = {-1: -grid_width, 0: -grid_radius, 1: 0}[direction]
    ours, theirs = first.reshape(-1, channels), second.reshape(-1, channels)
    top = np.zeros((count, grid_width, top_height, top_width))
    for n, c, y, x in np.ndindex(*top.shape):
        for j, i in np.ndindex(kernel, kernel):
            place = (n * height + y * stride_1 + j) * width + x * stride_1 + reach + i
            partner = place + (c + shift) * stride_2
            other = theirs[partner] if partner >= 0 else np.zeros(channels)  # memory before the map, of no one's
            top[n, c, y, x] += np.abs(ours[place] - other).sum() if subtract else ours[place] @ other
    return top / (kernel**2 * channels)


def _corners(x, y, flow, n, width, height):
    """Where a pixel's flow points to, and the pixels around that place; None outside."""
    x2, y2 = F(x) + flow[n, 0, y, x], F(y) + flow[n, 1, y, x]
    if not (x2 >= 0 and y2 >= 0 and x2 < width and y2 < height):
        return None
    left, upper = int(x2), int(y2)
    return x2, y2, left, min(left + 1, width - 1), upper, min(upper + 1, height - 1)


def flow_warp(image, flow, fill):
    """Forward_cpu of flow_warp_layer.cpp."""
    count, _, height, width = image.shape
    top = np.full(image.shape, fill, F)
    for n, y, x in np.ndindex(count, height, width):
        found = _corners(x, y, flow, n, width, height)
        if found is not None:
            x2, y2, left, right, upper, lower = found
            alpha, beta = x2 - left, y2 - upper
            top[n, :, y, x] = (
                (1 - alpha) * (1 - beta) * image[n, :, upper, left]
                + alpha * (1 - beta) * image[n, :, upper, right]
                + (1 - alpha) * beta * image[n, :, lower, left]
                + alpha * beta * image[n, :, lower, right]
            )
    return top


def flow_warp_gradients(image, flow, given):
    """Backward_cpu of flow_warp_layer.cpp: the gradients of image and flow."""
    count, _, height, width = image.shape
    to_image, to_flow = np.zeros(image.shape), np.zeros(flow.shape)
    for n, y, x in np.ndindex(count, height, width):
        found = _corners(x, y, flow, n, width, height)
        if found is None:
            continue
        x2, y2, left, right, upper, lower = found
        alpha, beta, top = x2 - left, y2 - upper, given[n, :, y, x]
        to_image[n, :, upper, left] += top * (1 - alpha) * (1 - beta)
        to_image[n, :, upper, right] += top * alpha * (1 - beta)
        to_image[n, :, lower, left] += top * (1 - alpha) * beta
        to_image[n, :, lower, right] += top * alpha * beta
        corners = {(i, j): image[n, :, i, j] for i in (upper, lower) for j in (left, right)}
        gamma = lower - y2
        change = gamma * (corners[upper, right] - corners[upper, left])
        change = change + (1 - gamma) * (corners[lower, right] - corners[lower, left])
        to_flow[n, 0, y, x] = (top * change).sum()
        gamma = right - x2
        change = gamma * (corners[lower, left] - corners[upper, left])
        change = change + (1 - gamma) * (corners[lower, right] - corners[upper, right])
        to_flow[n, 1, y, x] = (top * change).sum()
    return to_image, to_flow


def _cubic(x):
    x = abs(x)
    if x <= 1:
        return x * x * (F(1.5) * x - F(2.5)) + 1
    return x * (x * (F(-0.5) * x + F(2.5)) - 4) + 2 if x < 2 else F(0)


def _triangle(x):
    if -1 <= x < 0:
        return x + 1
    return 1 - x if 0 <= x <= 1 else F(0)


def _round(x):
    """C's round()."""
    return int(math.copysign(math.floor(abs(x) + 0.5), x))


def resample(bottom, size, kind, antialias):
    """InterpolationKernel and NearestNeighborKernel of resample_layer.cu."""
    count, channels, height, width = bottom.shape
    top = np.zeros((count, channels, *size), F)
    fx, fy = F(width) / F(size[1]), F(height) / F(size[0])
    narrowed = antialias and (fx > 1 or fy > 1)
    ax, ay = (F(1) / (factor if narrowed else F(1)) for factor in (fx, fy))
    kernel_width = 4 if kind == "CUBIC" else 2
    rx, ry = (2 if factor < 1 else math.ceil(F(kernel_width) / scale) for factor, scale in ((fx, ax), (fy, ay)))
    weigh = _cubic if kind == "CUBIC" else _triangle
    for j, i in np.ndindex(*size):
        x_in, y_in = F(i) * fx + fy / 2 - F(0.5), F(j) * fy + fx / 2 - F(0.5)
        x_round, y_round = _round(x_in), _round(y_in)
        if kind == "NEAREST":
            top[:, :, j, i] = bottom[:, :, y_round, x_round]
            continue
        total, weights = np.zeros((count, channels)), 0.0
        for y in range(y_round - ry, y_round + ry + 1):
            for x in range(x_round - rx, x_round + rx + 1):
                if 0 <= y < height and 0 <= x < width:
                    weight = ax * weigh(ax * (x_in - F(x))) * ay * weigh(ay * (y_in - F(y)))
                    total += weight * bottom[:, :, y, x]
                    weights += weight
        top[:, :, j, i] = 0 if weights == 0 else total / weights
    return top


def downsample(bottom, size):
    """DownsampleFeatures of downsample_layer.cu."""
    count, channels, height, width = bottom.shape
    top = np.zeros((count, channels, *size), F)
    scales = F(height - 1) / F(size[0] - 1), F(width - 1) / F(size[1] - 1)
    radii = [math.ceil(scale) for scale in scales]
    for n, c, j, i in np.ndindex(*top.shape):
        y, x = F(j) / F(size[0] - 1) * F(height - 1), F(i) / F(size[1] - 1) * F(width - 1)
        value = counted = lost = 0.0
        for down, right in np.ndindex(2 * radii[0] + 1, 2 * radii[1] + 1):
            row, column = _round(y) + down - radii[0], _round(x) + right - radii[1]
            if 0 <= row < height and 0 <= column < width:
                weight = max(0.0, 1 - abs(row - y) / scales[0]) * max(0.0, 1 - abs(column - x) / scales[1])
                sample = bottom[n, c, row, column]
                if np.isnan(sample):
                    lost += weight
                else:
                    value += sample * weight
                    counted += weight
        gone = counted == 0 or lost / counted > 0.5
        top[n, c, j, i] = math.nan if gone else value / counted
    return top


def accum(bottoms, size):
    """UpscaleFeatures of accum_layer.cu for each bottom; pixels beyond the last have a weight of 0."""
    tops = []
    for bottom in bottoms:
        count, channels, height, width = bottom.shape
        padded = np.pad(bottom, [(0, 0), (0, 0), (0, 1), (0, 1)])
        top = np.zeros((count, channels, *size), F)
        for j, i in np.ndindex(*size):
            x, y = F(i) / F(size[1] - 1) * F(width - 1), F(j) / F(size[0] - 1) * F(height - 1)
            left, upper = int(x), int(y)
            right, down = x - left, y - upper
            top[:, :, j, i] = (
                (1 - right) * (1 - down) * padded[:, :, upper, left]
                + right * (1 - down) * padded[:, :, upper, left + 1]
                + (1 - right) * down * padded[:, :, upper + 1, left]
                + right * down * padded[:, :, upper + 1, left + 1]
            )
        tops.append(top)
    return np.concatenate(tops, 1)


def crop(bottom, size):
    """SpatialAugmentation of data_augmentation_layer.cu with the coefficients of no augmentation."""
    count, channels, height, width = bottom.shape
    top = np.zeros((count, channels, *size), F)
    for j, i in np.ndindex(*size):
        x = min(max(F(i) - F(0.5) * F(size[1]) + F(0.5) * F(width), F(0)), F(width) - F(1.05))
        y = min(max(F(j) - F(0.5) * F(size[0]) + F(0.5) * F(height), F(0)), F(height) - F(1.05))
        left, upper = int(x), int(y)
        right, down = x - left, y - upper
        top[:, :, j, i] = (
            (1 - right) * (1 - down) * bottom[:, :, upper, left]
            + right * down * bottom[:, :, upper + 1, left + 1]
            + (1 - right) * down * bottom[:, :, upper + 1, left]
            + right * (1 - down) * bottom[:, :, upper, left + 1]
        )
    return top
