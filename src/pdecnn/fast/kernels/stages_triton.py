# mypy: ignore-errors
"""The Triton kernels behind `stages`; imported only where they run.

Features are rows of channels, one for each of the n*h*w pixels. What a product reads at a pixel is
its operand, a row of LENGTH numbers in the order of a row of the stencil: its channels, or with
nine TAPS (channel, tap) of its neighbourhood. A window is what a pixel of the outcome is the mean
of. Operands are bfloat16, all sums float32.
"""

import triton
import triton.language as tl

from pdecnn.fast.kernels.symmetric_shear_triton import (
    _channel_values,
    _narrow,
    _neighbours,
    _shift,
    _store,
    _tile,
    begin,
)


@triton.jit
def _operands(
    source,
    pixels,
    num_pixels,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    TAPS: tl.constexpr,
    LENGTH: tl.constexpr,
    PADDED_LENGTH: tl.constexpr,
    EMULATE: tl.constexpr,
):
    """(BLOCK_P, PADDED_LENGTH), zeros where there is nothing."""
    if TAPS == 1:
        offsets, exists = _tile(pixels, num_pixels, LENGTH, PADDED_LENGTH)
    else:
        CHANNELS: tl.constexpr = LENGTH // TAPS
        place = tl.arange(0, PADDED_LENGTH)
        tap = place % TAPS
        steps = _shift(tap, WIDTH, False) * CHANNELS + place // TAPS
        offsets = (pixels * CHANNELS)[:, None] + steps[None, :]
        inside = _neighbours(pixels, num_pixels, HEIGHT, WIDTH, False)
        exists = ((inside[:, None] >> tap[None, :]) & 1) != 0
        exists = exists & (place < LENGTH)[None, :]
    return _narrow(tl.load(source + offsets, mask=exists, other=0.0), tl.bfloat16, EMULATE)


@triton.jit
def _stencil(
    stencil,
    LENGTH: tl.constexpr,
    PADDED_LENGTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    PADDED: tl.constexpr,
    ADJOINT: tl.constexpr,
    EMULATE: tl.constexpr,
):
    """(PADDED_LENGTH, PADDED), with ADJOINT the other way round."""
    place = tl.arange(0, PADDED_LENGTH)
    column = tl.arange(0, PADDED)
    if ADJOINT:
        offsets = (column * LENGTH)[:, None] + place[None, :]
        exists = (column < CHANNELS)[:, None] & (place < LENGTH)[None, :]
    else:
        offsets = (column * LENGTH)[None, :] + place[:, None]
        exists = (column < CHANNELS)[None, :] & (place < LENGTH)[:, None]
    return _narrow(tl.load(stencil + offsets, mask=exists, other=0.0), tl.bfloat16, EMULATE)


@triton.jit
def _num_own_steps(num_pixels, num_steps, BLOCK_P: tl.constexpr):
    """Blocks of pixels of this program's chunk."""
    return tl.minimum(num_steps, tl.cdiv(num_pixels, BLOCK_P) - tl.program_id(0) * num_steps)


@triton.jit(do_not_specialize=["num_pixels", "num_steps"])
def multiply_kernel(
    source,
    stencil,
    hidden,
    parts,
    num_pixels,
    num_steps,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    TAPS: tl.constexpr,
    LENGTH: tl.constexpr,
    PADDED_LENGTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK_P: tl.constexpr,
    EMULATE: tl.constexpr,
    CHAINED: tl.constexpr = False,
):
    """u = K x, and of a chunk's pixels its mean and the sum of squared deviations from that."""
    begin(CHAINED)
    program = tl.program_id(0)
    columns = tl.arange(0, PADDED)
    right = _stencil(stencil, LENGTH, PADDED_LENGTH, CHANNELS, PADDED, False, EMULATE)
    known = tl.full((), 0.0, tl.float32)
    mean = tl.zeros((PADDED,), dtype=tl.float32)
    squares = tl.zeros((PADDED,), dtype=tl.float32)
    for step in tl.range(0, _num_own_steps(num_pixels, num_steps, BLOCK_P)):
        first = (program * num_steps + step) * BLOCK_P
        pixels = first + tl.arange(0, BLOCK_P)
        left = _operands(
            source, pixels, num_pixels, HEIGHT, WIDTH, TAPS, LENGTH, PADDED_LENGTH, EMULATE
        )
        u = _narrow(tl.dot(left, right, input_precision="ieee"), tl.bfloat16, EMULATE)
        offsets, exists = _tile(pixels, num_pixels, CHANNELS, PADDED)
        tl.store(hidden + offsets, u.to(hidden.dtype.element_ty), mask=exists)
        u = u.to(tl.float32)
        # Two sets of numbers put together (Chan, Golub & LeVeque 1983).
        new = tl.minimum(num_pixels - first, BLOCK_P).to(tl.float32)
        new_mean = tl.sum(u, axis=0) / new
        deviations = tl.where(exists, u - new_mean[None, :], 0.0)
        change = new_mean - mean
        share = new / (known + new)
        mean += change * share
        squares += tl.sum(deviations * deviations, axis=0) + change * change * (known * share)
        known += new
    places = parts + program * (2 * CHANNELS) + columns
    tl.store(places, mean, mask=columns < CHANNELS)
    tl.store(places + CHANNELS, squares, mask=columns < CHANNELS)


@triton.jit(do_not_specialize=["num_pixels", "num_chunks", "chunk_pixels"])
def merge_kernel(
    parts,
    mean,
    variance,
    running_mean,
    running_variance,
    num_batches,
    num_pixels,
    num_chunks,
    chunk_pixels,
    momentum,
    CHANNELS: tl.constexpr,
    BLOCK_C: tl.constexpr,
    PADDED_CHUNKS: tl.constexpr,
    EMULATE: tl.constexpr,
    CHAINED: tl.constexpr = False,
):
    """Mean and variance of all pixels from those of the chunks; running ones follow them."""
    begin(CHAINED)
    columns = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    wanted = columns < CHANNELS
    chunk = tl.arange(0, PADDED_CHUNKS)
    offsets = (chunk * (2 * CHANNELS))[:, None] + columns[None, :]
    exists = (chunk < num_chunks)[:, None] & wanted[None, :]
    means = tl.load(parts + offsets, mask=exists, other=0.0)
    squares = tl.load(parts + CHANNELS + offsets, mask=exists, other=0.0)
    counts = tl.minimum(num_pixels - chunk * chunk_pixels, chunk_pixels)
    counts = tl.where(chunk < num_chunks, counts, 0).to(tl.float32)[:, None]
    total = num_pixels.to(tl.float32)
    center = tl.sum(counts * means, axis=0) / total
    deviations = means - center[None, :]
    spread = tl.sum(squares + counts * deviations * deviations, axis=0)
    tl.store(mean + columns, center, mask=wanted)
    tl.store(variance + columns, spread / total, mask=wanted)
    old = tl.load(running_mean + columns, mask=wanted, other=0.0)
    tl.store(running_mean + columns, momentum * center + (1 - momentum) * old, mask=wanted)
    old = tl.load(running_variance + columns, mask=wanted, other=0.0)
    new = momentum * (spread / (total - 1)) + (1 - momentum) * old
    tl.store(running_variance + columns, new, mask=wanted)
    if tl.program_id(0) == 0:
        tl.store(num_batches, tl.load(num_batches) + 1)


@triton.jit
def _statistics(mean, variance, epsilon, CHANNELS: tl.constexpr, PADDED: tl.constexpr):
    """Mean and inverse deviation of every channel."""
    center = _channel_values(mean, CHANNELS, PADDED)
    return center, tl.rsqrt(_channel_values(variance, CHANNELS, PADDED) + epsilon)


@triton.jit(do_not_specialize=["num_pixels", "num_outputs"])
def activate_kernel(
    hidden,
    source,
    stencil,
    mean,
    variance,
    scale,
    bias,
    outcome,
    num_pixels,
    num_outputs,
    epsilon,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    TAPS: tl.constexpr,
    LENGTH: tl.constexpr,
    PADDED_LENGTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    PADDED: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK_P: tl.constexpr,
    KEPT: tl.constexpr,
    EMULATE: tl.constexpr,
    CHAINED: tl.constexpr = False,
):
    """The mean of relu(s n + b) over each window, n = (u - mean)/deviation, from u if KEPT."""
    begin(CHAINED)
    ROWS: tl.constexpr = HEIGHT // WINDOW
    COLUMNS: tl.constexpr = WIDTH // WINDOW
    outputs = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    corner = (outputs // (ROWS * COLUMNS)) * (HEIGHT * WIDTH) + outputs % COLUMNS * WINDOW
    corner += outputs // COLUMNS % ROWS * (WINDOW * WIDTH)
    center, r = _statistics(mean, variance, epsilon, CHANNELS, PADDED)
    s = _channel_values(scale, CHANNELS, PADDED)
    b = _channel_values(bias, CHANNELS, PADDED)
    if not KEPT:
        right = _stencil(stencil, LENGTH, PADDED_LENGTH, CHANNELS, PADDED, False, EMULATE)
    total = tl.zeros((BLOCK_P, PADDED), dtype=tl.float32)
    UNROLLED: tl.constexpr = WINDOW * WINDOW if KEPT else 1
    for place in tl.range(0, WINDOW * WINDOW, loop_unroll_factor=UNROLLED):
        pixels = corner + (place // WINDOW * WIDTH + place % WINDOW)
        pixels = tl.where(outputs < num_outputs, pixels, num_pixels)
        if KEPT:
            offsets, exists = _tile(pixels, num_pixels, CHANNELS, PADDED)
            u = tl.load(hidden + offsets, mask=exists, other=0.0).to(tl.float32)
        else:
            left = _operands(
                source, pixels, num_pixels, HEIGHT, WIDTH, TAPS, LENGTH, PADDED_LENGTH, EMULATE
            )
            u = tl.dot(left, right, input_precision="ieee")
            u = _narrow(u, tl.bfloat16, EMULATE).to(tl.float32)
        z = (u - center[None, :]) * r[None, :] * s[None, :] + b[None, :]
        total += tl.where(z <= 0, 0.0, z)
    offsets, exists = _tile(outputs, num_outputs, CHANNELS, PADDED)
    _store(outcome + offsets, total * (1.0 / (WINDOW * WINDOW)), exists, EMULATE)


@triton.jit
def _back_to_affine(
    hidden,
    gradient,
    pixels,
    num_pixels,
    center,
    r,
    s,
    b,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    PADDED: tl.constexpr,
    WINDOW: tl.constexpr,
    LEVEL: tl.constexpr,
):
    """n and the gradient of z = s n + b at the pixels; rows that pooling drops have none.

    With LEVEL the gradient of the outcome is the same at all pixels of an image, and given once.
    """
    offsets, exists = _tile(pixels, num_pixels, CHANNELS, PADDED)
    u = tl.load(hidden + offsets, mask=exists, other=0.0).to(tl.float32)
    n = (u - center[None, :]) * r[None, :]
    if WINDOW > 1 or LEVEL:
        ROWS: tl.constexpr = HEIGHT // WINDOW
        COLUMNS: tl.constexpr = WIDTH // WINDOW
        x = pixels % WIDTH // WINDOW
        y = pixels // WIDTH % HEIGHT // WINDOW
        rows = pixels // (HEIGHT * WIDTH)
        if not LEVEL:
            rows = (rows * ROWS + y) * COLUMNS + x
        offsets = (rows * CHANNELS)[:, None] + tl.arange(0, PADDED)[None, :]
        if HEIGHT % WINDOW != 0 or WIDTH % WINDOW != 0:
            exists = exists & ((x < COLUMNS) & (y < ROWS))[:, None]
    g = tl.load(gradient + offsets, mask=exists, other=0.0).to(tl.float32)
    gz = tl.where(n * s[None, :] + b[None, :] <= 0, 0.0, g * (1.0 / (WINDOW * WINDOW)))
    return n, gz


@triton.jit(do_not_specialize=["num_pixels", "num_steps"])
def affine_gradient_kernel(
    hidden,
    gradient,
    mean,
    variance,
    scale,
    bias,
    parts,
    num_pixels,
    num_steps,
    epsilon,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    PADDED: tl.constexpr,
    WINDOW: tl.constexpr,
    LEVEL: tl.constexpr,
    BLOCK_P: tl.constexpr,
    EMULATE: tl.constexpr,
    CHAINED: tl.constexpr = False,
):
    """A chunk's sums of gz n and of gz: parts of the gradients of scale and bias."""
    begin(CHAINED)
    program = tl.program_id(0)
    center, r = _statistics(mean, variance, epsilon, CHANNELS, PADDED)
    s = _channel_values(scale, CHANNELS, PADDED)
    b = _channel_values(bias, CHANNELS, PADDED)
    scale_sums = tl.zeros((BLOCK_P, PADDED), dtype=tl.float32)
    bias_sums = tl.zeros((BLOCK_P, PADDED), dtype=tl.float32)
    for step in tl.range(0, _num_own_steps(num_pixels, num_steps, BLOCK_P)):
        pixels = (program * num_steps + step) * BLOCK_P + tl.arange(0, BLOCK_P)
        n, gz = _back_to_affine(
            hidden, gradient, pixels, num_pixels, center, r, s, b, HEIGHT, WIDTH, CHANNELS,
            PADDED, WINDOW, LEVEL,
        )  # fmt: skip
        scale_sums += gz * n
        bias_sums += gz
    columns = tl.arange(0, PADDED)
    places = parts + program * (2 * CHANNELS) + columns
    tl.store(places, tl.sum(scale_sums, axis=0), mask=columns < CHANNELS)
    tl.store(places + CHANNELS, tl.sum(bias_sums, axis=0), mask=columns < CHANNELS)


@triton.jit(do_not_specialize=["num_pixels", "num_steps"])
def stencil_gradient_kernel(
    hidden,
    gradient,
    source,
    stencil,
    mean,
    variance,
    scale,
    bias,
    affine_gradient,
    source_gradient,
    parts,
    num_pixels,
    num_steps,
    epsilon,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    TAPS: tl.constexpr,
    LENGTH: tl.constexpr,
    PADDED_LENGTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    PADDED: tl.constexpr,
    WINDOW: tl.constexpr,
    LEVEL: tl.constexpr,
    BLOCK_P: tl.constexpr,
    OF_BATCH: tl.constexpr,
    BACK: tl.constexpr,
    EMULATE: tl.constexpr,
    CHAINED: tl.constexpr = False,
):
    """A chunk's part of sum_p gu[p, o] x[p, k], and with BACK the gradient of x, K^T gu.

    gu = s/deviation gz and, where mean and deviation are u's own with OF_BATCH, less what gz
    changes through these: the means over all pixels of gz and, times n, of gz n.
    """
    begin(CHAINED)
    program = tl.program_id(0)
    center, r = _statistics(mean, variance, epsilon, CHANNELS, PADDED)
    s = _channel_values(scale, CHANNELS, PADDED)
    b = _channel_values(bias, CHANNELS, PADDED)
    if OF_BATCH:
        share = 1.0 / num_pixels.to(tl.float32)
        along = share * _channel_values(affine_gradient, CHANNELS, PADDED)
        level = share * _channel_values(affine_gradient + CHANNELS, CHANNELS, PADDED)
    if BACK:
        right = _stencil(stencil, LENGTH, PADDED_LENGTH, CHANNELS, PADDED, True, EMULATE)
    total = tl.zeros((PADDED, PADDED_LENGTH), dtype=tl.float32)
    for step in tl.range(0, _num_own_steps(num_pixels, num_steps, BLOCK_P)):
        pixels = (program * num_steps + step) * BLOCK_P + tl.arange(0, BLOCK_P)
        operands = _operands(
            source, pixels, num_pixels, HEIGHT, WIDTH, TAPS, LENGTH, PADDED_LENGTH, EMULATE
        )
        n, gz = _back_to_affine(
            hidden, gradient, pixels, num_pixels, center, r, s, b, HEIGHT, WIDTH, CHANNELS,
            PADDED, WINDOW, LEVEL,
        )  # fmt: skip
        if OF_BATCH:
            gz = gz - level[None, :] - n * along[None, :]
        gu = _narrow((s * r)[None, :] * gz, tl.bfloat16, EMULATE)
        total = tl.dot(tl.trans(gu), operands, total, input_precision="ieee")
        if BACK:
            gx = tl.dot(gu, right, input_precision="ieee")
            offsets, exists = _tile(pixels, num_pixels, LENGTH, PADDED_LENGTH)
            _store(source_gradient + offsets, gx, exists, EMULATE)
    column = tl.arange(0, PADDED)
    place = tl.arange(0, PADDED_LENGTH)
    places = parts + program * (CHANNELS * LENGTH)
    places = places + (column * LENGTH)[:, None] + place[None, :]
    tl.store(places, total, mask=(column < CHANNELS)[:, None] & (place < LENGTH)[None, :])
