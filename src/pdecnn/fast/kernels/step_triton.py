# mypy: ignore-errors
"""The Triton kernels of a training step around its network; imported only where they run.

Weights and what is kept of them lie where their owners put them: tables of addresses, made once,
say where. A program owns a run of the numbers of one tensor. Sums are taken in two levels whose
order depends on the tables alone, so that the same inputs give the same bits.
"""

import triton
import triton.language as tl

from pdecnn.fast.kernels.symmetric_shear_triton import _store

# Columns of the tables, see `FlatUpdate`; those of what `decide_kernel` says.
WEIGHT, FIRST, SECOND, STEPS, AVERAGE, EARLIER, LATER = map(tl.constexpr, range(7))
SIZE, OFFSET, COLUMNS, SLOT, TALL = map(tl.constexpr, range(5))
DECAY, STEP_SIZE, BOUND, SCALE = map(tl.constexpr, range(4))
NUM_ADDRESSES, NUM_NUMBERS, NUM_FACTORS = map(tl.constexpr, (7, 5, 4))
RATE, CLIP, ACCEPTED = map(tl.constexpr, range(3))

# SplitMix64, as in data/augmentation.py.
INCREMENT = tl.constexpr(-7046029254386353131)
FIRST_FACTOR = tl.constexpr(-4658895280553007687)
SECOND_FACTOR = tl.constexpr(-7723592293110705685)


@triton.jit
def _mix(state, key):
    """The bits of a state and one more key."""
    bits = state + (key + 1) * INCREMENT
    bits = (bits ^ ((bits >> 30) & 0x3FFFFFFFF)) * FIRST_FACTOR
    bits = (bits ^ ((bits >> 27) & 0x1FFFFFFFFF)) * SECOND_FACTOR
    return bits ^ ((bits >> 31) & 0x1FFFFFFFF)


@triton.jit
def _integer(bits, BOUND: tl.constexpr):
    """A number in 0 .. BOUND - 1 from random bits."""
    return ((((bits >> 32) & 0xFFFFFFFF) * BOUND) >> 32).to(tl.int32)


@triton.jit
def _draw(keys, PLACE: tl.constexpr, epoch, sample, BOUND: tl.constexpr):
    return _integer(_mix(_mix(tl.load(keys + PLACE), epoch), sample), BOUND)


@triton.jit
def _source(position, SIZE: tl.constexpr, REFLECT: tl.constexpr):
    """Where in an image an enlarged one has its pixel, and whether it is in the image."""
    if REFLECT:
        position = (SIZE - 1) - tl.abs((SIZE - 1) - tl.abs(position))
    inside = (position >= 0) & (position < SIZE)
    return tl.minimum(tl.maximum(position, 0), SIZE - 1), inside


@triton.jit
def _moments(image, LENGTH: tl.constexpr, BLOCK: tl.constexpr):
    """Mean and standard deviation of the bytes of an image over 255, the latter not too small."""
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for begin in tl.range(0, LENGTH, BLOCK):
        place = begin + tl.arange(0, BLOCK)
        total += tl.load(image + place, mask=place < LENGTH, other=0).to(tl.float32) / 255.0
    mean = tl.sum(total, axis=0) / LENGTH
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for begin in tl.range(0, LENGTH, BLOCK):
        place = begin + tl.arange(0, BLOCK)
        pixels = tl.load(image + place, mask=place < LENGTH, other=0).to(tl.float32) / 255.0
        centred = tl.where(place < LENGTH, pixels - mean, 0.0)
        total += centred * centred
    return mean, tl.sqrt(tl.maximum(tl.sum(total, axis=0) / LENGTH, 1.0 / LENGTH))


@triton.jit
def _mirrored(
    keys, epoch, sample, x, WIDTH: tl.constexpr, FLIP: tl.constexpr, ALTERNATE: tl.constexpr
):
    """The places along the last axis of a sample that may be mirrored."""
    if FLIP:
        if ALTERNATE:
            coin = (_integer(_mix(tl.load(keys + 2), sample), 2) + epoch) % 2
        else:
            coin = _draw(keys, 2, epoch, sample, 2)
        x = tl.where(coin == 1, WIDTH - 1 - x, x)
    return x


@triton.jit(do_not_specialize=["batch_size"])
def batch_kernel(
    images,
    labels,
    batches,
    counts,
    epoch,
    keys,
    means,
    deviations,
    features,
    chosen,
    batch_size,
    CHANNELS: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    EACH: tl.constexpr,
    SHIFTED: tl.constexpr,
    SCALED: tl.constexpr,
    FLIP: tl.constexpr,
    ALTERNATE: tl.constexpr,
    PADDING_Y: tl.constexpr,
    PADDING_X: tl.constexpr,
    REFLECT: tl.constexpr,
    CUTOUT: tl.constexpr,
    HELD: tl.constexpr,
    LAST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One image of bytes, standardised and augmented, channels last; and its label.

    With EACH by its own mean and deviation, with SHIFTED and SCALED by those of each channel.
    With HELD the images are those of the batch and not those of the set; with LAST their channels
    lie last too.
    """
    program = tl.program_id(0)
    now = tl.load(epoch)
    sample = tl.load(batches + tl.load(counts) * batch_size + program)
    tl.store(chosen + program, tl.load(labels + sample))
    PIXELS: tl.constexpr = HEIGHT * WIDTH
    LENGTH: tl.constexpr = CHANNELS * PIXELS
    image = images + (program.to(tl.int64) if HELD else sample) * LENGTH
    mean = 0.0
    deviation = 1.0
    if EACH:
        mean, deviation = _moments(image, LENGTH, BLOCK)
    shift_y = _draw(keys, 0, now, sample, 2 * PADDING_Y + 1) - PADDING_Y
    shift_x = _draw(keys, 1, now, sample, 2 * PADDING_X + 1) - PADDING_X
    for begin in tl.range(0, LENGTH, BLOCK):
        place = begin + tl.arange(0, BLOCK)
        channel = place % CHANNELS
        x = (place // CHANNELS) % WIDTH
        y = place // (CHANNELS * WIDTH)
        source_y, inside_y = _source(y + shift_y, HEIGHT, REFLECT)
        source_x, inside_x = _source(x + shift_x, WIDTH, REFLECT)
        source_x = _mirrored(keys, now, sample, source_x, WIDTH, FLIP, ALTERNATE)
        source = channel * PIXELS + source_y * WIDTH + source_x
        if LAST:
            source = (source_y * WIDTH + source_x) * CHANNELS + channel
        exists = place < LENGTH
        pixels = tl.load(image + source, mask=exists, other=0).to(tl.float32) / 255.0
        if EACH:
            pixels = (pixels - mean) / deviation
        if SHIFTED:
            pixels = pixels - tl.load(means + channel)
        if SCALED:
            pixels = pixels / tl.load(deviations + channel)
        shown = inside_y & inside_x
        if CUTOUT > 0:
            hole_y = y - _draw(keys, 3, now, sample, HEIGHT) + CUTOUT // 2
            hole_x = x - _draw(keys, 4, now, sample, WIDTH) + CUTOUT // 2
            hole = (hole_y >= 0) & (hole_y < CUTOUT) & (hole_x >= 0) & (hole_x < CUTOUT)
            shown = shown & (hole == 0)
        target = features + program.to(tl.int64) * LENGTH + place
        tl.store(target, tl.where(shown, pixels, 0.0), mask=exists)


@triton.jit(do_not_specialize=["num_rows"])
def loss_kernel(
    scores,
    labels,
    others,
    shares,
    main,
    gradient,
    measured,
    num_rows,
    smoothing,
    temperature,
    factor,
    CLASSES: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    MIXED: tl.constexpr,
    EMULATE: tl.constexpr,
):
    """T S(scores / T) of every example, whether its answer is right, and `factor` its gradient."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, PADDED)
    exists = row < num_rows
    entries = row[:, None] * CLASSES + column[None, :]
    known = exists[:, None] & (column < CLASSES)[None, :]
    values = tl.load(scores + entries, mask=known, other=0.0).to(tl.float32)
    z = tl.where((column < CLASSES)[None, :], values / temperature, -1e38)
    top = tl.max(z, axis=1)
    powers = tl.exp(z - top[:, None])
    total = tl.sum(powers, axis=1)
    logs = tl.where(known, z - (top + tl.log(total))[:, None], 0.0)
    right = tl.load(labels + row, mask=exists, other=0)
    wanted = tl.where(column[None, :] == right[:, None], 1.0, 0.0)
    if MIXED:
        share = tl.load(shares + row, mask=exists, other=1.0).to(tl.float32)[:, None]
        second = tl.load(others + row, mask=exists, other=0)
        wanted = share * wanted + (1.0 - share) * tl.where(
            column[None, :] == second[:, None], 1.0, 0.0
        )
        right = tl.load(main + row, mask=exists, other=0)
    wanted = (1.0 - smoothing) * wanted + smoothing / CLASSES
    losses = -temperature * tl.sum(wanted * logs, axis=1)
    tl.store(measured + 2 * row, losses, mask=exists)
    answer = tl.argmax(z, axis=1)
    tl.store(measured + 2 * row + 1, tl.where(answer == right, 1.0, 0.0), mask=exists)
    slopes = factor * (powers / total[:, None] - wanted)
    _store(gradient + entries, slopes, known, EMULATE)


@triton.jit
def _run(programs, numbers, BLOCK: tl.constexpr):
    """The tensor of this program, and which of its numbers it owns."""
    program = tl.program_id(0)
    tensor = tl.load(programs + 2 * program)
    place = tl.load(programs + 2 * program + 1) + tl.arange(0, BLOCK)
    return tensor, place, place < tl.load(numbers + tensor * NUM_NUMBERS + SIZE)


@triton.jit
def _numbers_at(addresses, tensor, COLUMN: tl.constexpr):
    """A pointer from the table, and whether there is one."""
    address = tl.load(addresses + tensor * NUM_ADDRESSES + COLUMN)
    return address.to(tl.pointer_type(tl.float32)), address != 0


@triton.jit
def _slope(rate, corner, H1: tl.constexpr):
    """The derivative of the change in time; H1: of its square."""
    return rate if H1 else rate / tl.sqrt(rate * rate + corner)


@triton.jit
def regularized_gradient_kernel(
    addresses,
    numbers,
    factors,
    programs,
    layouts,
    loss_gradient,
    gradient,
    partial_sums,
    smoothness,
    corner,
    H1: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The gradient of loss and regulariser; parts of its square and of both regularisers."""
    tensor, place, exists = _run(programs, numbers, BLOCK)
    offset = tl.load(numbers + tensor * NUM_NUMBERS + OFFSET)
    # A gradient whose channels lie last, (out, taps, in), beside its weight, (out, in, taps).
    inner = tl.load(layouts + 2 * tensor)
    taps = tl.load(layouts + 2 * tensor + 1)
    pair = place // taps
    there = (pair // inner * taps + place % taps) * inner + pair % inner
    slope = tl.load(loss_gradient + offset + there, mask=exists, other=0.0)
    weights, _ = _numbers_at(addresses, tensor, WEIGHT)
    w = tl.load(weights + place, mask=exists, other=0.0)
    decay = tl.load(factors + tensor * NUM_FACTORS + DECAY)
    step_size = tl.load(factors + tensor * NUM_FACTORS + STEP_SIZE)
    earlier, has_earlier = _numbers_at(addresses, tensor, EARLIER)
    since = (w - tl.load(earlier + place, mask=exists & has_earlier, other=0.0)) / step_size
    since = tl.where(exists & has_earlier, since, 0.0)
    later, has_later = _numbers_at(addresses, tensor, LATER)
    until = (tl.load(later + place, mask=exists & has_later, other=0.0) - w) / step_size
    until = tl.where(exists & has_later, until, 0.0)
    change = _slope(since, corner, H1) - _slope(until, corner, H1)
    slope = slope + smoothness * change + decay * w
    tl.store(gradient + offset + place, slope, mask=exists)
    squares = since * since
    growth = 0.5 * squares if H1 else squares / (tl.sqrt(squares + corner) + tl.sqrt(corner))
    sums = partial_sums + 3 * tl.program_id(0)
    tl.store(sums, tl.sum(slope * slope, axis=0))
    tl.store(sums + 1, smoothness * step_size * tl.sum(growth, axis=0))
    tl.store(sums + 2, 0.5 * decay * tl.sum(w * w, axis=0))


@triton.jit
def _column_sum(values, COLUMN: tl.constexpr, WIDTH: tl.constexpr, number, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), dtype=tl.float64)
    for begin in tl.range(0, number, BLOCK):
        row = begin + tl.arange(0, BLOCK)
        total += tl.load(values + row * WIDTH + COLUMN, mask=row < number, other=0.0).to(tl.float64)
    return tl.sum(total, axis=0)


@triton.jit(do_not_specialize=["num_programs", "num_examples", "num_weights", "patience"])
def decide_kernel(
    addresses,
    partial_sums,
    measured,
    rates,
    outside,
    counts,
    skipped,
    sums,
    control,
    num_programs,
    num_examples,
    num_weights,
    divisor,
    number,
    largest_norm,
    patience,
    CLIPPED: tl.constexpr,
    RANGED: tl.constexpr,
    COUNTED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Whether the step is taken, its rate and clipping, and all that is counted: one program.

    `divisor` makes a mean of the losses' sum, `number` is that of the batch, `patience` how many
    steps in a row may be skipped. The bookkeeping is that of `TrainingStep`.
    """
    norm = tl.sqrt(_column_sum(partial_sums, 0, 3, num_programs, BLOCK))
    smoothness = _column_sum(partial_sums, 1, 3, num_programs, BLOCK)
    decay = _column_sum(partial_sums, 2, 3, num_programs, BLOCK)
    data_loss = _column_sum(measured, 0, 2, num_examples, BLOCK) / divisor
    right = _column_sum(measured, 1, 2, num_examples, BLOCK)
    total = data_loss + smoothness + decay
    batch = tl.load(counts)
    in_row = tl.load(counts + 1)
    nonfinite = tl.load(counts + 2)
    failure = tl.load(counts + 3)
    running = failure == 0
    # Neither infinite nor NaN, of which all comparisons are false.
    finite = (tl.abs(total) < float("inf")) & (norm < float("inf"))
    in_range = running | (failure != 0)
    if RANGED:
        in_range = tl.load(outside).to(tl.int32) == 0
        finite = finite & in_range
    accepted = running & finite
    missed = running & (finite == 0)
    tl.store(skipped + batch, tl.load(skipped + batch) | missed.to(tl.int64))
    in_row = tl.where(accepted, 0, in_row + missed.to(tl.int64))
    failed = missed & (in_row > patience)
    failure = tl.where(failed, tl.where(in_range, 1, 2), failure)
    tl.debug_barrier()  # all warps have read what one of them now writes
    tl.store(counts, batch + (failure == 0).to(tl.int64))
    tl.store(counts + 1, in_row)
    tl.store(counts + 2, nonfinite + missed.to(tl.int64))
    tl.store(counts + 3, failure)
    tl.store(sums, tl.load(sums) + tl.where(accepted, total * number, 0.0))
    tl.store(sums + 1, tl.load(sums + 1) + tl.where(accepted, data_loss * number, 0.0))
    tl.store(sums + 2, tl.load(sums + 2) + tl.where(accepted, smoothness * number, 0.0))
    tl.store(sums + 3, tl.load(sums + 3) + tl.where(accepted, decay * number, 0.0))
    tl.store(sums + 4, tl.load(sums + 4) + tl.where(accepted, right, 0.0))
    tl.store(sums + 5, tl.load(sums + 5) + tl.where(accepted, number, 0.0))
    tl.store(control + RATE, tl.load(rates + batch))
    clip = 1.0
    if CLIPPED:
        clip = tl.minimum(largest_norm / norm, 1.0).to(tl.float32)
    tl.store(control + CLIP, clip)
    tl.store(control + ACCEPTED, accepted.to(tl.float32))
    if COUNTED:
        for begin in tl.range(0, num_weights, BLOCK):
            tensor = begin + tl.arange(0, BLOCK)
            known = tensor < num_weights
            address = tl.load(addresses + tensor * NUM_ADDRESSES + STEPS, mask=known, other=0)
            steps = address.to(tl.pointer_type(tl.float32))
            known = known & (address != 0)
            taken = tl.load(steps, mask=known, other=0.0) + accepted.to(tl.float32)
            tl.store(steps, taken, mask=known)


@triton.jit
def _is_accepted(control):
    # As a whole number: the interpreter takes a fraction's comparison for a fraction.
    return tl.load(control + ACCEPTED).to(tl.int32) != 0


@triton.jit
def _matrix_place(numbers, tensor, place, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Where among the padded matrices, wide rather than tall, an entry stands."""
    columns = tl.load(numbers + tensor * NUM_NUMBERS + COLUMNS)
    row = place // columns
    column = place % columns
    tall = tl.load(numbers + tensor * NUM_NUMBERS + TALL) != 0
    slot = tl.load(numbers + tensor * NUM_NUMBERS + SLOT)
    within = tl.where(tall, column * WIDTH + row, row * WIDTH + column)
    return slot * (HEIGHT * WIDTH) + within


@triton.jit
def directions_kernel(
    addresses,
    numbers,
    factors,
    programs,
    gradient,
    control,
    matrices,
    momentum,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Nesterov's directions of the weights that are matrices, to be made orthogonal."""
    tensor, place, exists = _run(programs, numbers, BLOCK)
    exists = exists & (tl.load(numbers + tensor * NUM_NUMBERS + SLOT) >= 0)
    accepted = exists & _is_accepted(control)
    offset = tl.load(numbers + tensor * NUM_NUMBERS + OFFSET)
    g = tl.load(gradient + offset + place, mask=exists, other=0.0) * tl.load(control + CLIP)
    first, _ = _numbers_at(addresses, tensor, FIRST)
    velocity = momentum * tl.load(first + place, mask=exists, other=0.0) + g
    tl.store(first + place, velocity, mask=accepted)
    there = _matrix_place(numbers, tensor, place, HEIGHT, WIDTH)
    tl.store(matrices + there, g + momentum * velocity, mask=exists)


@triton.jit
def _correction(LOGARITHM: tl.constexpr, taken):
    """What a mean over so many numbers lacks, beginning at zero: 1 - beta^taken."""
    return (1.0 - tl.exp(taken.to(tl.float64) * LOGARITHM)).to(tl.float32)


@triton.jit
def _adamw_move(
    addresses,
    tensor,
    place,
    exists,
    g,
    rate,
    BETA_1: tl.constexpr,
    BETA_2: tl.constexpr,
    LOG_1: tl.constexpr,
    LOG_2: tl.constexpr,
):
    """The move of AdamW, whose means are advanced; `decide_kernel` has counted this step."""
    first, _ = _numbers_at(addresses, tensor, FIRST)
    second, _ = _numbers_at(addresses, tensor, SECOND)
    steps, _ = _numbers_at(addresses, tensor, STEPS)
    taken = tl.maximum(tl.load(steps), 1.0)
    mean = BETA_1 * tl.load(first + place, mask=exists, other=0.0) + (1.0 - BETA_1) * g
    square = BETA_2 * tl.load(second + place, mask=exists, other=0.0) + (1.0 - BETA_2) * (g * g)
    tl.store(first + place, mean, mask=exists)
    tl.store(second + place, square, mask=exists)
    root = tl.sqrt(square) / tl.sqrt(_correction(LOG_2, taken))
    return mean / (root + 1e-8) * (rate / _correction(LOG_1, taken))


@triton.jit
def update_kernel(
    addresses,
    numbers,
    factors,
    programs,
    gradient,
    control,
    matrices,
    momentum,
    weight_decay,
    average_share,
    RULE: tl.constexpr,
    BETA_1: tl.constexpr,
    BETA_2: tl.constexpr,
    LOG_1: tl.constexpr,
    LOG_2: tl.constexpr,
    INSIDE: tl.constexpr,
    AVERAGED: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """States, weights, box and average of a step; nothing at all where it is not accepted."""
    tensor, place, exists = _run(programs, numbers, BLOCK)
    exists = exists & _is_accepted(control)
    rate = tl.load(control + RATE)
    offset = tl.load(numbers + tensor * NUM_NUMBERS + OFFSET)
    g = tl.load(gradient + offset + place, mask=exists, other=0.0) * tl.load(control + CLIP)
    weights, _ = _numbers_at(addresses, tensor, WEIGHT)
    w = tl.load(weights + place, mask=exists, other=0.0)
    first, _ = _numbers_at(addresses, tensor, FIRST)
    if RULE == "adamw":
        move = _adamw_move(addresses, tensor, place, exists, g, rate, BETA_1, BETA_2, LOG_1, LOG_2)
    elif RULE == "muon":
        if tl.load(numbers + tensor * NUM_NUMBERS + SLOT) >= 0:
            there = _matrix_place(numbers, tensor, place, HEIGHT, WIDTH)
            scale = tl.load(factors + tensor * NUM_FACTORS + SCALE)
            move = rate * (scale * tl.load(matrices + there, mask=exists, other=0.0))
        else:
            move = _adamw_move(
                addresses, tensor, place, exists, g, rate, BETA_1, BETA_2, LOG_1, LOG_2
            )
    else:
        velocity = momentum * tl.load(first + place, mask=exists, other=0.0)
        if INSIDE:
            velocity = velocity + rate * g
            move = velocity
        else:
            velocity = velocity + g
            move = rate * velocity
            if RULE == "nesterov":
                move = rate * (g + momentum * velocity)
        tl.store(first + place, velocity, mask=exists)
    w = (1.0 - rate * weight_decay) * w - move
    bound = tl.load(factors + tensor * NUM_FACTORS + BOUND)
    w = tl.where(w > bound, bound, tl.where(w < -bound, -bound, w))  # NaN stays NaN
    tl.store(weights + place, w, mask=exists)
    if AVERAGED:
        averages, _ = _numbers_at(addresses, tensor, AVERAGE)
        average = tl.load(averages + place, mask=exists, other=0.0)
        tl.store(averages + place, average + average_share * (w - average), mask=exists)


@triton.jit
def _words(table, tensor, COLUMN: tl.constexpr):
    address = tl.load(table + 5 * tensor + COLUMN)
    return address.to(tl.pointer_type(tl.int32)), address != 0


@triton.jit
def _run_of_words(table, programs, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    tensor = tl.load(programs + 2 * program)
    place = tl.load(programs + 2 * program + 1) + tl.arange(0, BLOCK)
    offset = tl.load(table + 5 * tensor + 3)
    return tensor, place, place < tl.load(table + 5 * tensor + 2), offset


@triton.jit
def keep_kernel(table, programs, kept, BLOCK: tl.constexpr):
    """Copy all buffers, as words of 32 bits."""
    tensor, place, exists, offset = _run_of_words(table, programs, BLOCK)
    words, _ = _words(table, tensor, 0)
    tl.store(kept + offset + place, tl.load(words + place, mask=exists, other=0), mask=exists)


@triton.jit
def buffers_kernel(table, programs, kept, control, average_share, BLOCK: tl.constexpr):
    """Put the buffers back where the step is not accepted, else take them into their averages."""
    tensor, place, exists, offset = _run_of_words(table, programs, BLOCK)
    accepted = _is_accepted(control)
    words, _ = _words(table, tensor, 0)
    before = tl.load(kept + offset + place, mask=exists, other=0)
    tl.store(words + place, before, mask=exists & (accepted == 0))
    averages, averaged = _words(table, tensor, 1)
    changed = exists & accepted & averaged
    now = tl.load(words + place, mask=changed, other=0)
    if tl.load(table + 5 * tensor + 4) != 0:  # numbers with fractions
        value = now.to(tl.float32, bitcast=True)
        average = tl.load(averages + place, mask=changed, other=0).to(tl.float32, bitcast=True)
        now = (average + average_share * (value - average)).to(tl.int32, bitcast=True)
    tl.store(averages + place, now, mask=changed)
