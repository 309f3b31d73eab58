"""Scans: cumulative sums and products, and scans with functions of our own."""

import numpy as np
import pytest
import triton.language as tl

import gridpact


@gridpact.jit
def cumsum_2d(x, out, R: tl.constexpr, C: tl.constexpr, AXIS: tl.constexpr, REVERSE: tl.constexpr):
    o = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    tl.store(out + o, tl.cumsum(tl.load(x + o), AXIS, reverse=REVERSE))


@pytest.mark.entry("cumsum axis {axis} reverse={reverse}")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_cumsum(axis, reverse, rng, poisoned):
    x = rng.integers(0, 9, (32, 64)).astype(np.int32)
    out = poisoned((32, 64), np.int32)
    cumsum_2d[(1,)](x, out, R=32, C=64, AXIS=axis, REVERSE=reverse)
    expected = np.flip(np.cumsum(np.flip(x, axis), axis), axis) if reverse else np.cumsum(x, axis)
    np.testing.assert_array_equal(out, expected)


@gridpact.jit
def cumprod(x, out, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(out + o, tl.cumprod(tl.load(x + o), 0))


@pytest.mark.entry("cumprod f32")
def test_cumprod(rng, poisoned):
    x = (1 + 0.01 * rng.standard_normal(256)).astype(np.float32)
    out = poisoned(256)
    cumprod[(1,)](x, out, BLOCK=256)
    np.testing.assert_allclose(out, np.cumprod(x.astype(np.float64)), rtol=1e-4)


@gridpact.jit
def maximum(a, b):
    return tl.maximum(a, b)


@gridpact.jit
def running_maximum(x, out, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(out + o, tl.associative_scan(tl.load(x + o), 0, maximum))


@pytest.mark.entry("associative_scan max")
def test_running_maximum(rng, poisoned):
    x = rng.standard_normal(1024).astype(np.float32)
    out = poisoned(1024)
    running_maximum[(1,)](x, out, BLOCK=1024)
    np.testing.assert_array_equal(out, np.maximum.accumulate(x))


@gridpact.jit
def after(a_first, b_first, a_second, b_second):
    return a_first * a_second, b_first * a_second + b_second


@gridpact.jit
def linear_recurrence(a, b, out, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    _, state = tl.associative_scan((tl.load(a + o), tl.load(b + o)), 0, after)
    tl.store(out + o, state)


@pytest.mark.entry("associative_scan 2-tuple (linear recurrence)")
def test_linear_recurrence(rng, poisoned):
    a = rng.uniform(0.5, 1, 256).astype(np.float32)
    b = rng.standard_normal(256).astype(np.float32)
    out = poisoned(256)
    linear_recurrence[(1,)](a, b, out, BLOCK=256)
    expected = np.empty(256)
    state = 0.0
    for i in range(256):
        state = expected[i] = float(a[i]) * state + float(b[i])
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)
