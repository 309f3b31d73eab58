"""Arguments of every kind on their way into a kernel, and grids of every shape."""

import numpy as np
import pytest
import triton.language as tl
from triton.compiler.errors import CompilationError

import gridpact


@gridpact.jit
def store_scalars(out, i8: tl.int8, i32, i64: tl.int64, f32, u64: tl.uint64):
    tl.store(out, i8.to(tl.float64))
    tl.store(out + 1, i32.to(tl.float64))
    tl.store(out + 2, i64.to(tl.float64))
    tl.store(out + 3, f32.to(tl.float64))
    tl.store(out + 4, u64.to(tl.float64))


@pytest.mark.entry("scalar args i8/i32/i64/f32/u64")
def test_scalars(poisoned):
    out = poisoned(5, np.float64)
    store_scalars[(1,)](out, -5, -7, 2**40 + 3, 1.5, 2**63 + 2**40)
    np.testing.assert_array_equal(out, [-5, -7, 2**40 + 3, 1.5, 2**63 + 2**40])


@gridpact.jit
def double_float64(out, f: tl.float64):
    tl.store(out, f * 2)


@pytest.mark.entry("scalar fp64 arg")
def test_float64_scalar(poisoned):
    out = poisoned(1, np.float64)
    double_float64[(1,)](out, 1 / 3)
    assert out[0] == 2 / 3


@gridpact.jit
def widen_halves(out, f: tl.float16, g: tl.bfloat16):
    tl.store(out, f.to(tl.float32))
    tl.store(out + 1, g.to(tl.float32))


@pytest.mark.entry("scalar fp16/bf16 arg (sig types)")
def test_16_bit_float_scalars(poisoned):
    out = poisoned(2)
    widen_halves[(1,)](out, 1.5, 2.5)
    np.testing.assert_array_equal(out, [1.5, 2.5])


@gridpact.jit
def one_or_two(out, flag):
    if flag:
        tl.store(out, 1)
    else:
        tl.store(out, 2)


@pytest.mark.entry("bool (i1) scalar arg")
@pytest.mark.parametrize(("flag", "expected"), [(True, 1), (False, 2)])
def test_bool_scalar(flag, expected, poisoned):
    out = poisoned(1, np.int32)
    one_or_two[(1,)](out, flag)
    assert out[0] == expected


@gridpact.jit
def add_bias(x, out, bias, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    v = tl.load(x + o)
    if bias is not None:
        v += tl.load(bias + o)
    tl.store(out + o, v)


@pytest.mark.entry("None arg")
def test_none(rng, poisoned):
    x, bias = rng.standard_normal((2, 64)).astype(np.float32)
    without, with_bias = poisoned(64), poisoned(64)
    add_bias[(1,)](x, without, None, BLOCK=64)
    add_bias[(1,)](x, with_bias, bias, BLOCK=64)
    np.testing.assert_array_equal(without, x)
    np.testing.assert_array_equal(with_bias, x + bias)


@gridpact.jit
def copy_without_third(x, out, unused, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(out + o, tl.load(x + o))


@pytest.mark.entry("null pointer arg unused")
def test_none_that_is_not_looked_at(rng, poisoned):
    x = rng.standard_normal(64).astype(np.float32)
    out = poisoned(64)
    copy_without_third[(1,)](x, out, None, BLOCK=64)
    np.testing.assert_array_equal(out, x)


@gridpact.jit
def scale_and_shift(out, parts, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(out + o, tl.load(parts[0] + o) * parts[1] + parts[2])


@pytest.mark.entry("tuple arg (ptr,int,float)")
def test_tuple(rng, poisoned):
    x = rng.standard_normal(64).astype(np.float32)
    out = poisoned(64)
    scale_and_shift[(1,)](out, (x, 3, 0.5), BLOCK=64)
    np.testing.assert_allclose(out, x.astype(np.float64) * 3 + 0.5, rtol=1e-6, atol=1e-6)


@gridpact.jit
def combine_nested(out, nested):
    tl.store(out, tl.load(nested[0][0]) + nested[1] * 10 + nested[0][1] * 100)


@pytest.mark.entry("nested tuple arg")
def test_nested_tuple(poisoned):
    out = poisoned(1, np.int32)
    combine_nested[(1,)](out, ((np.array([7], np.int32), 2), 5))
    assert out[0] == 7 + 50 + 200


@gridpact.jit
def weigh_twenty(out, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t):
    first = a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + 9 * i + 10 * j
    second = 11 * k + 12 * l + 13 * m + 14 * n + 15 * o + 16 * p + 17 * q + 18 * r + 19 * s + 20 * t
    tl.store(out, first + second)


@pytest.mark.entry("21 args")
def test_many(poisoned):
    out = poisoned(1, np.int32)
    values = range(2, 22)
    weigh_twenty[(1,)](out, *values)
    assert out[0] == sum(weight * value for weight, value in enumerate(values, 1))


@gridpact.jit
def use_constants(out, TEXT: tl.constexpr, NUMBER: tl.constexpr, DTYPE: tl.constexpr):
    if TEXT == "hello":
        tl.store(out, NUMBER)
    else:
        tl.store(out + 1, NUMBER)
    tl.store(out + 2 + tl.arange(0, 1), tl.full((1,), 300, DTYPE).to(tl.float32))


@pytest.mark.entry("constexpr args: str/float/tuple/dtype")
def test_constants(poisoned):
    out = poisoned(3)
    use_constants[(1,)](out, TEXT="hello", NUMBER=2.5, DTYPE=tl.int16)
    np.testing.assert_array_equal(out, [2.5, np.nan, 300])


@gridpact.jit
def sum_of_constant_pair(out, PAIR: tl.constexpr):
    tl.store(out, PAIR[0] + PAIR[1])


@pytest.mark.gap("constexpr tuple arg T[0]")
def test_constant_tuple_that_the_language_cannot_index(poisoned):
    with pytest.raises(CompilationError, match="'constexpr' object is not subscriptable"):
        sum_of_constant_pair[(1,)](poisoned(1, np.int32), PAIR=(3, 4))


@gridpact.jit
def load_through_pointer(addresses, out):
    pointer = tl.load(addresses).to(tl.pointer_type(tl.float32))
    tl.store(out, tl.load(pointer) + 1)


@pytest.mark.entry("pointer-to-pointer")
def test_pointer_in_memory(poisoned):
    x, out = np.array([41], np.float32), poisoned(1)
    load_through_pointer[(1,)](np.array([x.ctypes.data], np.int64), out)
    assert out[0] == 42


@gridpact.jit
def coordinates(out):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    index = (z * tl.num_programs(1) + y) * tl.num_programs(0) + x
    tl.store(out + index, x + y * 100 + z * 10000)


@pytest.mark.entry("3-D grid (7,5,3)")
def test_three_axes_of_the_grid(poisoned):
    out = poisoned((3, 5, 7), np.int32)
    coordinates[(7, 5, 3)](out)
    z, y, x = np.indices((3, 5, 7))
    np.testing.assert_array_equal(out, x + y * 100 + z * 10000)


@gridpact.jit
def add_one(x, out, BLOCK: tl.constexpr):
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + o, tl.load(x + o) + 1)


@pytest.mark.entry("grid 100000 programs")
def test_many_programs(rng, poisoned):
    x = rng.integers(-1000, 1000, 100_000 * 64).astype(np.float32)
    out = poisoned(x.size)
    add_one[(100_000,)](x, out, BLOCK=64)
    np.testing.assert_array_equal(out, x + 1)


@gridpact.jit
def store_y(out):
    tl.store(out + tl.program_id(1), tl.program_id(1) + tl.program_id(2))


@pytest.mark.entry("grid y=70000 (> 65535)")
def test_many_programs_on_y(poisoned):
    out = poisoned(70_000, np.int32)
    store_y[(1, 70_000, 1)](out)
    np.testing.assert_array_equal(out, np.arange(70_000))


@pytest.mark.entry("unaligned pointer (base+4 bytes)")
def test_unaligned_pointer(rng, poisoned):
    x = rng.integers(-1000, 1000, 1025).astype(np.float32)[1:]
    out = poisoned(1024, offset=1)
    assert x.ctypes.data % 16 == out.ctypes.data % 16 == 4
    add_one[(16,)](x, out, BLOCK=64)
    np.testing.assert_array_equal(out, x + 1)
