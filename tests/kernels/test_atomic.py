"""Atomic operations: by many programs on the same place, by each on its own, and as a lock."""

import numpy as np
import pytest
import triton.language as tl
from triton.compiler.errors import CompilationError

import gridpact

ADDABLE = ("int32", "int64", "uint32", "uint64", "float32", "float64", "float16")
ORDERED = ("int32", "uint32", "int64", "uint64", "float32", "float64")


@gridpact.jit
def add_to_eight_bins(x, out, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out + o % 8, tl.load(x + o, mask=o < n, other=0), mask=o < n)


@pytest.mark.entry("atomic_add {dtype}")
@pytest.mark.parametrize("dtype", ADDABLE)
def test_add(dtype, rng, poisoned):
    x = rng.integers(0, 3, 1000).astype(dtype)
    out = poisoned(8, dtype)
    out[:] = 7
    add_to_eight_bins[(4,)](x, out, 1000, BLOCK=256)
    np.testing.assert_array_equal(out, [x[bin::8].astype(np.float64).sum() + 7 for bin in range(8)])


@pytest.mark.gap("atomic_add {dtype}")
@pytest.mark.parametrize("dtype", ["bfloat16"])
def test_add_that_the_language_lacks(dtype):
    with pytest.raises(CompilationError, match="atomic_add"):
        add_to_eight_bins[(4,)](np.ones(1000, dtype), np.ones(8, dtype), 1000, BLOCK=256)


@gridpact.jit
def update_extremes(x, out, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + o)
    tl.atomic_max(out + o * 0, v)
    tl.atomic_min(out + 1 + o * 0, v)


@pytest.mark.entry("atomic_max/min {dtype}")
@pytest.mark.parametrize("dtype", ORDERED)
def test_max_and_min(dtype, rng, poisoned):
    low, high = (100, 1000) if dtype[0] == "u" else (-500, 500)
    x = rng.integers(low, high, 1024).astype(dtype)
    out = poisoned(2, dtype)
    out[:] = low + 200, high - 200
    update_extremes[(4,)](x, out, BLOCK=256)
    np.testing.assert_array_equal(out, [x.max(), x.min()])


@gridpact.jit
def combine_bits(x, out, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + o)
    tl.atomic_and(out + o * 0, v)
    tl.atomic_or(out + 1 + o * 0, v)
    tl.atomic_xor(out + 2 + o * 0, v)


@pytest.mark.entry("atomic and/or/xor {dtype}")
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_bitwise(dtype, rng, poisoned):
    x = (rng.integers(0, 2**20, 1024) << 8 | 3).astype(dtype)
    out = poisoned(3, dtype)
    out[:] = -1, 1 << 29, 12345
    combine_bits[(4,)](x, out, BLOCK=256)
    expected = [np.bitwise_and.reduce(x), np.bitwise_or.reduce(x) | 1 << 29, np.bitwise_xor.reduce(x) ^ 12345]
    np.testing.assert_array_equal(out, expected)


@gridpact.jit
def exchange(x, out, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    old = tl.atomic_xchg(out + o, tl.load(x + o))
    tl.store(x + o, old)


@pytest.mark.entry("atomic_xchg {dtype}")
@pytest.mark.parametrize("dtype", ["int32", "float32", "int64"])
def test_exchange(dtype):
    x, out = np.arange(1024).astype(dtype), np.arange(5000, 6024).astype(dtype)
    exchange[(4,)](x, out, BLOCK=256)
    np.testing.assert_array_equal(x, np.arange(5000, 6024))
    np.testing.assert_array_equal(out, np.arange(1024))


@gridpact.jit
def add_100_where_equal(x, out, old, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    v = tl.load(x + o)
    tl.store(old + o, tl.atomic_cas(out + o, v, v + 100))


@pytest.mark.entry("atomic_cas tensor i32")
def test_compare_and_swap(poisoned):
    x = np.arange(256).astype(np.int32)
    before = np.where(x % 2, x, -1).astype(np.int32)
    out, old = before.copy(), poisoned(256, np.int32)
    add_100_where_equal[(1,)](x, out, old, BLOCK=256)
    np.testing.assert_array_equal(old, before)
    np.testing.assert_array_equal(out, np.where(x % 2, x + 100, -1))


@gridpact.jit
def count_under_lock(lock, count):
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(count, tl.load(count) + 1)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@pytest.mark.entry("atomic_cas spin lock, 64 programs")
def test_spin_lock():
    lock, count = np.zeros(1, np.int32), np.full(1, 1000, np.int32)
    count_under_lock[(64,)](lock, count)
    assert count[0] == 1064
    assert lock[0] == 0


@gridpact.jit
def take_ticket(out):
    ticket = tl.atomic_add(out, 1)
    tl.store(out + 1 + ticket, ticket)


@pytest.mark.entry("atomic scalar ticket")
def test_each_program_gets_its_own_ticket(poisoned):
    out = poisoned(101, np.int32)
    out[0] = 0
    take_ticket[(100,)](out)
    np.testing.assert_array_equal(out, [100, *range(100)])


@gridpact.jit
def add_in_three_orders(out):
    tl.atomic_add(out, 1, sem="relaxed", scope="cta")
    tl.atomic_add(out + 1, 1, sem="acq_rel", scope="sys")
    tl.atomic_add(out + 2, 1, sem="release", scope="gpu")


@pytest.mark.entry("atomic sem/scope")
def test_memory_orders_and_scopes(poisoned):
    out = poisoned(3, np.int32)
    out[:] = 5, 6, 7
    add_in_three_orders[(10,)](out)
    np.testing.assert_array_equal(out, [15, 16, 17])
