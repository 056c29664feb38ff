# mypy: ignore-errors
"""The Triton kernels behind `symmetric_shear`; imported only where they run.

Features are rows of channels, one row for each of the n*h*w pixels. A stencil lies in memory as
(out channel, tap, in channel). A program owns a run of pixels and all channels and computes

    (K x)[p, o]   = sum over (tap, i) of x[p + offset(tap), i] stencil[o, tap, i]
    (K^T y)[p, i] = sum over (tap, o) of y[p - offset(tap), o] stencil[o, tap, i]

as one matrix product with the pair (tap, channel) as its inner index of length 9 CHANNELS.
Operands have the stencil's dtype, sums are float32. Every product is made by `_product` and every
normalisation by `_normalize`, so that computing again gives the same bits.

Volumes (DEPTH > 0) are packed: CHANNELS are those of several pixels in a row, GROUP those of each.
A stencil is (out channel, row of taps, number), as are the numbers it meets in each of 9 rows:
GROUP of the pixel before, CHANNELS, GROUP of the pixel after. That of K^T is given as one of K.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def begin(CHAINED: tl.constexpr):
    """With CHAINED a kernel is launched before the last one has ended: wait for it, let the next.

    That one's programs are there when this one's end, instead of a microsecond later.
    """
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def _narrow(values, dtype: tl.constexpr, EMULATE: tl.constexpr):
    """`values` rounded to dtype; with EMULATE returned as float32.

    Triton's interpreter cuts float32 off where the GPU rounds to the nearest bfloat16, and takes
    the bits of a bfloat16 for a whole number in a product.
    """
    if EMULATE:
        wide = values.to(tl.float32)
        if dtype == tl.bfloat16 and values.dtype != tl.bfloat16:
            bits = wide.to(tl.uint32, bitcast=True)
            bits = bits + (0x7FFF + ((bits >> 16) & 1))
            wide = ((bits >> 16) << 16).to(tl.float32, bitcast=True)
        return wide
    return values.to(dtype)


@triton.jit
def _store(pointers, values, mask, EMULATE: tl.constexpr):
    dtype: tl.constexpr = pointers.dtype.element_ty
    tl.store(pointers, _narrow(values, dtype, EMULATE).to(dtype), mask=mask)


@triton.jit
def _neighbours(
    pixels, num_pixels, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, ADJOINT: tl.constexpr
):
    """For each pixel a word whose bit t says whether its neighbour at tap t is in the image."""
    x = pixels % WIDTH
    y = (pixels // WIDTH) % HEIGHT
    left = (x > 0).to(tl.int32)
    right = (x < WIDTH - 1).to(tl.int32)
    above = (y > 0).to(tl.int32)
    below = (y < HEIGHT - 1).to(tl.int32)
    if ADJOINT:
        in_row = right + 2 + 4 * left
        bits = in_row * (below + 8 + 64 * above)
    else:
        in_row = left + 2 + 4 * right
        bits = in_row * (above + 8 + 64 * below)
    return tl.where(pixels < num_pixels, bits, 0)


@triton.jit
def _volume_neighbours(
    pixels, num_pixels, DEPTH: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr
):
    """The same of a volume, with 27 taps."""
    z = (pixels // (WIDTH * HEIGHT)) % DEPTH
    before = (z > 0).to(tl.int32)
    behind = (z < DEPTH - 1).to(tl.int32)
    in_plane = _neighbours(pixels, num_pixels, HEIGHT, WIDTH, False)
    return in_plane * (before + 512 + 262144 * behind)


@triton.jit
def _shift(tap, WIDTH: tl.constexpr, ADJOINT: tl.constexpr):
    """How many pixels further the neighbour at a tap lies."""
    shift = (tap // 3 - 1) * WIDTH + tap % 3 - 1
    if ADJOINT:
        shift = -shift
    return shift


@triton.jit
def _places(
    numbers,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    GROUP: tl.constexpr,
):
    """How much further the numbers that the stencil of a volume meets lie, and at which taps."""
    IN_ROW: tl.constexpr = CHANNELS + 2 * GROUP
    row = numbers // IN_ROW
    channel = numbers % IN_ROW - GROUP
    shift = ((row // 3 - 1) * HEIGHT + row % 3 - 1) * WIDTH
    tap = 3 * row + 1 - (channel < 0).to(tl.int32) + (channel >= CHANNELS).to(tl.int32)
    # What lies beyond the last one is never inside: a word has no more bits.
    return shift * CHANNELS + channel, tl.minimum(tap, 27)


@triton.jit
def _volume_product(
    features,
    stencil,
    pixels,
    num_pixels,
    DEPTH: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EMULATE: tl.constexpr,
):
    """K features at the given pixels: (BLOCK_P, PADDED) float32."""
    LENGTH: tl.constexpr = 9 * (CHANNELS + 2 * GROUP)
    dtype: tl.constexpr = stencil.dtype.element_ty
    inside = _volume_neighbours(pixels, num_pixels, DEPTH, HEIGHT, WIDTH)
    rows = features + (pixels * CHANNELS)[:, None]
    columns = tl.arange(0, PADDED)
    total = tl.zeros((BLOCK_P, PADDED), dtype=tl.float32)
    for start in tl.range(0, LENGTH, BLOCK_K):
        numbers = start + tl.arange(0, BLOCK_K)
        place, tap = _places(numbers, HEIGHT, WIDTH, CHANNELS, GROUP)
        here = ((inside[:, None] >> tap[None, :]) & 1) != 0
        left = tl.load(rows + place[None, :], mask=here, other=0.0)
        known = (numbers < LENGTH)[:, None] & (columns < CHANNELS)[None, :]
        entries = stencil + numbers[:, None] + (columns * LENGTH)[None, :]
        right = tl.load(entries, mask=known, other=0.0)
        left = _narrow(left, dtype, EMULATE)
        right = _narrow(right, dtype, EMULATE)
        total = tl.dot(left, right, total, input_precision="ieee")
    return total


@triton.jit
def _image_product(
    features,
    stencil,
    pixels,
    num_pixels,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ADJOINT: tl.constexpr,
    EMULATE: tl.constexpr,
):
    """K features, or K^T features, at the given pixels: (BLOCK_P, PADDED) float32."""
    LENGTH: tl.constexpr = 9 * CHANNELS
    dtype: tl.constexpr = stencil.dtype.element_ty
    inside = _neighbours(pixels, num_pixels, HEIGHT, WIDTH, ADJOINT)
    rows = features + (pixels * CHANNELS)[:, None]
    columns = tl.arange(0, PADDED)
    total = tl.zeros((BLOCK_P, PADDED), dtype=tl.float32)
    CHUNKS: tl.constexpr = (CHANNELS + BLOCK_K - 1) // BLOCK_K
    for step in tl.range(0, 9 * CHUNKS):  # a step stays within one tap
        tap = step // CHUNKS
        channel = (step % CHUNKS) * BLOCK_K + tl.arange(0, BLOCK_K)
        here = (((inside >> tap) & 1) != 0)[:, None]
        if CHANNELS % BLOCK_K != 0:
            here = here & (channel < CHANNELS)[None, :]
        shift = _shift(tap, WIDTH, ADJOINT) * CHANNELS
        left = tl.load(rows + (shift + channel)[None, :], mask=here, other=0.0)
        if ADJOINT:
            entries = stencil + (channel * LENGTH)[:, None] + (tap * CHANNELS + columns)[None, :]
        else:
            entries = stencil + (tap * CHANNELS + channel)[:, None] + (columns * LENGTH)[None, :]
        if CHANNELS == PADDED and CHANNELS % BLOCK_K == 0:
            right = tl.load(entries)
        else:
            known = (channel < CHANNELS)[:, None] & (columns < CHANNELS)[None, :]
            right = tl.load(entries, mask=known, other=0.0)
        left = _narrow(left, dtype, EMULATE)
        right = _narrow(right, dtype, EMULATE)
        total = tl.dot(left, right, total, input_precision="ieee")
    return total


@triton.jit
def _wide_product(
    features,
    stencil,
    pixels,
    num_pixels,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ADJOINT: tl.constexpr,
    EMULATE: tl.constexpr,
):
    """The same with pairs (tap, channel) of several taps to a step."""
    LENGTH: tl.constexpr = 9 * CHANNELS
    dtype: tl.constexpr = stencil.dtype.element_ty
    inside = _neighbours(pixels, num_pixels, HEIGHT, WIDTH, ADJOINT)
    rows = features + (pixels * CHANNELS)[:, None]
    columns = tl.arange(0, PADDED)
    total = tl.zeros((BLOCK_P, PADDED), dtype=tl.float32)
    for start in tl.range(0, LENGTH, BLOCK_K):
        pair = start + tl.arange(0, BLOCK_K)
        tap = pair // CHANNELS
        channel = pair % CHANNELS
        here = ((inside[:, None] >> tap[None, :]) & 1) != 0  # no tap beyond the last one
        place = _shift(tap, WIDTH, ADJOINT) * CHANNELS + channel
        left = tl.load(rows + place[None, :], mask=here, other=0.0)
        if ADJOINT:
            entries = (channel * LENGTH + tap * CHANNELS)[:, None] + columns[None, :]
        else:
            entries = pair[:, None] + (columns * LENGTH)[None, :]
        known = (pair < LENGTH)[:, None] & (columns < CHANNELS)[None, :]
        right = tl.load(stencil + entries, mask=known, other=0.0)
        left = _narrow(left, dtype, EMULATE)
        right = _narrow(right, dtype, EMULATE)
        total = tl.dot(left, right, total, input_precision="ieee")
    return total


@triton.jit
def _product(
    features,
    stencil,
    pixels,
    num_pixels,
    DEPTH: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ADJOINT: tl.constexpr,
    EMULATE: tl.constexpr,
):
    """K features, or K^T features, at the given pixels: (BLOCK_P, PADDED) float32."""
    if DEPTH > 0:
        total = _volume_product(
            features, stencil, pixels, num_pixels, DEPTH, HEIGHT, WIDTH, CHANNELS, GROUP, PADDED,
            BLOCK_P, BLOCK_K, EMULATE,
        )  # fmt: skip
    elif BLOCK_K > PADDED:
        total = _wide_product(
            features, stencil, pixels, num_pixels, HEIGHT, WIDTH, CHANNELS, PADDED, BLOCK_P,
            BLOCK_K, ADJOINT, EMULATE,
        )  # fmt: skip
    else:
        total = _image_product(
            features, stencil, pixels, num_pixels, HEIGHT, WIDTH, CHANNELS, PADDED, BLOCK_P,
            BLOCK_K, ADJOINT, EMULATE,
        )  # fmt: skip
    return total


@triton.jit
def _sum_channels(values, CHANNELS: tl.constexpr, GROUP: tl.constexpr):
    """The sum over all channels of a pixel, or over each GROUP of them; one axis more if so."""
    if GROUP == CHANNELS:
        sums = tl.sum(values, axis=1)
    else:
        ROWS: tl.constexpr = values.shape[0]
        PARTS: tl.constexpr = values.shape[1] // GROUP
        sums = tl.sum(tl.reshape(values, (ROWS, PARTS, GROUP)), axis=2)
    return sums


@triton.jit
def _spread(sums, CHANNELS: tl.constexpr, GROUP: tl.constexpr):
    """What belongs to a sum at the channels it was taken of."""
    if GROUP == CHANNELS:
        values = sums[:, None]
    else:
        ROWS: tl.constexpr = sums.shape[0]
        PARTS: tl.constexpr = sums.shape[1]
        values = tl.broadcast_to(sums[:, :, None], (ROWS, PARTS, GROUP))
        values = tl.reshape(values, (ROWS, PARTS * GROUP))
    return values


@triton.jit
def _normalize(hidden, epsilon, CHANNELS: tl.constexpr, GROUP: tl.constexpr):
    """The factor r = 1/sqrt(A u^2 + epsilon) of every pixel, at its channels."""
    norm = tl.rsqrt(_sum_channels(hidden * hidden, CHANNELS, GROUP) + epsilon)
    return _spread(norm, CHANNELS, GROUP)


@triton.jit
def _activate(hidden, inverse_norm, scale, bias):
    """relu(s u r + b); NaN stays NaN."""
    values = hidden * inverse_norm * scale[None, :] + bias[None, :]
    return tl.where(values <= 0, 0.0, values)


@triton.jit
def _round(values):
    """The nearest whole numbers, ties to the even one."""
    # Where float32 has no fractions left the sum with 2^23 is rounded just so.
    size = tl.abs(values)
    rounded = tl.where(size < 8388608.0, (size + 8388608.0) - 8388608.0, size)
    return tl.where(values < 0, -rounded, rounded)


@triton.jit
def _tile(pixels, num_pixels, CHANNELS: tl.constexpr, PADDED: tl.constexpr):
    """Offsets of all channels of the pixels and which of them exist."""
    columns = tl.arange(0, PADDED)
    offsets = (pixels * CHANNELS)[:, None] + columns[None, :]
    exists = (pixels < num_pixels)[:, None]
    if CHANNELS != PADDED:
        exists = exists & (columns < CHANNELS)[None, :]
    return offsets, exists


@triton.jit
def _channel_values(pointer, CHANNELS: tl.constexpr, PADDED: tl.constexpr):
    columns = tl.arange(0, PADDED)
    return tl.load(pointer + columns, mask=columns < CHANNELS, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["num_pixels"])
def activate_kernel(
    source,
    stencil,
    scale,
    bias,
    activated,
    hidden,
    num_pixels,
    epsilon,
    DEPTH: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_K: tl.constexpr,
    KEEP: tl.constexpr,
    EMULATE: tl.constexpr,
    CHAINED: tl.constexpr = False,
):
    """a = relu(N(K x)); with KEEP also u = K x."""
    begin(CHAINED)
    pixels = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    offsets, exists = _tile(pixels, num_pixels, CHANNELS, PADDED)
    u = _product(
        source, stencil, pixels, num_pixels, DEPTH, HEIGHT, WIDTH, CHANNELS, GROUP, PADDED,
        BLOCK_P, BLOCK_K, False, EMULATE,
    )  # fmt: skip
    # As stored: the gradient must see the same signs of z.
    narrow = _narrow(u, stencil.dtype.element_ty, EMULATE)
    u = narrow.to(tl.float32)
    if KEEP:
        tl.store(hidden + offsets, narrow.to(hidden.dtype.element_ty), mask=exists)
    s = _channel_values(scale, CHANNELS, PADDED)
    b = _channel_values(bias, CHANNELS, PADDED)
    a = _activate(u, _normalize(u, epsilon, CHANNELS, GROUP), s, b)
    _store(activated + offsets, a, exists, EMULATE)


@triton.jit(do_not_specialize=["num_pixels"])
def hidden_gradient_kernel(
    target_gradient,
    source,
    stencil,
    scale,
    bias,
    hidden,
    activated,
    hidden_gradient,
    partial_sums,
    num_pixels,
    epsilon,
    factor,
    DEPTH: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_K: tl.constexpr,
    AGAIN: tl.constexpr,
    EMULATE: tl.constexpr,
    CHAINED: tl.constexpr = False,
):
    """The gradient with respect to u = K x, from G, that with respect to the shear's outcome.

    u is read from `hidden`; with AGAIN it is computed from x and a is stored too. The sums over
    this program's pixels of gz n and of gz, the gradients of scale and bias, go to its own
    two rows of `partial_sums`.
    """
    begin(CHAINED)
    program = tl.program_id(0)
    pixels = program * BLOCK_P + tl.arange(0, BLOCK_P)
    offsets, exists = _tile(pixels, num_pixels, CHANNELS, PADDED)
    s = _channel_values(scale, CHANNELS, PADDED)
    b = _channel_values(bias, CHANNELS, PADDED)
    if AGAIN:
        u = _product(
            source, stencil, pixels, num_pixels, DEPTH, HEIGHT, WIDTH, CHANNELS, GROUP, PADDED,
            BLOCK_P, BLOCK_K, False, EMULATE,
        )  # fmt: skip
        u = _narrow(u, stencil.dtype.element_ty, EMULATE).to(tl.float32)
        r = _normalize(u, epsilon, CHANNELS, GROUP)
        _store(activated + offsets, _activate(u, r, s, b), exists, EMULATE)
        ga = _product(
            target_gradient, stencil, pixels, num_pixels, DEPTH, HEIGHT, WIDTH, CHANNELS, GROUP,
            PADDED, BLOCK_P, BLOCK_K, False, EMULATE,
        )  # fmt: skip
    else:
        ga = _product(
            target_gradient, stencil, pixels, num_pixels, DEPTH, HEIGHT, WIDTH, CHANNELS, GROUP,
            PADDED, BLOCK_P, BLOCK_K, False, EMULATE,
        )  # fmt: skip
        u = tl.load(hidden + offsets, mask=exists, other=0.0).to(tl.float32)
        r = _normalize(u, epsilon, CHANNELS, GROUP)
    n = u * r
    gz = tl.where(n * s[None, :] + b[None, :] > 0, -factor * ga, 0.0)
    gn = gz * s[None, :]
    along = _spread(_sum_channels(gn * n, CHANNELS, GROUP), CHANNELS, GROUP)
    gu = r * (gn - n * along)
    _store(hidden_gradient + offsets, gu, exists, EMULATE)
    columns = tl.arange(0, PADDED)
    sums = partial_sums + program * (2 * CHANNELS) + columns
    tl.store(sums, tl.sum(gz * n, axis=0), mask=columns < CHANNELS)
    tl.store(sums + CHANNELS, tl.sum(gz, axis=0), mask=columns < CHANNELS)


@triton.jit
def _add_adjoint(
    base,
    hidden,
    stencil,
    outcome,
    copy,
    num_pixels,
    factor,
    grid_scale,
    grid_step,
    DEPTH: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_K: tl.constexpr,
    UNDO: tl.constexpr,
    ROUND: tl.constexpr,
    COPY: tl.constexpr,
    EMULATE: tl.constexpr,
):
    pixels = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    offsets, exists = _tile(pixels, num_pixels, CHANNELS, PADDED)
    increment = factor * _product(
        hidden, stencil, pixels, num_pixels, DEPTH, HEIGHT, WIDTH, CHANNELS, GROUP, PADDED,
        BLOCK_P, BLOCK_K, True, EMULATE,
    )  # fmt: skip
    if ROUND:
        increment = _round(increment * grid_scale) * grid_step
    if UNDO:
        increment = -increment
    total = increment
    if base is not None:
        total = tl.load(base + offsets, mask=exists, other=0.0).to(tl.float32) + increment
    if outcome is not None:
        tl.store(outcome + offsets, total, mask=exists)
    if COPY:
        _store(copy + offsets, total, exists, EMULATE)
    return total


@triton.jit(do_not_specialize=["num_pixels"])
def add_adjoint_kernel(
    base,
    hidden,
    stencil,
    outcome,
    copy,
    next_base,
    next_factor,
    next_outcome,
    next_copy,
    num_pixels,
    factor,
    grid_scale,
    grid_step,
    DEPTH: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ROUND: tl.constexpr,
    COPY: tl.constexpr,
    NEXT: tl.constexpr,
    EMULATE: tl.constexpr,
    CHAINED: tl.constexpr = False,
):
    """outcome = base + factor K^T hidden, the increment on the grid with ROUND.

    Without a base it is zero, and without an outcome it is not stored. With NEXT also
    next_outcome = next_base + next_factor outcome, likewise, and its copy.
    """
    begin(CHAINED)
    total = _add_adjoint(
        base, hidden, stencil, outcome, copy, num_pixels, factor, grid_scale, grid_step, DEPTH,
        HEIGHT, WIDTH, CHANNELS, GROUP, PADDED, BLOCK_P, BLOCK_K, False, ROUND, COPY, EMULATE,
    )  # fmt: skip
    if NEXT:
        pixels = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
        offsets, exists = _tile(pixels, num_pixels, CHANNELS, PADDED)
        change = next_factor * total
        if ROUND:
            change = _round(change * grid_scale) * grid_step
        moved = tl.load(next_base + offsets, mask=exists, other=0.0).to(tl.float32) + change
        tl.store(next_outcome + offsets, moved, mask=exists)
        _store(next_copy + offsets, moved, exists, EMULATE)


@triton.jit(do_not_specialize=["num_pixels"])
def undo_kernel(
    target_after,
    activated,
    target,
    target_copy,
    source_gradient,
    hidden_gradient,
    new_gradient,
    gradient_copy,
    stencil,
    num_pixels,
    factor,
    grid_scale,
    grid_step,
    DEPTH: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ROUND: tl.constexpr,
    COPY_TARGET: tl.constexpr,
    COPY_GRADIENT: tl.constexpr,
    EMULATE: tl.constexpr,
    CHAINED: tl.constexpr = False,
):
    """The target before the shear in one half of the programs, K^T gu added in the other."""
    begin(CHAINED)
    if tl.program_id(1) == 0:
        _add_adjoint(
            target_after, activated, stencil, target, target_copy, num_pixels, factor,
            grid_scale, grid_step, DEPTH, HEIGHT, WIDTH, CHANNELS, GROUP, PADDED, BLOCK_P,
            BLOCK_K, True, ROUND, COPY_TARGET, EMULATE,
        )  # fmt: skip
    else:
        _add_adjoint(
            source_gradient, hidden_gradient, stencil, new_gradient, gradient_copy, num_pixels,
            1.0, grid_scale, grid_step, DEPTH, HEIGHT, WIDTH, CHANNELS, GROUP, PADDED, BLOCK_P,
            BLOCK_K, False, False, COPY_GRADIENT, EMULATE,
        )  # fmt: skip


@triton.jit
def _accumulate(
    total,
    rows,
    features,
    tap,
    steps,
    first,
    num_pixels,
    DEPTH: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK_P: tl.constexpr,
    NUM_STEPS: tl.constexpr,
    WIDE: tl.constexpr,
    EMULATE: tl.constexpr,
):
    """total + sum over pixels p of rows[p, o] features[p + offset(tap), i].

    As (o, i) with WIDE, else as (i, o).
    """
    dtype: tl.constexpr = rows.dtype.element_ty
    for step in tl.range(0, NUM_STEPS):
        pixels = (first + step) * BLOCK_P + tl.arange(0, BLOCK_P)
        offsets, exists = _tile(pixels, num_pixels, CHANNELS, PADDED)
        left = tl.load(rows + offsets, mask=exists, other=0.0)
        if DEPTH > 0:
            inside = _volume_neighbours(pixels, num_pixels, DEPTH, HEIGHT, WIDTH)
        else:
            inside = _neighbours(pixels, num_pixels, HEIGHT, WIDTH, False)
        here = ((inside[:, None] >> tap[None, :]) & 1) != 0
        pointers = features + (pixels * CHANNELS)[:, None] + steps[None, :]
        right = tl.load(pointers, mask=here, other=0.0)
        left = _narrow(left, dtype, EMULATE)
        right = _narrow(right, dtype, EMULATE)
        if WIDE:
            total = tl.dot(tl.trans(left), right, total, input_precision="ieee")
        else:
            total = tl.dot(tl.trans(right), left, total, input_precision="ieee")
    return total


@triton.jit(do_not_specialize=["num_pixels"])
def stencil_gradient_kernel(
    hidden_gradient,
    source,
    activated,
    target_gradient,
    partial_sums,
    num_pixels,
    factor,
    DEPTH: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
    NUM_STEPS: tl.constexpr,
    EMULATE: tl.constexpr,
    CHAINED: tl.constexpr = False,
):
    """A chunk's part of sum_p gu[p, o] x[p + tap, i] - factor sum_p a[p, o] G[p + tap, i].

    A program computes all o and BLOCK_N of the 9 CHANNELS pairs (tap, i), or of the numbers that
    the stencil of a volume meets, and sums over NUM_STEPS times BLOCK_P pixels.
    """
    begin(CHAINED)
    LENGTH: tl.constexpr = 9 * (CHANNELS if DEPTH == 0 else CHANNELS + 2 * GROUP)
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    chunk = tl.program_id(1)
    if DEPTH > 0:
        steps, tap = _places(column, HEIGHT, WIDTH, CHANNELS, GROUP)
    else:
        tap = column // CHANNELS
        steps = _shift(tap, WIDTH, False) * CHANNELS + column % CHANNELS
    first = chunk * NUM_STEPS
    # The matrix unit takes products of at least 64 rows: few channels go into its columns.
    WIDE: tl.constexpr = PADDED >= 64
    if WIDE:
        total = tl.zeros((PADDED, BLOCK_N), dtype=tl.float32)
    else:
        total = tl.zeros((BLOCK_N, PADDED), dtype=tl.float32)
    total = _accumulate(
        total, activated, target_gradient, tap, steps, first, num_pixels, DEPTH, HEIGHT, WIDTH,
        CHANNELS, PADDED, BLOCK_P, NUM_STEPS, WIDE, EMULATE,
    )  # fmt: skip
    total = -factor * total
    total = _accumulate(
        total, hidden_gradient, source, tap, steps, first, num_pixels, DEPTH, HEIGHT, WIDTH,
        CHANNELS, PADDED, BLOCK_P, NUM_STEPS, WIDE, EMULATE,
    )  # fmt: skip
    if not WIDE:
        total = tl.trans(total)
    out = tl.arange(0, PADDED)
    places = partial_sums + chunk * (CHANNELS * LENGTH)
    places = places + (out * LENGTH)[:, None] + column[None, :]
    tl.store(places, total, mask=(out < CHANNELS)[:, None] & (column < LENGTH)[None, :])
