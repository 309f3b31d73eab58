"""Triton's own `autotune` and `heuristics` on gridpact.jit: one measures block sizes, the other works one out."""

import numpy as np
import triton
import triton.language as tl

import gridpact


@triton.autotune([triton.Config({"BLOCK": block}) for block in (256, 1024, 4096)], key=["n"])
@gridpact.jit
def axpy_kernel(a, x, y, out, n, BLOCK: tl.constexpr):
    """Do one block of a * x + y; out of place, since tuning runs it many times."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, a * tl.load(x + at, inside) + tl.load(y + at, inside), inside)


@triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["columns"])})
@gridpact.jit
def row_sums_kernel(x, out, columns, BLOCK: tl.constexpr):
    """Sum one row."""
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    tl.store(out + row, tl.sum(tl.load(x + row * columns + column, column < columns, other=0.0), 0))


def axpy(a: float, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Give a * x + y of contiguous arrays, with the block size that was fastest for their length."""
    out = np.empty_like(x)
    axpy_kernel[lambda meta: (gridpact.cdiv(x.size, meta["BLOCK"]),)](a, x, y, out, x.size)
    return out


def row_sums(x: np.ndarray) -> np.ndarray:
    """Give the sum of each row of a contiguous matrix."""
    out = np.empty(len(x), x.dtype)
    row_sums_kernel[(len(x),)](x, out, x.shape[1])
    return out


def main() -> None:
    """Compare with NumPy."""
    x, y = np.random.default_rng(0).standard_normal((2, 300, 333), np.float32)
    error = max(np.abs(axpy(0.5, x, y) - (0.5 * x + y)).max(), np.abs(row_sums(x) - x.sum(1)).max())
    print(f"autotune: {x.size:,} elements, {axpy_kernel.best_config.kwargs}, largest error {error:.2g}")


if __name__ == "__main__":
    main()
