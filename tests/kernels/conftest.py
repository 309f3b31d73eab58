"""What the kernel tests share: the device, random numbers, poisoned outputs, and the two markers of the coverage list.

`@pytest.mark.entry("name")` says that a test proves an entry of coverage.txt to run right; `@pytest.mark.gap("name")`
says that it pins down what happens instead. `{parameter}` in a name stands for the value of a test's parameter. Tests
of entries must run: a skip or an expected failure counts as a failure here.
"""

import importlib.util
import math

import ml_dtypes  # noqa: F401  (makes "bfloat16" and the fp8 names known to np.dtype)
import numpy as np
import pytest

import gridpact

POISON = 0xA5
GUARD_BYTES = 64  # on both sides of an output; also its alignment


def pytest_configure(config):
    config.addinivalue_line("markers", "entry(name): proves that this entry of coverage.txt runs right")
    config.addinivalue_line(
        "markers", "gap(name): pins down what happens where this entry of coverage.txt does not run"
    )


class WithoutTriton(pytest.Module):
    """A module of kernels where there is no Triton to import: skipped by name."""

    def collect(self):
        pytest.skip("triton is not installed", allow_module_level=True)


def pytest_pycollect_makemodule(module_path, parent):
    if importlib.util.find_spec("triton") is None:
        return WithoutTriton.from_parent(parent, path=module_path)
    return None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.skipped and any(marker.name in ("entry", "gap") for marker in item.iter_markers()):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} stands for an entry of the coverage list, it must not be skipped or xfailed"
    return report


@pytest.fixture(autouse=True)
def on_cpu():
    """Launch on the SYCL CPU, whatever the default device may be."""
    with gridpact.device("sycl:cpu"):
        yield


@pytest.fixture
def rng():
    return np.random.default_rng(2026)


@pytest.fixture
def poisoned():
    """Give a maker of outputs: `poisoned(shape, dtype, offset=0)`, `offset` elements past a 64-byte boundary.

    Floats are NaN, all else is full of 0xA5 bytes. What lies beside an output is checked when the test ends.
    """
    made = []

    def make(shape, dtype=np.float32, *, offset=0):
        dtype = np.dtype(dtype)
        count = math.prod(np.atleast_1d(shape).tolist())
        raw = np.full(count * dtype.itemsize + 4 * GUARD_BYTES, POISON, np.uint8)
        begin = -raw.ctypes.data % GUARD_BYTES + GUARD_BYTES + offset * dtype.itemsize
        end = begin + count * dtype.itemsize
        made.append((raw, begin, end))
        output = raw[begin:end].view(dtype).reshape(shape)
        if dtype.kind not in "biu":
            output[...] = np.nan
        return output

    yield make
    for raw, begin, end in made:
        assert (raw[:begin] == POISON).all(), "the kernel wrote before the beginning of an output"
        assert (raw[end:] == POISON).all(), "the kernel wrote after the end of an output"
