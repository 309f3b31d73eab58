"""Control flow: loops of every kind, branches, early returns, and calls of helpers."""

import numpy as np
import pytest
import triton.language as tl

import gridpact


@gridpact.jit
def sum_of_rows(x, out, n, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for i in range(n):
        total += tl.load(x + i * BLOCK + o)
    tl.store(out + o, total)


@pytest.mark.entry("for range(n)")
def test_for(rng, poisoned):
    x = rng.standard_normal((10, 256)).astype(np.float32)
    out = poisoned(256)
    sum_of_rows[(1,)](x, out, 10, BLOCK=256)
    np.testing.assert_allclose(out, x.astype(np.float64).sum(0), rtol=1e-5, atol=1e-5)


@gridpact.jit
def sum_downwards(out, n):
    total = 0
    for i in range(n, 0, -2):
        total += i
    tl.store(out, total)


@pytest.mark.entry("for range(n,0,-2)")
def test_for_with_negative_step(poisoned):
    out = poisoned(1, np.int32)
    sum_downwards[(1,)](out, 11)
    assert out[0] == 11 + 9 + 7 + 5 + 3 + 1


@gridpact.jit
def weighted_sum_of_rows(x, out, N: tl.constexpr, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for i in tl.static_range(N):
        total += tl.load(x + i * BLOCK + o) * i
    tl.store(out + o, total)


@pytest.mark.entry("static_range")
def test_static_range(rng, poisoned):
    x = rng.standard_normal((4, 256)).astype(np.float32)
    out = poisoned(256)
    weighted_sum_of_rows[(1,)](x, out, N=4, BLOCK=256)
    np.testing.assert_allclose(out, np.arange(4) @ x.astype(np.float64), rtol=1e-5, atol=1e-5)


@gridpact.jit
def sum_of_rows_in_stages(x, out, n, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for i in tl.range(0, n, num_stages=3):
        total += tl.load(x + i * BLOCK + o)
    tl.store(out + o, total)


@pytest.mark.entry("tl.range num_stages=3")
def test_pipelined_range(rng, poisoned):
    x = rng.standard_normal((10, 256)).astype(np.float32)
    out = poisoned(256)
    sum_of_rows_in_stages[(1,)](x, out, 10, BLOCK=256)
    np.testing.assert_allclose(out, x.astype(np.float64).sum(0), rtol=1e-5, atol=1e-5)


@gridpact.jit
def sum_of_squares(out, n):
    i = 0
    total = 0
    while i < n:
        total += i * i
        i += 1
    tl.store(out + tl.program_id(0), total + tl.program_id(0))


@pytest.mark.entry("while")
def test_while(poisoned):
    out = poisoned(8, np.int32)
    sum_of_squares[(8,)](out, 10)
    np.testing.assert_array_equal(out, sum(i * i for i in range(10)) + np.arange(8))


@gridpact.jit
def branch(x, out, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + o)
    if tl.program_id(0) % 2 == 0:
        tl.store(out + o, v + 1)
    else:
        if n > 3:
            tl.store(out + o, v - 1)
        else:
            tl.store(out + o, v * 5)


@pytest.mark.entry("if/else nested")
@pytest.mark.parametrize("n", [2, 4])
def test_nested_if(n, rng, poisoned):
    x = rng.integers(-9, 9, (4, 256)).astype(np.float32)
    out = poisoned((4, 256))
    branch[(4,)](x, out, n, BLOCK=256)
    is_even = np.arange(4)[:, None] % 2 == 0
    np.testing.assert_array_equal(out, np.where(is_even, x + 1, x - 1 if n > 3 else x * 5))


@gridpact.jit
def sum_in_first_programs(x, out, n, BLOCK: tl.constexpr):
    if tl.program_id(0) >= n:
        return
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + o, tl.sum(tl.load(x + o), 0) + tl.zeros((BLOCK,), tl.float32))


@pytest.mark.entry("early return (before a reduction)")
def test_early_return(rng, poisoned):
    x = rng.standard_normal((4, 256)).astype(np.float32)
    out = poisoned((4, 256))
    sum_in_first_programs[(4,)](x, out, 2, BLOCK=256)
    expected = np.broadcast_to(x.astype(np.float64).sum(1, keepdims=True), (4, 256))
    np.testing.assert_allclose(out[:2], expected[:2], rtol=1e-5, atol=1e-5)
    assert np.isnan(out[2:]).all()


@gridpact.jit
def sum_or_max(x, out, wants_sum, BLOCK: tl.constexpr):
    v = tl.load(x + tl.arange(0, BLOCK))
    if tl.load(wants_sum + tl.program_id(0)) > 0:  # noqa: SIM108  (a branch, not a selection)
        r = tl.sum(v, 0)
    else:
        r = tl.max(v, 0)
    tl.store(out + tl.program_id(0), r)


@pytest.mark.entry("reduction inside uniform if")
def test_reduction_inside_if(rng, poisoned):
    x = rng.standard_normal(256).astype(np.float32)
    wants_sum = np.array([1, 0, 1, 0], np.int32)
    out = poisoned(4)
    sum_or_max[(4,)](x, out, wants_sum, BLOCK=256)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(out, np.where(wants_sum, wide.sum(), wide.max()), rtol=1e-5, atol=1e-5)


@gridpact.jit
def multiply_and_add_one(a, b):
    return a * b + 1.0


@gridpact.jit(noinline=True)
def multiply_and_add_one_out_of_line(a, b):
    return a * b + 1.0


@gridpact.jit
def call(x, out, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(out + o, multiply_and_add_one(tl.load(x + o), 2.0))


@gridpact.jit
def call_out_of_line(x, out):
    tl.store(out, multiply_and_add_one_out_of_line(tl.load(x), 2.0))


@pytest.mark.entry("call jit function (inlined)")
def test_call(rng, poisoned):
    x = rng.integers(-9, 9, 256).astype(np.float32)
    out = poisoned(256)
    call[(1,)](x, out, BLOCK=256)
    np.testing.assert_array_equal(out, x * 2 + 1)


@pytest.mark.entry("call noinline function")
def test_call_out_of_line(poisoned):
    """A true call would abort the process in the CPU's vectoriser, so gridpact inlines it there."""
    x, out = np.array([2.5], np.float32), poisoned(1)
    call_out_of_line[(1,)](x, out)
    np.testing.assert_array_equal(out, [6.0])


@gridpact.jit
def floor_of_log2(x, out, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    v = tl.load(x + o)
    steps = tl.zeros((BLOCK,), tl.int32)
    while tl.max(v, 0) > 1:
        steps += (v > 1).to(tl.int32)
        v = tl.where(v > 1, v // 2, v)
    tl.store(out + o, steps)


@pytest.mark.entry("while with reduction condition")
def test_while_over_a_reduction(rng, poisoned):
    x = rng.integers(1, 4096, 256).astype(np.int32)
    out = poisoned(256, np.int32)
    floor_of_log2[(1,)](x, out, BLOCK=256)
    np.testing.assert_array_equal(out, np.floor(np.log2(x)))


@gridpact.jit
def sum_doubled_once(x, out, n, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    total = 0.0
    for i in range(n):
        v = tl.load(x + i * BLOCK + o)
        total += tl.sum(v * v, 0)
        if i == 2:
            total = total * 2
    tl.store(out, total)


@pytest.mark.entry("reduction in a loop + scalar carry")
def test_scalar_carried_by_a_loop(rng, poisoned):
    x = rng.standard_normal((5, 256)).astype(np.float32)
    out = poisoned(1)
    sum_doubled_once[(1,)](x, out, 5, BLOCK=256)
    squares = (x.astype(np.float64) ** 2).sum(1)
    np.testing.assert_allclose(out, [squares[:3].sum() * 2 + squares[3:].sum()], rtol=1e-5)
