"""Printing, assertions, barriers, hints, and inline assembly, which is refused."""

import ctypes
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
import triton.language as tl

import gridpact


@pytest.fixture
def printed(capfd):
    """Give a function that returns what kernels printed so far, through the C library's buffer."""

    def read():
        ctypes.CDLL(None).fflush(None)
        return capfd.readouterr().out

    return read


@gridpact.jit
def print_tensor(x, BLOCK: tl.constexpr):
    tl.device_print("value", tl.load(x + tl.arange(0, BLOCK)))


@pytest.mark.entry("device_print tensor")
def test_print_of_a_tensor(printed):
    print_tensor[(1,)](np.arange(100, 132).astype(np.int32), BLOCK=32)
    lines = re.findall(r"pid \(0, 0, 0\) idx \( ?(\d+)\) value: (\d+)", printed())
    assert {(int(index), int(value)) for index, value in lines} == {(i, 100 + i) for i in range(32)}
    assert len(lines) == 128  # each of 4 x 32 threads prints what it holds


@gridpact.jit
def print_scalar(n):
    tl.device_print("count", n)


@pytest.mark.entry("device_print scalar")
def test_print_of_a_scalar(printed):
    print_scalar[(2,)](5)
    gridpact.synchronize()  # no host memory among the arguments, so the launch is not waited for
    lines = re.findall(r"pid \((\d), 0, 0\) idx \(\) count: (\d+)", printed())
    assert set(lines) == {("0", "5"), ("1", "5")}


@gridpact.jit
def copy_if_below_100(x, out, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    v = tl.load(x + o)
    tl.device_assert(v < 100, "too big")
    tl.store(out + o, v)


@pytest.mark.entry("device_assert passing (debug=True)")
def test_assertion_that_holds(poisoned):
    x, out = np.arange(64).astype(np.int32), poisoned(64, np.int32)
    copy_if_below_100[(1,)](x, out, BLOCK=64, debug=True)
    np.testing.assert_array_equal(out, x)


@pytest.mark.entry("device_assert failing (debug=False): ignored")
def test_assertion_that_is_not_compiled_in(poisoned):
    x, out = np.arange(256).astype(np.int32), poisoned(256, np.int32)
    copy_if_below_100[(1,)](x, out, BLOCK=256)
    np.testing.assert_array_equal(out, x)


FAILING_PROGRAM = """
import numpy as np
import triton.language as tl
import gridpact

@gridpact.jit
def check(x):
    tl.device_assert(tl.load(x) < 100, "too big")

with gridpact.device("sycl:cpu"):
    check[(1,)](np.full(1, 99, np.int32), debug=True)
    print("99 passed", flush=True)
    check[(1,)](np.full(1, 100, np.int32), debug=True)
    print("100 passed", flush=True)
"""


@pytest.mark.gap("device_assert failing (debug=True): aborts?")
def test_assertion_that_fails_aborts_the_process(tmp_path):
    program = tmp_path / "failing.py"
    program.write_text(FAILING_PROGRAM)
    ended = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == -signal.SIGABRT, ended.stderr
    assert "99 passed" in ended.stdout
    assert "100 passed" not in ended.stdout
    assert "too big" in ended.stdout + ended.stderr
    assert "failing.py" in ended.stdout + ended.stderr


@gridpact.jit
def assert_while_compiling(out, N: tl.constexpr):
    tl.static_assert(N == 4)
    tl.static_print("N is", N)
    tl.store(out, N)


@pytest.mark.entry("static_assert/static_print")
def test_static_assertion_and_print(poisoned, capsys):
    out = poisoned(1, np.int32)
    assert_while_compiling[(1,)](out, N=4)
    assert out[0] == 4
    assert "N is 4" in capsys.readouterr().out


@gridpact.jit
def reverse_through_memory(x, out, exchange, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(exchange + o, tl.load(x + o))
    tl.debug_barrier()
    tl.store(out + o, tl.load(exchange + (BLOCK - 1 - o)))


@pytest.mark.entry("debug_barrier (store; barrier; load reversed)")
def test_barrier(rng, poisoned):
    x = rng.standard_normal(256).astype(np.float32)
    out, exchange = poisoned(256), poisoned(256)
    reverse_through_memory[(1,)](x, out, exchange, BLOCK=256)
    np.testing.assert_array_equal(out, x[::-1])


@gridpact.jit
def shift_in_ptx(x, out, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    shifted = tl.inline_asm_elementwise(
        "shl.b32 $0, $1, 3;", "=r,r", [tl.load(x + o)], dtype=tl.int32, is_pure=True, pack=1
    )
    tl.store(out + o, shifted)


@gridpact.jit
def add_in_x86(x, out, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    added = tl.inline_asm_elementwise("leal 5($1), $0", "=r,r", [tl.load(x + o)], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(out + o, added)


def check_assembly_is_refused(kernel, poisoned):
    x, out = np.arange(256).astype(np.int32), poisoned(256, np.int32)
    before = out.copy()
    with pytest.raises(gridpact.UnsupportedError) as raised:
        kernel[(1,)](x, out, BLOCK=256)
    assert raised.value.capability == "inline_assembly"
    np.testing.assert_array_equal(out, before)


@pytest.mark.gap("inline PTX asm")
def test_ptx_is_refused(poisoned):
    """The runtime would compute something else in silence."""
    check_assembly_is_refused(shift_in_ptx, poisoned)


@pytest.mark.gap("inline x86 asm")
def test_x86_assembly_is_refused(poisoned):
    """It would run right, but a module does not say whose assembly it holds."""
    check_assembly_is_refused(add_in_x86, poisoned)


@gridpact.jit
def copy_with_hints(x, out, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    o = tl.max_contiguous(tl.multiple_of(o, BLOCK), BLOCK)
    tl.assume(n > 0)
    v = tl.load(x + o, cache_modifier=".cg", eviction_policy="evict_last")
    tl.store(out + o, v, cache_modifier=".wt")


@pytest.mark.entry("hints: multiple_of/max_contiguous/assume/cache_modifier/eviction")
def test_hints(rng, poisoned):
    x = rng.standard_normal(1024).astype(np.float32)
    out = poisoned(1024)
    copy_with_hints[(4,)](x, out, 5, BLOCK=256)
    np.testing.assert_array_equal(out, x)


@gridpact.jit
def copy_volatile(x, out):
    tl.store(out, tl.load(x, volatile=True))


@pytest.mark.entry("volatile load")
def test_volatile_load(poisoned):
    x, out = np.array([2.5], np.float32), poisoned(1)
    copy_volatile[(1,)](x, out)
    assert out[0] == 2.5
