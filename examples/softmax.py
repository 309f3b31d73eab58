"""Softmax of each row of a matrix: one program a row, which holds the row whole, padded to a power of two."""

import numpy as np
import triton
import triton.language as tl

import gridpact


@gridpact.jit
def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    """Do one row; the padding is -inf, so that it adds nothing to the sum."""
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside = column < columns
    values = tl.load(x + row * columns + column, inside, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, 0))
    tl.store(out + row * columns + column, powers / tl.sum(powers, 0), inside)


def softmax(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Give the softmax of each row of a contiguous matrix; a torch tensor on the CPU goes the same way with `out=`."""
    out = np.empty_like(x) if out is None else out
    rows, columns = x.shape
    softmax_kernel[(rows,)](x, out, columns, BLOCK=triton.next_power_of_2(columns))
    return out


def main() -> None:
    """Compare with NumPy."""
    x = np.random.default_rng(0).standard_normal((1823, 781), dtype=np.float32)
    powers = np.exp(x - x.max(1, keepdims=True))
    error = np.abs(softmax(x) - powers / powers.sum(1, keepdims=True)).max()
    print(f"softmax: {x.shape[0]:,} rows of {x.shape[1]}, largest error {error:.2g}")


if __name__ == "__main__":
    main()
