"""The examples are correct at awkward sizes, write nowhere else, run as scripts, and are all tested here.

Tolerances are absolute, element by element: `U` is the unit round-off of float32, times the operations that an element
goes through, times the size of what they are done on.
"""

import importlib.util
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gridpact

EXAMPLES = Path(__file__).parents[1] / "examples"
U = 2.0**-24
GUARD = 64  # elements, a multiple of every alignment that a kernel is specialised for


class Guarded:
    """NumPy or CuPy for one example, whose new arrays hold poison and lie between guards that no kernel may touch."""

    def __init__(self, library):
        self.blocks = []
        self.library = library

    def __getattr__(self, name):
        return getattr(self.library, name)

    def empty(self, shape, dtype=np.float64):
        dtype = np.dtype(dtype)
        size = math.prod(shape) if isinstance(shape, tuple) else shape
        block = self.library.full(size + 2 * GUARD, np.nan if dtype.kind == "f" else np.iinfo(dtype).min, dtype)
        self.blocks.append(block)
        self.settle()
        return block[GUARD : GUARD + size].reshape(shape)

    def empty_like(self, array):
        return self.empty(array.shape, array.dtype)

    def zeros(self, shape, dtype=np.float64):
        array = self.empty(shape, dtype)
        array.fill(0)
        self.settle()
        return array

    def zeros_like(self, array):
        return self.zeros(array.shape, array.dtype)

    def copy(self, array):
        copied = self.empty_like(array)
        copied[...] = self.library.asarray(array)
        self.settle()
        return copied

    def settle(self):
        """Wait for CuPy, which fills memory on a stream of its own."""
        if self.library is not np:
            self.library.cuda.get_current_stream().synchronize()

    def has_intact_guards(self):
        return all(
            np.array_equal(guard, np.full(GUARD, block[0]), equal_nan=block.dtype.kind == "f")
            for block in map(on_host, self.blocks)
            for guard in (block[:GUARD], block[-GUARD:])
        )


def on_host(array):
    """Give an array of any of the libraries as NumPy's."""
    return array.get() if hasattr(array, "get") else array


class Example:
    """An example whose functions are given arrays of a library in the place of NumPy's."""

    def __init__(self, module, library):
        self._module, self.np = module, module.np
        self._given = library.asarray

    def __getattr__(self, name):
        function = getattr(self._module, name)

        def call(*args):
            return function(*(self._given(arg) if isinstance(arg, np.ndarray) else arg for arg in args))

        return call


def load(name, library=np):
    """Import an example by its path, with a NumPy that guards what the example allocates, or a library in its place."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.np = Guarded(library)
    return module if library is np else Example(module, library)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def wide(array):
    return array.astype(np.float64)


# Each case: an example and a shape -> what it gave, what is right in float64, and how far apart they may be.


def add_case(example, *shape):
    x, y = normal(2, *shape)
    right = wide(x) + y
    return example.add_arrays(x, y), right, U * np.abs(right)


def softmax_case(example, rows, columns):
    x = 200 + 3 * normal(rows, columns)  # exp(200) is infinite: the maximum has to be taken off
    powers = np.exp(wide(x) - x.max(1, keepdims=True))
    right = powers / powers.sum(1, keepdims=True)
    return example.softmax(x), right, (columns + 32) * U * right


def matmul_case(example, m, k, n):
    a, b = normal(m, k), normal(k, n, seed=1)
    return example.matmul(a, b), wide(a) @ b, (k + 1) * U * (np.abs(wide(a)) @ np.abs(b))


def layer_norm_case(example, rows, columns):
    x, (weight, bias) = 5 + normal(rows, columns), normal(2, columns, seed=1)
    scale = 1 / np.sqrt(wide(x).var(1, keepdims=True) + 1e-5)
    right = (wide(x) - wide(x).mean(1, keepdims=True)) * scale * weight + bias
    # Taking the mean off loses what x has more digits than its spread; the rest is relative to the terms.
    lost = (columns.bit_length() + 1) * U * np.abs(x).max() * scale * np.abs(weight)
    return example.layer_norm(x, weight, bias), right, lost + 16 * U * (np.abs(right) + np.abs(bias))


def histogram_case(example, n, dtype="int32"):
    values = np.random.default_rng(0).integers(0, 100, n).astype(dtype)
    return example.histogram(values, 100), np.bincount(values, minlength=100), 0


def stencil_case(example, *shape):
    field = normal(*shape)
    padded = np.pad(wide(field), 1)
    sums = sum(np.roll(padded, step, axis) for step in (-1, 1) for axis in range(3)) - 6 * padded
    return example.laplacian(field), sums[1:-1, 1:-1, 1:-1], 7 * U * 12 * np.abs(field).max()


def autotune_case(example, *shape):
    x, y = normal(2, *shape)
    got = [on_host(example.axpy(0.3, x, y)).ravel(), on_host(example.row_sums(x))]
    right = [(float(np.float32(0.3)) * wide(x) + y).ravel(), wide(x).sum(1)]
    allowed = [2 * U * (np.abs(x) + np.abs(y)).ravel(), shape[1] * U * np.abs(wide(x)).sum(1)]
    return np.concatenate(got), np.concatenate(right), np.concatenate(allowed)


def hooks_case(example, n):
    x = normal(n)
    doubled = example.np.copy(x)
    example.watched_doubling(doubled, 3)
    return doubled, 8 * wide(x), 0


def streams_case(example, n, powers):
    coefficients, x = normal(powers).tolist(), normal(n, seed=1)
    right = np.polyval([0.0, *coefficients], wide(x))
    return example.polynomial(coefficients, x), right, 2 * powers * U * np.polyval(np.abs([0.0, *coefficients]), abs(x))


CASES = {
    "add": (add_case, [(0,), (1,), (1023,), (1024,), (1025,), (7, 331)]),
    "softmax": (softmax_case, [(1, 1), (1, 997), (3, 64), (13, 127), (5, 1025)]),
    "matmul": (matmul_case, [(1, 1, 1), (1, 37, 1), (32, 64, 32), (33, 31, 65), (61, 1, 7)]),
    "layer_norm": (layer_norm_case, [(1, 1), (1, 997), (3, 64), (13, 127), (5, 1025)]),
    "histogram": (histogram_case, [(0,), (1,), (512,), (100_003,), (4999, "uint8"), (4999, "int64")]),
    "stencil": (stencil_case, [(1, 1, 1), (1, 1, 131), (2, 3, 64), (5, 7, 65), (11, 1, 3)]),
    "autotune": (autotune_case, [(1, 1), (1, 997), (16, 64), (13, 1025)]),
    "hooks": (hooks_case, [(1,), (256,), (1009,)]),
    "streams": (streams_case, [(1, 1), (512, 5), (10_007, 9), (3, 0)]),
}


def test_every_example_is_tested():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(CASES)


@pytest.mark.parametrize(
    ("name", "shape"),
    [pytest.param(n, s, id=f"{n}-{'x'.join(map(str, s))}") for n, (_, shapes) in CASES.items() for s in shapes],
)
@pytest.mark.parametrize("device", ["sycl", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_agrees_with_numpy(request, device, name, shape):
    """On a GPU with CuPy's arrays in the place of NumPy's."""
    opened = request.getfixturevalue(device)
    example = load(name, np if device == "sycl" else pytest.importorskip("cupy"))
    with gridpact.device(opened):
        got, right, allowed = CASES[name][0](example, *shape)
        got = on_host(got)
    assert got.shape == right.shape
    error = np.abs(wide(got) - right)
    assert np.all(error <= allowed), f"largest error {error.max()}"  # false where poison is left
    assert example.np.has_intact_guards()


@pytest.mark.parametrize("name", CASES)
def test_runs_as_a_script(sycl, name, tmp_path):
    run = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    printed = re.fullmatch(rf"{name}: .*\d.*, largest error (\S+)\n", run.stdout)
    assert printed, run.stdout
    assert float(printed[1]) < 1e-4


def test_matmul_takes_views(sycl):
    a, b = normal(40, 70).T[::2], normal(50, 40, seed=1).T[::-1]
    assert np.allclose(load("matmul").matmul(a, b), wide(a) @ b, rtol=0, atol=1e-4)


def test_histogram_reads_read_only_values_and_leaves_strangers_out(sycl):
    values = np.array([-1, 0, 2, 3, 2, 2**31 - 1, -(2**31)], np.int32)
    values.flags.writeable = False
    example = load("histogram")
    assert example.histogram(values, 3).tolist() == [1, 0, 2]
    assert example.np.has_intact_guards()


def test_autotune_measures_every_block_size(sycl):
    example = load("autotune")
    x = normal(3, 1000)
    example.axpy(2.0, x, x)
    timings = example.axpy_kernel.configs_timings
    assert {config.kwargs["BLOCK"]: math.isfinite(low) for config, (low, *_) in timings.items()} == {
        256: True,
        1024: True,
        4096: True,
    }


def test_hooks_see_their_launches_and_no_others(sycl):
    example, x = load("hooks"), np.zeros(1000, np.float32)
    seen = example.watched_doubling(x, 2)
    example.watched_doubling(x[:1], 1)
    assert seen == [("double", (4, 1, 1), 8000)] * 2


def test_stream_takes_every_launch(sycl):
    used = []
    example = load("streams")
    with gridpact.hooks.observe(lambda launch: used.append(launch["stream"])):
        example.polynomial([1.0, 2.0, 3.0], normal(100))
        example.horner_step[(1,)](normal(100), normal(100), 0.0, 100, BLOCK=512)
    assert used[0] == used[1] == used[2] != used[3]


@pytest.mark.parametrize(("name", "function"), [("add", "add_arrays"), ("softmax", "softmax")])
@pytest.mark.parametrize("device", ["sycl", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_torch_tensors_go_the_same_way(request, device, name, function):
    opened = request.getfixturevalue(device)
    torch = pytest.importorskip("torch", exc_type=ImportError)
    x = torch.from_numpy(normal(7, 331)).to("cpu" if device == "sycl" else opened)
    out = torch.full_like(x, torch.nan)
    given, right = ((x, x), x + x) if name == "add" else ((x,), torch.softmax(x.double(), 1).float())
    assert getattr(load(name), function)(*given, out=out) is out
    assert torch.allclose(out, right, rtol=1e-5, atol=0)
