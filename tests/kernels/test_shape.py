"""Operations that move elements: broadcasting, transposition, reshaping, joining, order of programs."""

import numpy as np
import pytest
import triton.language as tl

import gridpact


@gridpact.jit
def broadcast(x, out, R: tl.constexpr, C: tl.constexpr):
    rows, columns = tl.arange(0, R), tl.arange(0, C)
    by_row = tl.broadcast_to(tl.load(x + rows)[:, None], (R, C))
    by_column = tl.expand_dims(tl.load(x + columns), 0)
    tl.store(out + rows[:, None] * C + columns[None, :], by_row * 2 + by_column)


@pytest.mark.entry("broadcast_to/expand_dims")
def test_broadcast(rng, poisoned):
    x = rng.standard_normal(64).astype(np.float32)
    out = poisoned((16, 64))
    broadcast[(1,)](x, out, R=16, C=64)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(out, wide[:16, None] * 2 + wide[None, :], rtol=1e-6, atol=1e-6)


@gridpact.jit
def transpose(x, out, R: tl.constexpr, C: tl.constexpr):
    rows, columns = tl.arange(0, R), tl.arange(0, C)
    v = tl.load(x + rows[:, None] * C + columns[None, :])
    tl.store(out + columns[:, None] * R + rows[None, :], tl.trans(v))


@pytest.mark.entry("trans 2-D")
def test_transpose(rng, poisoned):
    x = rng.standard_normal((32, 64)).astype(np.float32)
    out = poisoned((64, 32))
    transpose[(1,)](x, out, R=32, C=64)
    np.testing.assert_array_equal(out, x.T)


@gridpact.jit
def permute(x, out):
    i, j, k = tl.arange(0, 4), tl.arange(0, 8), tl.arange(0, 16)
    v = tl.load(x + i[:, None, None] * 128 + j[None, :, None] * 16 + k[None, None, :])
    o = k[:, None, None] * 32 + i[None, :, None] * 8 + j[None, None, :]
    tl.store(out + o, tl.permute(v, (2, 0, 1)))


@pytest.mark.entry("permute 3-D")
def test_permute(rng, poisoned):
    x = rng.standard_normal((4, 8, 16)).astype(np.float32)
    out = poisoned((16, 4, 8))
    permute[(1,)](x, out)
    np.testing.assert_array_equal(out, x.transpose(2, 0, 1))


@gridpact.jit
def reshape_and_transpose(x, out):
    v = tl.reshape(tl.load(x + tl.arange(0, 256)), (8, 32))
    tl.store(out + tl.arange(0, 8)[:, None] + tl.arange(0, 32)[None, :] * 8, v)


@pytest.mark.entry("reshape")
def test_reshape(rng, poisoned):
    x = rng.standard_normal(256).astype(np.float32)
    out = poisoned((32, 8))
    reshape_and_transpose[(1,)](x, out)
    np.testing.assert_array_equal(out, x.reshape(8, 32).T)


@gridpact.jit
def sum_of_groups(x, out):
    v = tl.reshape(tl.load(x + tl.arange(0, 256)), (16, 16))
    tl.store(out + tl.arange(0, 16), tl.sum(v, 1))


@pytest.mark.entry("reshape + reduce")
def test_reshape_and_reduce(rng, poisoned):
    x = rng.standard_normal(256).astype(np.float32)
    out = poisoned(16)
    sum_of_groups[(1,)](x, out)
    np.testing.assert_allclose(out, x.astype(np.float64).reshape(16, 16).sum(1), rtol=1e-5, atol=1e-5)


@gridpact.jit
def join(x, out):
    o = tl.arange(0, 128)
    v = tl.join(tl.load(x + o), tl.load(x + 128 + o))
    tl.store(out + o[:, None] * 2 + tl.arange(0, 2)[None, :], v)


@pytest.mark.entry("join")
def test_join(rng, poisoned):
    x = rng.standard_normal(256).astype(np.float32)
    out = poisoned((128, 2))
    join[(1,)](x, out)
    np.testing.assert_array_equal(out, np.stack([x[:128], x[128:]], 1))


@gridpact.jit
def split(x, out):
    o = tl.arange(0, 128)
    even, odd = tl.split(tl.load(x + o[:, None] * 2 + tl.arange(0, 2)[None, :]))
    tl.store(out + o, even)
    tl.store(out + 128 + o, odd)


@pytest.mark.entry("split")
def test_split(rng, poisoned):
    x = rng.standard_normal(256).astype(np.float32)
    out = poisoned(256)
    split[(1,)](x, out)
    np.testing.assert_array_equal(out, np.append(x[::2], x[1::2]))


@gridpact.jit
def interleave(x, out):
    o = tl.arange(0, 128)
    tl.store(out + tl.arange(0, 256), tl.interleave(tl.load(x + o), tl.load(x + 128 + o)))


@pytest.mark.entry("interleave")
def test_interleave(rng, poisoned):
    x = rng.standard_normal(256).astype(np.float32)
    out = poisoned(256)
    interleave[(1,)](x, out)
    np.testing.assert_array_equal(out, x.reshape(2, 128).T.ravel())


@gridpact.jit
def concatenate(x, out, total):
    o = tl.arange(0, 128)
    v = tl.cat(tl.load(x + o), tl.load(x + 128 + o), can_reorder=True)
    tl.store(total, tl.sum(v, 0))
    tl.store(out + tl.arange(0, 256), v)


@pytest.mark.entry("cat can_reorder")
def test_concatenation_in_any_order(rng, poisoned):
    x = rng.standard_normal(256).astype(np.float32)
    out, total = poisoned(256), poisoned(1)
    concatenate[(1,)](x, out, total)
    np.testing.assert_array_equal(np.sort(out), np.sort(x))
    np.testing.assert_allclose(total, [x.astype(np.float64).sum()], rtol=1e-5, atol=1e-5)


@gridpact.jit
def flip(x, out):
    o = tl.arange(0, 256)
    tl.store(out + o, tl.flip(tl.load(x + o), 0))


@pytest.mark.entry("flip")
def test_flip(rng, poisoned):
    x = rng.standard_normal(256).astype(np.float32)
    out = poisoned(256)
    flip[(1,)](x, out)
    np.testing.assert_array_equal(out, x[::-1])


@gridpact.jit
def swizzled_coordinates(out):
    rows, columns = tl.num_programs(0), tl.num_programs(1)
    i, j = tl.swizzle2d(tl.program_id(0), tl.program_id(1), rows, columns, 2)
    tl.store(out + tl.program_id(0) * columns + tl.program_id(1), i * 100 + j)


@pytest.mark.entry("swizzle2d")
def test_swizzle(poisoned):
    """Rows are taken in groups of two, and each group is walked column by column."""
    out = poisoned((6, 4), np.int32)
    swizzled_coordinates[(6, 4)](out)
    expected = [(group + row) * 100 + column for group in (0, 2, 4) for column in range(4) for row in range(2)]
    np.testing.assert_array_equal(out.ravel(), expected)


@gridpact.jit
def fill(out):
    tl.store(out + tl.arange(0, 64), tl.full((64,), 3.5, tl.float32) + tl.zeros((64,), tl.float32))


@pytest.mark.entry("full/zeros")
def test_full_and_zeros(poisoned):
    out = poisoned(64)
    fill[(1,)](out)
    np.testing.assert_array_equal(out, np.full(64, 3.5))
