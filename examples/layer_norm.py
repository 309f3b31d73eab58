"""Layer norm: mean and variance of a row in one program, then the affine part, with the row read only once."""

import numpy as np
import triton
import triton.language as tl

import gridpact


@gridpact.jit
def layer_norm_kernel(x, weight, bias, out, columns, eps, BLOCK: tl.constexpr):
    """Normalise one row; the padding is cleared again after the mean was taken off, to leave the variance alone."""
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside = column < columns
    values = tl.load(x + row * columns + column, inside, other=0.0)
    centred = tl.where(inside, values - tl.sum(values, 0) / columns, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, 0) / columns + eps)
    affine = centred * scale * tl.load(weight + column, inside) + tl.load(bias + column, inside)
    tl.store(out + row * columns + column, affine, inside)


def layer_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float = 1e-5) -> np.ndarray:
    """Give each row of a contiguous matrix with mean 0 and variance 1, times `weight`, plus `bias`."""
    out = np.empty_like(x)
    rows, columns = x.shape
    layer_norm_kernel[(rows,)](x, weight, bias, out, columns, eps, BLOCK=triton.next_power_of_2(columns))
    return out


def main() -> None:
    """Compare with NumPy."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1151, 1000), np.float32)
    weight, bias = rng.standard_normal((2, 1000), np.float32)
    normal = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    error = np.abs(layer_norm(x, weight, bias) - (normal * weight + bias)).max()
    print(f"layer_norm: {x.shape[0]:,} rows of {x.shape[1]:,}, largest error {error:.2g}")


if __name__ == "__main__":
    main()
