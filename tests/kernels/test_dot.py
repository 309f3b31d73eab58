"""`tl.dot` in all its types and shapes, and the matrix kernels built on it.

Operands are small integers wherever that tests enough, so that every product and sum is exact. Compiling takes seconds
for each: without matrix instructions the backend unrolls a dot into one multiply-add per element.
"""

import ml_dtypes
import numpy as np
import pytest
import scipy.special
import triton.language as tl
from triton.compiler.errors import CompilationError

import gridpact


@gridpact.jit
def dot(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr, OUT: tl.constexpr):
    m = tl.arange(0, M)[:, None]
    n = tl.arange(0, N)[None, :]
    left = tl.load(a + m * K + tl.arange(0, K)[None, :])
    right = tl.load(b + tl.arange(0, K)[:, None] * N + n)
    product = tl.dot(left, right, input_precision=PRECISION, out_dtype=OUT)
    tl.store(c + m * N + n, product.to(c.dtype.element_ty))


def integers(rng, shape, dtype, reach=4):
    return rng.integers(-reach, reach + 1, shape).astype(dtype)


def check_dot(rng, poisoned, shape, dtype, *, precision=None, out=tl.float32, out_dtype=np.float32):
    m, n, k = shape
    a, b = integers(rng, (m, k), dtype), integers(rng, (k, n), dtype)
    c = poisoned((m, n), out_dtype)
    dot[(1,)](a, b, c, M=m, N=n, K=k, PRECISION=precision, OUT=out)
    np.testing.assert_array_equal(c.astype(np.float64), a.astype(np.float64) @ b.astype(np.float64))


@pytest.mark.entry("dot f32 ieee {m}x{n}x{k}")
@pytest.mark.parametrize(
    ("m", "n", "k"), [(16, 16, 16), (32, 32, 32), (64, 64, 64), (128, 128, 32), (16, 64, 128), (64, 16, 16)]
)
def test_float32(m, n, k, rng, poisoned):
    check_dot(rng, poisoned, (m, n, k), np.float32, precision="ieee")


@pytest.mark.entry("dot f32 {precision}")
@pytest.mark.parametrize("precision", ["tf32", "tf32x3"])
def test_precision(precision, rng, poisoned):
    check_dot(rng, poisoned, (32, 32, 32), np.float32, precision=precision)


@pytest.mark.entry("dot {dtype} {shape}")
@pytest.mark.parametrize("shape", [(16, 16, 16), (64, 64, 64), (32, 128, 64)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_floats(dtype, shape, rng, poisoned):
    check_dot(rng, poisoned, shape, dtype)


@pytest.mark.entry("dot f16 out f16")
def test_float16_accumulated_in_float16(rng, poisoned):
    check_dot(rng, poisoned, (32, 32, 32), np.float16, out=tl.float16, out_dtype=np.float16)


@pytest.mark.entry("dot int8 -> int32 32x32x32")
def test_int8(rng, poisoned):
    check_dot(rng, poisoned, (32, 32, 32), np.int8, out=tl.int32, out_dtype=np.int32)


@pytest.mark.entry("dot int8 64x64x64")
def test_int8_64(rng, poisoned):
    check_dot(rng, poisoned, (64, 64, 64), np.int8, out=tl.int32, out_dtype=np.int32)


@pytest.mark.entry("dot fp8e5")
def test_fp8e5(rng, poisoned):
    check_dot(rng, poisoned, (32, 32, 32), ml_dtypes.float8_e5m2)


@pytest.mark.entry("dot fp8e4nv")
def test_fp8e4nv(rng, poisoned):
    check_dot(rng, poisoned, (32, 32, 32), ml_dtypes.float8_e4m3fn)


@pytest.mark.gap("dot f64")
def test_float64_that_the_language_lacks(rng, poisoned):
    with pytest.raises(CompilationError) as raised:
        check_dot(rng, poisoned, (16, 16, 16), np.float64, precision="ieee", out=tl.float64, out_dtype=np.float64)
    assert "Unsupported lhs dtype fp64" in str(raised.value.__cause__)


@gridpact.jit
def dot_transposed(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m = tl.arange(0, M)[:, None]
    n = tl.arange(0, N)
    k = tl.arange(0, K)[None, :]
    product = tl.dot(tl.load(a + m * K + k), tl.trans(tl.load(b + n[:, None] * K + k)), input_precision="ieee")
    tl.store(c + m * N + n[None, :], product)


@pytest.mark.entry("dot with tl.trans")
def test_transposed_operand(rng, poisoned):
    a, b = rng.standard_normal((2, 32, 64)).astype(np.float32)
    c = poisoned((32, 32))
    dot_transposed[(1,)](a, b, c, M=32, N=32, K=64)
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.T.astype(np.float64), rtol=1e-5, atol=1e-5)


@gridpact.jit
def dot_chained(a, b, c, M: tl.constexpr):
    o = tl.arange(0, M)[:, None] * M + tl.arange(0, M)[None, :]
    right = tl.load(b + o)
    first = tl.dot(tl.load(a + o), right)
    tl.store(c + o, tl.dot(first.to(tl.float16), right))


@pytest.mark.entry("dot chained f16")
def test_chained(rng, poisoned):
    a, b = integers(rng, (2, 32, 32), np.float16, reach=2)
    c = poisoned((32, 32))
    dot_chained[(1,)](a, b, c, M=32)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    np.testing.assert_array_equal(c, wide_a @ wide_b @ wide_b)


@gridpact.jit
def dot_batched(a, b, c):
    i = tl.arange(0, 2)[:, None, None]
    j = tl.arange(0, 32)[None, :, None]
    k = tl.arange(0, 32)[None, None, :]
    o = i * 1024 + j * 32 + k
    tl.store(c + o, tl.dot(tl.load(a + o), tl.load(b + o), input_precision="ieee"))


@pytest.mark.entry("dot 3-D batch")
def test_batch(rng, poisoned):
    a, b = rng.standard_normal((2, 2, 32, 32)).astype(np.float32)
    c = poisoned((2, 32, 32))
    dot_batched[(1,)](a, b, c)
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-5, atol=1e-5)


@gridpact.jit
def dot_scaled(a, a_scale, b, b_scale, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m = tl.arange(0, M)[:, None]
    n = tl.arange(0, N)[:, None]
    k = tl.arange(0, K)
    scales = tl.arange(0, K // 32)[None, :]
    left = tl.load(a + m * K + k[None, :])
    right = tl.load(b + k[:, None] * N + tl.arange(0, N)[None, :])
    left_scale = tl.load(a_scale + m * (K // 32) + scales)
    right_scale = tl.load(b_scale + n * (K // 32) + scales)
    product = tl.dot_scaled(left, left_scale, "e5m2", right, right_scale, "e5m2")
    tl.store(c + m * N + tl.arange(0, N)[None, :], product)


@pytest.mark.gap("dot_scaled e5m2")
def test_scaled_dot_that_the_backend_lacks(poisoned):
    a, b = np.zeros((32, 64), np.uint8), np.zeros((64, 32), np.uint8)
    scale = np.full((32, 2), 127, np.uint8)
    c = poisoned((32, 32))
    with pytest.raises(RuntimeError, match="PassManager"):
        dot_scaled[(1,)](a, scale, b, scale.copy(), c, M=32, N=32, K=64)
    assert np.isnan(c).all()


@gridpact.jit
def matmul(a, b, c, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    m = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    n = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for begin in range(0, K, BLOCK_K):
        k = begin + tl.arange(0, BLOCK_K)
        left = tl.load(a + m * K + k[None, :], mask=(m < M) & (k[None, :] < K), other=0.0)
        right = tl.load(b + k[:, None] * N + n, mask=(k[:, None] < K) & (n < N), other=0.0)
        total = tl.dot(left, right, total, input_precision="ieee")
    tl.store(c + m * N + n, total, mask=(m < M) & (n < N))


@pytest.mark.entry("matmul loop f32 masked 100x90x70 num_stages={stages}")
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_masked_matmul(stages, rng, poisoned):
    a = rng.standard_normal((100, 70)).astype(np.float32)
    b = rng.standard_normal((70, 90)).astype(np.float32)
    c = poisoned((100, 90))
    matmul[(4, 3)](a, b, c, 100, 90, 70, BLOCK_M=32, BLOCK_N=32, BLOCK_K=32, num_stages=stages)
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-5, atol=1e-5)


@pytest.mark.entry("matmul loop f16 128^3")
def test_float16_matmul(rng, poisoned):
    a, b = integers(rng, (2, 128, 128), np.float16, reach=2)
    c = poisoned((128, 128))
    matmul[(2, 2)](a, b, c, 128, 128, 128, BLOCK_M=64, BLOCK_N=64, BLOCK_K=32)
    np.testing.assert_array_equal(c, a.astype(np.float64) @ b.astype(np.float64))


@gridpact.jit
def attention(q, k, v, out, N, scale, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr):
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, D)
    query = tl.load(q + m[:, None] * D + d[None, :])
    most = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    weight = tl.zeros((BLOCK_M,), tl.float32)
    total = tl.zeros((BLOCK_M, D), tl.float32)
    for begin in range(0, N, BLOCK_N):
        n = begin + tl.arange(0, BLOCK_N)
        key = tl.load(k + n[None, :] * D + d[:, None])
        value = tl.load(v + n[:, None] * D + d[None, :])
        score = tl.dot(query, key, input_precision="ieee") * scale
        new_most = tl.maximum(most, tl.max(score, 1))
        correction = tl.exp(most - new_most)
        e = tl.exp(score - new_most[:, None])
        weight = weight * correction + tl.sum(e, 1)
        total = total * correction[:, None] + tl.dot(e, value, input_precision="ieee")
        most = new_most
    tl.store(out + m[:, None] * D + d[None, :], total / weight[:, None])


@pytest.mark.entry("flash attention f32")
def test_attention(rng, poisoned):
    q = rng.standard_normal((64, 32)).astype(np.float32)
    k, v = rng.standard_normal((2, 128, 32)).astype(np.float32)
    out = poisoned((64, 32))
    attention[(2,)](q, k, v, out, 128, 0.2, BLOCK_M=32, BLOCK_N=32, D=32)
    scores = 0.2 * (q.astype(np.float64) @ k.T.astype(np.float64))
    expected = scipy.special.softmax(scores, 1) @ v.astype(np.float64)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)
