"""Reductions: each kind along each axis, of each type, with functions of our own, and the kernels built on them."""

import numpy as np
import pytest
import scipy.special
import triton.language as tl

import gridpact

REDUCTIONS = {
    "sum": (tl.sum, np.sum, np.float32),
    "max": (tl.max, np.max, np.float32),
    "min": (tl.min, np.min, np.float32),
    "argmax": (tl.argmax, np.argmax, np.int32),
    "argmin": (tl.argmin, np.argmin, np.int32),
}
BFLOAT16_SAFE = ("float16", "bfloat16", "int8")  # keep their sums small, so that they are exact


def reduction(op):
    """Make a kernel that reduces an R x C tensor along an axis."""

    @gridpact.jit
    def reduce_2d(x, out, R: tl.constexpr, C: tl.constexpr, AXIS: tl.constexpr):
        v = tl.load(x + tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :])
        LEFT: tl.constexpr = C if AXIS == 0 else R
        tl.store(out + tl.arange(0, LEFT), op(v, AXIS))

    return reduce_2d


@pytest.mark.entry("reduce {kind} axis {axis} (32x64 f32)")
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("kind", REDUCTIONS)
def test_axis(kind, axis, rng, poisoned):
    op, expected, dtype = REDUCTIONS[kind]
    x = rng.standard_normal((32, 64)).astype(np.float32)
    out = poisoned(64 if axis == 0 else 32, dtype)
    reduction(op)[(1,)](x, out, R=32, C=64, AXIS=axis)
    tolerance = 1e-5 if kind == "sum" else 0
    np.testing.assert_allclose(out, expected(x.astype(np.float64), axis=axis), rtol=tolerance, atol=tolerance)


@pytest.mark.entry("reduce xor_sum")
def test_xor_sum(rng, poisoned):
    x = rng.integers(0, 1000, (32, 64)).astype(np.int32)
    out = poisoned(32, np.int32)
    reduction(tl.xor_sum)[(1,)](x, out, R=32, C=64, AXIS=1)
    np.testing.assert_array_equal(out, np.bitwise_xor.reduce(x, 1))


@gridpact.jit
def sum_max_min(x, out, BLOCK: tl.constexpr):
    v = tl.load(x + tl.arange(0, BLOCK))
    tl.store(out, tl.sum(v, 0))
    tl.store(out + 1, tl.max(v, 0))
    tl.store(out + 2, tl.min(v, 0))


@pytest.mark.entry("reduce sum/max/min {dtype} 1-D 1024")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int64", "int32", "int8"])
def test_type(dtype, rng, poisoned):
    x = rng.integers(-3, 4, 1024).astype(dtype)
    if dtype in BFLOAT16_SAFE:
        x[1::2] = 0
    out = poisoned(3, np.int32 if dtype == "int8" else dtype)
    sum_max_min[(1,)](x, out, BLOCK=1024)
    wide = x.astype(np.float64)
    np.testing.assert_array_equal(out.astype(np.float64), [wide.sum(), wide.max(), wide.min()])


@gridpact.jit
def sum_of_all(x, out, R: tl.constexpr, C: tl.constexpr):
    tl.store(out, tl.sum(tl.load(x + tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :])))


@pytest.mark.entry("reduce axis=None")
def test_all_axes(rng, poisoned):
    x = rng.standard_normal((32, 32)).astype(np.float32)
    out = poisoned(1)
    sum_of_all[(1,)](x, out, R=32, C=32)
    np.testing.assert_allclose(out, [x.astype(np.float64).sum()], rtol=1e-5, atol=1e-5)


@gridpact.jit
def plus(a, b):
    return a + b * 1


@gridpact.jit
def sum_by_own_function(x, out, BLOCK: tl.constexpr):
    tl.store(out, tl.reduce(tl.load(x + tl.arange(0, BLOCK)), 0, plus))


@pytest.mark.entry("reduce custom combine")
def test_own_function(rng, poisoned):
    x = rng.integers(0, 9, 512).astype(np.int32)
    out = poisoned(1, np.int32)
    sum_by_own_function[(1,)](x, out, BLOCK=512)
    np.testing.assert_array_equal(out, [x.sum()])


@gridpact.jit
def plus_and_maximum(sum_a, max_a, sum_b, max_b):
    return sum_a + sum_b, tl.maximum(max_a, max_b)


@gridpact.jit
def sum_and_max_at_once(x, out, BLOCK: tl.constexpr):
    v = tl.load(x + tl.arange(0, BLOCK))
    total, most = tl.reduce((v, v), 0, plus_and_maximum)
    tl.store(out, total)
    tl.store(out + 1, most)


@pytest.mark.entry("reduce tuple combine")
def test_tuple(rng, poisoned):
    x = rng.integers(0, 9, 512).astype(np.int32)
    out = poisoned(2, np.int32)
    sum_and_max_at_once[(1,)](x, out, BLOCK=512)
    np.testing.assert_array_equal(out, [x.sum(), x.max()])


@gridpact.jit
def sum_3d(x, out, AXIS: tl.constexpr):
    i = tl.arange(0, 4)
    j = tl.arange(0, 8)
    k = tl.arange(0, 16)
    v = tl.load(x + i[:, None, None] * 128 + j[None, :, None] * 16 + k[None, None, :])
    if AXIS == 0:
        o = j[:, None] * 16 + k[None, :]
    elif AXIS == 1:
        o = i[:, None] * 16 + k[None, :]
    else:
        o = i[:, None] * 8 + j[None, :]
    tl.store(out + o, tl.sum(v, AXIS))


@pytest.mark.entry("reduce 3-D axis {axis}")
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_three_axes(axis, rng, poisoned):
    x = rng.standard_normal((4, 8, 16)).astype(np.float32)
    expected = x.astype(np.float64).sum(axis)
    out = poisoned(expected.shape)
    sum_3d[(1,)](x, out, AXIS=axis)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)


@gridpact.jit
def softmax_of_rows(x, out, n, BLOCK: tl.constexpr):
    row = tl.program_id(0) * n
    o = tl.arange(0, BLOCK)
    v = tl.load(x + row + o, mask=o < n, other=-float("inf"))
    tl.store(out + row + o, tl.softmax(v, 0), mask=o < n)


@pytest.mark.entry("softmax (tl.softmax) 64x1000")
def test_softmax(rng, poisoned):
    x = rng.standard_normal((64, 1000)).astype(np.float32)
    out = poisoned((64, 1000))
    softmax_of_rows[(64,)](x, out, 1000, BLOCK=1024)
    np.testing.assert_allclose(out, scipy.special.softmax(x.astype(np.float64), 1), rtol=1e-5)


@gridpact.jit
def layer_norm(x, out, weight, bias, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0) * n
    o = tl.arange(0, BLOCK)
    inside = o < n
    v = tl.load(x + row + o, mask=inside, other=0.0)
    centred = tl.where(inside, v - tl.sum(v, 0) / n, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 0) / n + eps)
    w = tl.load(weight + o, mask=inside)
    b = tl.load(bias + o, mask=inside)
    tl.store(out + row + o, centred * scale * w + b, mask=inside)


@pytest.mark.entry("layernorm")
def test_layer_norm(rng, poisoned):
    x = rng.standard_normal((16, 1000)).astype(np.float32)
    weight, bias = rng.standard_normal((2, 1000)).astype(np.float32)
    out = poisoned((16, 1000))
    layer_norm[(16,)](x, out, weight, bias, 1000, 1e-5, BLOCK=1024)
    wide = x.astype(np.float64)
    deviation = np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    expected = (wide - wide.mean(1, keepdims=True)) / deviation * weight + bias
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)


@gridpact.jit
def argmax_of_ties(x, out, BLOCK: tl.constexpr):
    v = tl.load(x + tl.arange(0, BLOCK))
    tl.store(out, tl.argmax(v, 0))
    tl.store(out + 1, tl.argmax(v, 0, tie_break_left=False))


@pytest.mark.entry("argmax tie_break_left")
def test_ties(poisoned):
    x = np.zeros(256, np.float32)
    x[[5, 77]] = 1
    out = poisoned(2, np.int32)
    argmax_of_ties[(1,)](x, out, BLOCK=256)
    assert out[0] == 5
    assert out[1] in (5, 77)


@gridpact.jit
def max_with_index(x, most, where, BLOCK: tl.constexpr):
    v, i = tl.max(tl.load(x + tl.arange(0, BLOCK)), 0, return_indices=True)
    tl.store(most, v)
    tl.store(where, i)


@pytest.mark.entry("max return_indices")
def test_max_with_index(rng, poisoned):
    x = rng.standard_normal(256).astype(np.float32)
    most, where = poisoned(1), poisoned(1, np.int32)
    max_with_index[(1,)](x, most, where, BLOCK=256)
    assert most[0] == x.max()
    assert where[0] == x.argmax()
