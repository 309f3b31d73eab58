"""Elementwise work: masks and tails, integer arithmetic, selection, NaN, and misaligned views."""

import ml_dtypes
import numpy as np
import pytest
import triton.language as tl
from triton.language.extra import libdevice

import gridpact


@gridpact.jit
def copy(x, out, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + o, tl.load(x + o, mask=o < n), mask=o < n)


@gridpact.jit
def twice_plus_one(x, out, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + o, tl.load(x + o) * 2 + 1)


@pytest.mark.entry("no mask")
def test_no_mask(rng, poisoned):
    x = rng.standard_normal(1024).astype(np.float32)
    out = poisoned(1024)
    twice_plus_one[(4,)](x, out, BLOCK=256)
    np.testing.assert_allclose(out, x.astype(np.float64) * 2 + 1, rtol=1e-6, atol=1e-6)


@pytest.mark.entry("mask tail n=1000/1024")
def test_masked_tail(rng, poisoned):
    x = rng.standard_normal(1000).astype(np.float32)
    out = poisoned(1000)
    copy[(4,)](x, out, 1000, BLOCK=256)
    np.testing.assert_array_equal(out, x)


@pytest.mark.entry("mask BLOCK 1")
def test_block_of_one(rng, poisoned):
    x = rng.standard_normal(7).astype(np.float32)
    out = poisoned(7)
    copy[(7,)](x, out, 7, BLOCK=1)
    np.testing.assert_array_equal(out, x)


@pytest.mark.entry("BLOCK 65536 in one program")
def test_block_of_65536(rng, poisoned):
    x = rng.standard_normal(65000).astype(np.float32)
    out = poisoned(65000)
    copy[(1,)](x, out, 65000, BLOCK=65536)
    np.testing.assert_array_equal(out, x)


@gridpact.jit
def copy_or_seven(x, out, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + o, tl.load(x + o, mask=o < n, other=7))


@pytest.mark.entry("mask other=7")
def test_other_where_masked(rng, poisoned):
    x = rng.standard_normal(1000).astype(np.float32)
    out = poisoned(1024)
    copy_or_seven[(4,)](x, out, 1000, BLOCK=256)
    np.testing.assert_array_equal(out, np.append(x, np.full(24, 7, np.float32)))


@gridpact.jit
def divide(a, b, quotient, remainder, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(quotient + o, tl.load(a + o) // tl.load(b + o))
    tl.store(remainder + o, tl.load(a + o) % tl.load(b + o))


@pytest.mark.entry("int div/mod signed")
def test_signed_division_truncates(rng, poisoned):
    a = rng.integers(-1000, 1000, 256).astype(np.int32)
    b = (rng.integers(1, 50, 256) * rng.choice([-1, 1], 256)).astype(np.int32)
    quotient, remainder = poisoned(256, np.int32), poisoned(256, np.int32)
    divide[(1,)](a, b, quotient, remainder, BLOCK=256)
    np.testing.assert_array_equal(quotient, np.trunc(a / b).astype(np.int32))
    np.testing.assert_array_equal(remainder, np.fmod(a, b))


@pytest.mark.entry("int div/mod unsigned 64")
def test_unsigned_division(rng, poisoned):
    a = rng.integers(0, 2**64, 256, dtype=np.uint64)
    b = rng.integers(1, 50, 256, dtype=np.uint64)
    quotient, remainder = poisoned(256, np.uint64), poisoned(256, np.uint64)
    divide[(1,)](a, b, quotient, remainder, BLOCK=256)
    np.testing.assert_array_equal(quotient, a // b)
    np.testing.assert_array_equal(remainder, a % b)


@gridpact.jit
def fmod_of_point_three(x, out, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    v = tl.load(x + o)
    tl.store(out + o, libdevice.fmod(v, v * 0 + 0.3))


@pytest.mark.entry("float mod")
def test_float_modulo(rng, poisoned):
    x = (rng.standard_normal(256) * 10).astype(np.float32)
    out = poisoned(256)
    fmod_of_point_three[(1,)](x, out, BLOCK=256)
    np.testing.assert_allclose(out, np.fmod(x, np.float32(0.3)), rtol=1e-5, atol=1e-5)


@gridpact.jit
def shift_and_invert(x, out, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    v = tl.load(x + o)
    tl.store(out + o, ((v << 3) ^ (v >> 2)) | (~v & 15))


@pytest.mark.entry("shifts/xor/not")
def test_bit_operations(rng, poisoned):
    x = rng.integers(-1000, 1000, 256).astype(np.int32)
    out = poisoned(256, np.int32)
    shift_and_invert[(1,)](x, out, BLOCK=256)
    np.testing.assert_array_equal(out, ((x << 3) ^ (x >> 2)) | (~x & 15))


@gridpact.jit
def sign_extend(x, out, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    v = tl.load(x + o).to(tl.int32)
    tl.store(out + o, ((v << 4) >> 4).to(tl.int8))


@pytest.mark.entry("int8 sign-extend shifts")
def test_int8_is_sign_extended(poisoned):
    x = np.arange(-128, 128).astype(np.int8)
    out = poisoned(256, np.int8)
    sign_extend[(1,)](x, out, BLOCK=256)
    np.testing.assert_array_equal(out, x)


@gridpact.jit
def high_half(a, b, out, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(out + o, tl.umulhi(tl.load(a + o), tl.load(b + o)))


@pytest.mark.entry("umulhi u{bits}")
@pytest.mark.parametrize("bits", [32, 64])
def test_high_half_of_product(bits, rng, poisoned):
    dtype = np.dtype(f"uint{bits}")
    a, b = rng.integers(0, 2**bits, (2, 256), dtype=dtype)
    out = poisoned(256, dtype)
    high_half[(1,)](a, b, out, BLOCK=256)
    product = a.astype(object) * b.astype(object)  # Python's integers
    np.testing.assert_array_equal(out, (product >> bits).astype(dtype))


@gridpact.jit
def select(x, out, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    v = tl.load(x + o)
    tl.store(out + o, tl.where(v > 0, v, -v * 3))


@pytest.mark.entry("where")
def test_where(rng, poisoned):
    x = rng.standard_normal(256).astype(np.float32)
    out = poisoned(256)
    select[(1,)](x, out, BLOCK=256)
    np.testing.assert_allclose(out, np.where(x > 0, x, x.astype(np.float64) * -3), rtol=1e-6)


@gridpact.jit
def extremes(a, b, least, most, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(least + o, tl.minimum(tl.load(a + o), tl.load(b + o)))
    tl.store(most + o, tl.maximum(tl.load(a + o), tl.load(b + o)))


def check_extremes(dtype, rng, poisoned):
    a, b = rng.standard_normal((2, 256)).astype(dtype)
    least, most = poisoned(256, dtype), poisoned(256, dtype)
    extremes[(1,)](a, b, least, most, BLOCK=256)
    np.testing.assert_array_equal(least.astype(np.float64), np.minimum(a, b).astype(np.float64))
    np.testing.assert_array_equal(most.astype(np.float64), np.maximum(a, b).astype(np.float64))


@pytest.mark.entry("minimum/maximum f32")
def test_minimum_and_maximum_of_float32(rng, poisoned):
    check_extremes(np.float32, rng, poisoned)


@pytest.mark.entry("minimum/maximum bf16")
def test_minimum_and_maximum_of_bfloat16(rng, poisoned):
    check_extremes(ml_dtypes.bfloat16, rng, poisoned)


@gridpact.jit
def clamp(x, out, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(out + o, tl.clamp(tl.load(x + o), -0.5, 0.5))


@pytest.mark.entry("clamp")
def test_clamp(rng, poisoned):
    x = rng.standard_normal(256).astype(np.float32)
    out = poisoned(256)
    clamp[(1,)](x, out, BLOCK=256)
    np.testing.assert_array_equal(out, np.clip(x, -0.5, 0.5))


@gridpact.jit
def positive_part(x, without_nan, with_nan, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    v = tl.load(x + o)
    tl.store(without_nan + o, tl.maximum(v, 0.0))
    tl.store(with_nan + o, tl.maximum(v, 0.0, propagate_nan=tl.PropagateNan.ALL))


@pytest.mark.entry("maximum NaN semantics")
def test_maximum_of_nan(rng, poisoned):
    x = rng.standard_normal(64).astype(np.float32)
    x[::4] = np.nan
    without_nan, with_nan = poisoned(64), poisoned(64)
    with_nan[:] = -1  # NaN would be right for some
    positive_part[(1,)](x, without_nan, with_nan, BLOCK=64)
    np.testing.assert_array_equal(without_nan, np.fmax(x, 0))
    np.testing.assert_array_equal(with_nan, np.maximum(x, 0))


# ------------------------------------------------------------------------------------------------- misaligned views


def placed(array, offset):
    """Copy an array to `offset` elements past a 16-byte boundary."""
    raw = np.zeros(array.nbytes + 16 + offset * array.itemsize, np.uint8)
    begin = -raw.ctypes.data % 16 + offset * array.itemsize
    view = raw[begin : begin + array.nbytes].view(array.dtype)
    view[:] = array
    return view


@pytest.mark.parametrize("dtype", ["int8", "int16", "float16", "bfloat16", "float32", "float64", "int64"])
@pytest.mark.parametrize(("x_offset", "out_offset"), [(1, 1), (1, 0), (0, 1), (0, 0)])
def test_alignment_hint_follows_the_address(x_offset, out_offset, dtype, rng, poisoned):
    """Views one element past a 16-byte boundary compute the same, and their binary does not promise alignment."""
    x = placed(rng.integers(-60, 60, 1024).astype(dtype), x_offset)
    out = poisoned(1024, dtype, offset=out_offset)
    is_aligned = [pointer.ctypes.data % 16 == 0 for pointer in (x, out)]
    assert is_aligned == [x_offset * x.itemsize % 16 == 0, out_offset * x.itemsize % 16 == 0]
    compiled = twice_plus_one[(4,)](x, out, BLOCK=256)
    np.testing.assert_array_equal(out.astype(np.float64), (x * 2 + 1).astype(np.float64))
    assert compiled.asm["ttir"].count("tt.divisibility") == sum(is_aligned)


@pytest.mark.parametrize("offset", [1, 2, 3])
def test_misaligned_masked_tail(offset, rng, poisoned):
    x = placed(rng.standard_normal(1000).astype(np.float32), offset)
    out = poisoned(1000, offset=offset)
    copy[(4,)](x, out, 1000, BLOCK=256)
    np.testing.assert_array_equal(out, x)


def test_misaligned_extremes(rng, poisoned):
    a, b = (placed(rng.standard_normal(256).astype(np.float32), 1) for _ in range(2))
    least, most = poisoned(256, offset=1), poisoned(256, offset=3)
    extremes[(1,)](a, b, least, most, BLOCK=256)
    np.testing.assert_array_equal(least, np.minimum(a, b))
    np.testing.assert_array_equal(most, np.maximum(a, b))
