"""The Triton kernels behind `alignment_triton`, whose functions say what they compute.

A blob is read as the matrix that lies in memory. Contiguous, a row is one sample's channel and the columns are its
positions (PLANES); channels-last, or with two axes, a row is one of a sample's positions and the columns are the
channels. The source's rows come first: `boundary` of `rows`. Rows are counted in int64, for blobs of more than 2^31
elements. Sums are made in float32, in an order that depends on the shape alone.

Arguments whose being known is of no use, whether as 1 or as a multiple of 16, are not specialized, so that the layers
of a net share what is compiled.
"""

# ruff: noqa: N803  (Triton's constants are written in capitals)

import triton
import triton.language as tl


@triton.jit
def _all(tile, PLANES: tl.constexpr):
    """The sum of a tile per channel, with both axes kept: (1, 1), or (1, columns)."""
    return tl.sum(tl.sum(tile, 1, keep_dims=True), 0, keep_dims=True) if PLANES else tl.sum(tile, 0, keep_dims=True)


@triton.jit
def _reduced_tile(t, first, end, block, channels, columns, PLANES: tl.constexpr, R: tl.constexpr, K: tl.constexpr):
    """Tile number t of a block of channels and the rows of a domain: offsets, mask, how many values per channel."""
    if PLANES:  # the block is a channel, whose rows are `channels` apart: here, rows are samples
        across = tl.cdiv(columns, K)
        row, column = first + (t // across) * R, (t % across) * K
        start, stride = block.to(tl.int64) * columns, channels.to(tl.int64) * columns
        count = tl.minimum(end - row, R) * tl.minimum(columns - column, K)
    else:
        row, column = first + t * R, block * K
        start, stride = 0, columns
        count = tl.minimum(end - row, R)
    rows = row + tl.arange(0, R)[:, None]
    cols = column + tl.arange(0, K)[None, :]
    return start + rows * stride + cols, (rows < end) & (cols < columns), count


@triton.jit
def _reduced_place(boundary, rows, channels, columns, PLANES: tl.constexpr, R: tl.constexpr, K: tl.constexpr):
    """This program's part, domain and block of channels; its domain's first row and end, and number of tiles."""
    blocks = channels if PLANES else tl.cdiv(columns, K)
    program = tl.program_id(0)
    domain = program // blocks % 2
    edge = boundary.to(tl.int64)
    first, end = tl.where(domain == 0, 0, edge), tl.where(domain == 0, edge, rows.to(tl.int64))
    tiles = tl.cdiv(end - first, R)
    if PLANES:
        tiles *= tl.cdiv(columns, K)
    return (program // blocks // 2).to(tl.int64), domain, program % blocks, first, end, tiles


@triton.jit
def _reduced_channels(block, PLANES: tl.constexpr, K: tl.constexpr):
    """The channels of a block, of the shape of `_all`."""
    return block + tl.zeros((1, 1), tl.int32) if PLANES else block * K + tl.arange(0, K)[None, :]


@triton.jit(do_not_specialize=["boundary", "rows", "channels", "parts"])
def moments(
    x, out, counts, boundary, rows, channels, columns, parts,
    PLANES: tl.constexpr, R: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """out (parts, domain, mean and variance, channels), counts (parts, domain): of every `parts`-th tile of a domain.

    A program takes its sums around the mean of the first of its T tiles. However far apart their means are, the sum of
    squares is then at most T times the one around its own mean, and little is lost in going over to that.
    """
    part, domain, block, first, end, tiles = _reduced_place(boundary, rows, channels, columns, PLANES, R, K)
    offsets, mask, count = _reduced_tile(part, first, end, block, channels, columns, PLANES, R, K)
    values = tl.load(x + offsets, mask & (part < tiles), other=0.0).to(tl.float32)
    centre = _all(values, PLANES) / tl.maximum(count, 1).to(tl.float32)
    plain = tl.zeros((R, K), tl.float32)
    squares = tl.zeros((R, K), tl.float32)
    total = tl.zeros((), tl.int64)
    for t in range(part, tiles, parts):
        offsets, mask, count = _reduced_tile(t, first, end, block, channels, columns, PLANES, R, K)
        values = tl.load(x + offsets, mask, other=0.0).to(tl.float32)
        values = tl.where(mask, values - centre, 0.0)
        plain += values
        squares += values * values
        total += count
    by = 1 / tl.maximum(total, 1).to(tl.float32)
    mean = _all(plain, PLANES) * by
    channel = _reduced_channels(block, PLANES, K)
    out += (part * 2 + domain) * 2 * channels + channel
    variance = _all(squares, PLANES) * by - mean * mean
    tl.store(out, centre + mean, channel < channels)
    tl.store(out + channels, tl.where(variance < 0, 0.0, variance), channel < channels)  # NaN stays
    tl.store(counts + part * 2 + domain, total.to(tl.float32))


@triton.jit(do_not_specialize=["channels", "parts"])
def merge(parts_, counts, out, channels, parts, P: tl.constexpr, C: tl.constexpr):
    """out (domain, mean and variance, channels) of the parts that `moments` gives (Chan, Golub and LeVeque)."""
    domain = tl.program_id(0) % 2
    channel = tl.program_id(0) // 2 * C + tl.arange(0, C)[None, :]
    part = tl.arange(0, P)[:, None]
    mask = (part < parts) & (channel < channels)
    n = tl.load(counts + part * 2 + domain, part < parts, other=0.0)
    at = (part * 2 + domain).to(tl.int64) * 2 * channels + channel
    means = tl.load(parts_ + at, mask, other=0.0)
    variances = tl.load(parts_ + at + channels, mask, other=0.0)
    weights = n / tl.maximum(tl.sum(n, 0, keep_dims=True), 1.0)
    # around the mean of the first part, which has rows if any has, large ones are added as exactly as small ones
    centre = tl.load(parts_ + domain * 2 * channels + channel, channel < channels, other=0.0)
    mean = centre + tl.sum(weights * (means - centre), 0, keep_dims=True)
    apart = means - mean
    variance = tl.sum(weights * (variances + apart * apart), 0, keep_dims=True)
    out += domain * 2 * channels + channel
    tl.store(out, mean, channel < channels)
    tl.store(out + channels, variance, channel < channels)


@triton.jit(do_not_specialize=["channels", "eps"])
def mix(moments_, alpha, out, alpha_copy, channels, eps, C: tl.constexpr):
    """out (8, channels): mean, variance and 1 / deviation of both predictors, gaps of means and of variances."""
    channel = tl.program_id(0) * C + tl.arange(0, C)
    mask = channel < channels
    a = tl.load(alpha).to(tl.float32)
    if tl.program_id(0) == 0:
        tl.store(alpha_copy, a)
    source_mean = tl.load(moments_ + channel, mask)
    source_variance = tl.load(moments_ + channels + channel, mask)
    target_mean = tl.load(moments_ + 2 * channels + channel, mask)
    target_variance = tl.load(moments_ + 3 * channels + channel, mask)
    gap = source_mean - target_mean
    gap_of_variances = source_variance - target_variance
    between = a * (1 - a) * gap * gap
    variance_of_source = source_variance - (1 - a) * gap_of_variances + between
    variance_of_target = target_variance + (1 - a) * gap_of_variances + between
    out += channel
    tl.store(out, source_mean - (1 - a) * gap, mask)
    tl.store(out + channels, target_mean + (1 - a) * gap, mask)
    tl.store(out + 2 * channels, variance_of_source, mask)
    tl.store(out + 3 * channels, variance_of_target, mask)
    tl.store(out + 4 * channels, 1 / tl.sqrt_rn(variance_of_source + eps), mask)
    tl.store(out + 5 * channels, 1 / tl.sqrt_rn(variance_of_target + eps), mask)
    tl.store(out + 6 * channels, gap, mask)
    tl.store(out + 7 * channels, gap_of_variances, mask)


@triton.jit
def _mapped_tile(boundary, rows, channels, columns, PLANES: tl.constexpr, R: tl.constexpr, K: tl.constexpr):
    """This program's tile, of one domain's rows: offsets, mask, and its channels with what is before the domain's."""
    across = tl.cdiv(columns, K)
    tile = (tl.program_id(0) // across).to(tl.int64)
    edge = boundary.to(tl.int64)
    in_source = tl.cdiv(edge, R)
    target = tile >= in_source
    row = tl.where(target, edge + (tile - in_source) * R, tile * R)
    column = tl.program_id(0) % across * K
    within = row + tl.arange(0, R)[:, None]
    cols = column + tl.arange(0, K)[None, :]
    mask = (within < tl.where(target, rows.to(tl.int64), edge)) & (cols < columns)
    if PLANES:
        channel = ((row % channels).to(tl.int32) + tl.arange(0, R)) % channels
        before = target.to(tl.int32) * channels
    else:
        channel = column + tl.arange(0, K)
        before = target.to(tl.int32) * columns  # as many, and known to be a multiple of 16 if it is
    return within * columns + cols, mask, channel, before


@triton.jit
def _spread(row, channel, columns, PLANES: tl.constexpr):
    """Values of a tile's channels, to be combined with it."""
    if PLANES:
        values = tl.load(row + channel).to(tl.float32)[:, None]
    else:
        values = tl.load(row + channel, channel < columns).to(tl.float32)[None, :]
    return values


@triton.jit(do_not_specialize=["boundary", "rows", "channels"])
def normalize(
    x, y, mean, inv_std, scale, bias, boundary, rows, channels, columns,
    RELU: tl.constexpr, PLANES: tl.constexpr, R: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    offsets, mask, channel, before = _mapped_tile(boundary, rows, channels, columns, PLANES, R, K)
    values = tl.load(x + offsets, mask).to(tl.float32)
    slope = _spread(inv_std + before, channel, columns, PLANES)
    if scale is not None:
        slope *= _spread(scale, channel, columns, PLANES)
    values = (values - _spread(mean + before, channel, columns, PLANES)) * slope
    if bias is not None:
        values += _spread(bias, channel, columns, PLANES)
    if RELU:
        values = tl.where(values < 0, 0.0, values)
    tl.store(y + offsets, values.to(y.dtype.element_ty), mask)


@triton.jit(do_not_specialize=["boundary", "rows", "channels", "parts"])
def grad_sums(
    grad, saved, positive, shift, factor, out, boundary, rows, channels, columns, parts,
    PLANES: tl.constexpr, R: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """out (parts, domain, 2, channels)."""
    part, domain, block, first, end, tiles = _reduced_place(boundary, rows, channels, columns, PLANES, R, K)
    channel = _reduced_channels(block, PLANES, K)
    valid = channel < channels
    if shift is not None:
        centre = tl.load(shift + domain * channels + channel, valid, other=0.0)
    plain = tl.zeros((R, K), tl.float32)
    products = tl.zeros((R, K), tl.float32)
    for t in range(part, tiles, parts):
        offsets, mask, _ = _reduced_tile(t, first, end, block, channels, columns, PLANES, R, K)
        g = tl.load(grad + offsets, mask, other=0.0).to(tl.float32)
        values = tl.load(saved + offsets, mask, other=0.0).to(tl.float32)
        if positive is not None:
            g = tl.where(tl.load(positive + offsets, mask, other=0.0).to(tl.float32) <= 0, 0.0, g)
        if shift is not None:
            values -= centre
        plain += g
        products += g * values
    product = _all(products, PLANES)
    if factor is not None:
        product *= tl.load(factor + domain * channels + channel, valid, other=0.0)
    out += (part * 2 + domain) * 2 * channels + channel
    tl.store(out, _all(plain, PLANES), valid)
    tl.store(out + channels, product, valid)


@triton.jit
def _by_moments(sums, source_slope, source_inv_std, target_slope, target_inv_std, channels, channel, mask):
    """The derivatives by mean and variance, times -1 and -2, of the source's predictor and of the target's."""
    return (
        tl.load(sums + channel, mask, other=0.0) * source_slope,
        tl.load(sums + channels + channel, mask, other=0.0) * source_slope * source_inv_std,
        tl.load(sums + 2 * channels + channel, mask, other=0.0) * target_slope,
        tl.load(sums + 3 * channels + channel, mask, other=0.0) * target_slope * target_inv_std,
    )


@triton.jit(do_not_specialize=["by_source", "by_target", "channels"])
def coefficients(
    sums, whole, gaps, inv_std, scale, alpha, grad_alpha, out, by_source, by_target, channels,
    SHIFTED: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """One program: grad_alpha (1,); out (8, channels): both domains' slope, constant and factor, grads of scale, bias.

    by_source, by_target: -1 / (the domain's values per channel).
    """
    a = tl.load(alpha)
    terms = tl.zeros((C,), tl.float32)
    for start in range(0, channels, C):
        channel = start + tl.arange(0, C)
        mask = channel < channels
        source_inv_std = tl.load(inv_std + channel, mask, other=1.0)
        target_inv_std = tl.load(inv_std + channels + channel, mask, other=1.0)
        source_slope, target_slope = source_inv_std, target_inv_std
        if scale is not None:
            factors = tl.load(scale + channel, mask, other=0.0).to(tl.float32)
            source_slope *= factors
            target_slope *= factors
        gap = tl.load(gaps + channel, mask, other=0.0)
        gap_of_variances = tl.load(gaps + channels + channel, mask, other=0.0)

        source_mean, source_variance, target_mean, target_variance = _by_moments(
            sums, source_slope, source_inv_std, target_slope, target_inv_std, channels, channel, mask
        )
        by_variances = (source_variance - target_variance) * gap_of_variances
        by_variances += (source_variance + target_variance) * gap * gap * (1 - 2 * a)
        terms -= (source_mean - target_mean) * gap + 0.5 * by_variances

        plain = tl.load(sums + channel, mask) + tl.load(sums + 2 * channels + channel, mask)
        product = tl.load(sums + channels + channel, mask) + tl.load(sums + 3 * channels + channel, mask)

        source_mean, source_variance, target_mean, target_variance = _by_moments(
            whole, source_slope, source_inv_std, target_slope, target_inv_std, channels, channel, mask
        )
        between = gap * ((2 * a - 1) * (1 - a))
        source_constant = source_mean + (1 - a) * (target_mean - source_mean) + between * target_variance
        target_constant = target_mean + (1 - a) * (source_mean - target_mean) - between * source_variance
        source_factor = source_variance + (1 - a) * (target_variance - source_variance)
        target_factor = target_variance + (1 - a) * (source_variance - target_variance)
        if not SHIFTED:
            source_factor /= source_inv_std
            target_factor /= target_inv_std

        tl.store(out + channel, source_slope, mask)
        tl.store(out + channels + channel, target_slope, mask)
        tl.store(out + 2 * channels + channel, source_constant * by_source, mask)
        tl.store(out + 3 * channels + channel, target_constant * by_target, mask)
        tl.store(out + 4 * channels + channel, source_factor * by_source, mask)
        tl.store(out + 5 * channels + channel, target_factor * by_target, mask)
        tl.store(out + 6 * channels + channel, product, mask)
        tl.store(out + 7 * channels + channel, plain, mask)
    tl.store(grad_alpha, tl.sum(terms, 0))


@triton.jit(do_not_specialize=["boundary", "rows", "channels"])
def input_grad(
    grad, saved, positive, shift, slope, constant, factor, out, boundary, rows, channels, columns,
    PLANES: tl.constexpr, R: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    offsets, mask, channel, before = _mapped_tile(boundary, rows, channels, columns, PLANES, R, K)
    g = tl.load(grad + offsets, mask).to(tl.float32)
    values = tl.load(saved + offsets, mask).to(tl.float32)
    if positive is not None:
        g = tl.where(tl.load(positive + offsets, mask).to(tl.float32) <= 0, 0.0, g)
    if shift is not None:
        values -= _spread(shift + before, channel, columns, PLANES)
    result = g * _spread(slope + before, channel, columns, PLANES)
    result += _spread(constant + before, channel, columns, PLANES)
    result += values * _spread(factor + before, channel, columns, PLANES)
    tl.store(out + offsets, result.to(out.dtype.element_ty), mask)
