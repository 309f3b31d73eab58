"""Launch on a stream: nothing waits between the launches, they run in order, and the end is waited for once."""

from collections.abc import Sequence

import numpy as np
import triton.language as tl

import gridpact


@gridpact.jit
def horner_step(total, x, coefficient, n, BLOCK: tl.constexpr):
    """Do total = total * x + coefficient for one block."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(total + at, tl.load(total + at, inside) * tl.load(x + at, inside) + coefficient, inside)


def polynomial(coefficients: Sequence[float], x: np.ndarray) -> np.ndarray:
    """Evaluate a polynomial, highest power first: a launch for each coefficient, each using what the last one left."""
    total = np.zeros_like(x)
    stream = gridpact.Stream()
    for coefficient in coefficients:
        horner_step[(gridpact.cdiv(x.size, 512),)](total, x, coefficient, x.size, BLOCK=512, stream=stream)
    gridpact.synchronize(stream)  # until here `total` must not be read
    return total


def main() -> None:
    """Compare with NumPy."""
    x = np.linspace(-1, 1, 10_007, dtype=np.float32)
    coefficients = [0.5, -1.0, 2.0, 0.25, -3.0]
    error = np.abs(polynomial(coefficients, x) - np.polyval(coefficients, x.astype(np.float64))).max()
    print(f"streams: {len(coefficients)} launches over {x.size:,} elements, largest error {error:.2g}")


if __name__ == "__main__":
    main()
