"""Hooks that were registered with Triton, in the way of its version, see launches of kernels that come from it.

Needs no device. `make test` runs it with triton-xpu 3.3; it also runs with upstream Triton 3.6.0 and 3.9.0.
"""

import numpy as np
import pytest

import gridpact

triton = pytest.importorskip("triton")
from gridpact.conformance.subjects.triton_active import observed_by_triton  # noqa: E402


def described(grid, metadata, arguments):
    return {"flops": 12, "grid_told": tuple(grid), "name": f"{metadata.name}[n={arguments['n']}]"}


@pytest.fixture
def kernels():
    """Make a kernel with `triton.jit` and take it over; its body is Python, for the reference device."""

    def store(out, n):
        out[0] += n

    theirs = triton.jit(store, launch_metadata=described)
    return theirs, gridpact.jit(theirs), gridpact.jit(store)


def run(kernel, **options):
    out = np.zeros(1, np.int64)
    kernel[2, 3](out, 5, device="reference", **options)
    return int(out[0])


def test_hooks_of_triton_see_a_kernel_that_comes_from_it(kernels):
    _, ours, other = kernels
    found = []
    with observed_by_triton(triton, lambda m: found.append(("enter", m)), lambda m: found.append(("exit", m))):
        assert run(ours) == 30
        assert run(other) == 30  # not from Triton: not shown
    assert run(ours) == 30
    assert [side for side, _ in found] == ["enter", "exit"]
    told = found[0][1].get()
    assert (told["flops"], told["grid_told"], told["name"]) == (12, (2, 3, 1), "store[n=5]")
    assert {"function", "stream"} <= told.keys()


def test_raw_entries_need_no_call_of_the_metadata_function(kernels):
    """Triton's profiler reads `metadata.data` where it wants the handle alone."""
    _, ours, _ = kernels
    calls, found = [], []
    ours.launch_metadata = lambda *args: calls.append(args)
    with observed_by_triton(triton, lambda m: found.append(m.data), None):
        run(ours)
    assert found[0]["name"] == "store"
    assert {"function", "stream"} <= found[0].keys()
    assert calls == []
    with pytest.raises(TypeError):
        found[0]["name"] = "another"


def test_those_of_triton_come_first_and_end_last(kernels):
    _, ours, _ = kernels
    calls = []
    with (
        gridpact.hooks.observe(lambda m: calls.append("ours in"), lambda m: calls.append("ours out")),
        observed_by_triton(triton, lambda m: calls.append("theirs in"), lambda m: calls.append("theirs out")),
    ):
        run(ours)
    assert calls == ["theirs in", "ours in", "ours out", "theirs out"]


def test_hook_of_triton_that_raises_is_told_by_name(kernels):
    _, ours, _ = kernels

    def broken(metadata):
        raise ValueError("no")

    calls = []
    exit = lambda metadata: calls.append("out")  # noqa: E731
    with observed_by_triton(triton, broken, exit), pytest.raises(gridpact.HookError, match="broken") as caught:
        run(ours)
    assert not caught.value.launched
    assert calls == []  # what was not entered is not left


def test_one_side_alone_is_called(kernels):
    _, ours, _ = kernels
    calls = []
    with observed_by_triton(triton, None, lambda m: calls.append("out")):
        run(ours)
    with observed_by_triton(triton, lambda m: calls.append("in"), None):
        run(ours)
    assert calls == ["out", "in"]


@pytest.mark.parametrize("added_to", ["theirs", "ours"])
def test_pre_run_hooks_are_called_with_the_arguments(kernels, added_to):
    theirs, ours, _ = kernels
    calls = []

    def before(out, n, **options):
        calls.append((n, options["num_warps"]))
        out[0] = 100

    (theirs if added_to == "theirs" else ours).add_pre_run_hook(before)
    assert run(ours, num_warps=2) == 130
    assert calls == [(5, 2)]
    ours.warmup(np.zeros(1, np.int64), 5, device="reference")
    assert len(calls) == 1  # a warmup launches nothing
