"""Triton's random numbers, for any block size, are those of a NumPy Philox 4x32 with 10 rounds."""

import numpy as np
import pytest
import triton.language as tl

import gridpact

SEED = 1234
COUNT = 4096
ROUNDS = 10
LOW_HALF = np.uint64(0xFFFFFFFF)


def philox(seed, offsets):
    """Give four random words for each offset."""
    c0 = offsets.astype(np.uint64)
    c1 = c2 = c3 = np.zeros_like(c0)
    key0, key1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(ROUNDS):
        product0, product2 = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c2 = product2 >> np.uint64(32) ^ c1 ^ np.uint64(key0), product0 >> np.uint64(32) ^ c3 ^ np.uint64(key1)
        c1, c3 = product2 & LOW_HALF, product0 & LOW_HALF
        key0, key1 = key0 + 0x9E3779B9 & 0xFFFFFFFF, key1 + 0xBB67AE85 & 0xFFFFFFFF
    return [c.astype(np.uint32) for c in (c0, c1, c2, c3)]


def uniform(words):
    """Map words to [0, 1) as Triton does: the sign is folded, 31 bits count."""
    signed = words.view(np.int32)
    return np.where(signed < 0, ~signed, signed) * 4.6566127342e-10


@gridpact.jit
def draw_integers(out, seed, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + o, tl.randint(seed, o).to(tl.int32, bitcast=True))


@gridpact.jit
def draw_uniform(out, seed, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + o, tl.rand(seed, o))


@gridpact.jit
def draw_normal(out, seed, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + o, tl.randn(seed, o))


@gridpact.jit
def draw_sum_of_four(out, seed, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a, b, c, d = tl.rand4x(seed, o)
    tl.store(out + o, a + b + c + d)


def drawn(kernel, poisoned, dtype=np.float32):
    """Draw with two block sizes, which must not matter."""
    out, again = poisoned(COUNT, dtype), poisoned(COUNT, dtype)
    kernel[(COUNT // 256,)](out, SEED, BLOCK=256)
    kernel[(COUNT // 512,)](again, SEED, BLOCK=512)
    np.testing.assert_array_equal(out, again)
    return out


@pytest.mark.entry("tl.randint")
def test_randint(poisoned):
    out = drawn(draw_integers, poisoned, np.int32)
    np.testing.assert_array_equal(out.view(np.uint32), philox(SEED, np.arange(COUNT))[0])


@pytest.mark.entry("tl.rand")
def test_rand(poisoned):
    out = drawn(draw_uniform, poisoned)
    np.testing.assert_allclose(out, uniform(philox(SEED, np.arange(COUNT))[0]), rtol=1e-6, atol=1e-9)
    assert out.min() >= 0
    assert out.max() < 1
    assert abs(out.mean() - 0.5) < 0.02


@pytest.mark.entry("tl.randn")
def test_randn(poisoned):
    out = drawn(draw_normal, poisoned)
    first, second, _, _ = map(uniform, philox(SEED, np.arange(COUNT)))
    expected = np.sqrt(-2 * np.log(np.maximum(first, 1e-7))) * np.cos(2 * np.pi * second)  # Box and Muller
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
    assert abs(out.mean()) < 0.06
    assert abs(out.std() - 1) < 0.05


@pytest.mark.entry("tl.rand4x")
def test_rand4x(poisoned):
    out = drawn(draw_sum_of_four, poisoned)
    np.testing.assert_allclose(out, sum(map(uniform, philox(SEED, np.arange(COUNT)))), rtol=1e-6)
