"""What the native path of a launch keeps, and what it survives: programs on a driver that runs nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

from gridpact import native

pytest.importorskip("triton")

pytestmark = pytest.mark.skipif(native.path is None, reason=f"no native path: {native.MISSING}")

HEAD = """
import gc, sys, weakref
from pathlib import Path
import numpy as np
import gridpact
import triton.language as tl
from gridpact import native
from gridpact.conformance.subjects.fake_driver import load
from gridpact.conformance.subjects.gridpact_cuda import activate

activate()
load().gridpact_keep(0)

@gridpact.jit
def kernel(a, b, c, d: tl.float16, e, f: tl.int8, N: tl.constexpr):
    tl.store(a + N, b + c + d + e + f)

args = (np.zeros(64, "f8"), 2**40, 5, 1.5, True, -3, 7)
"""

LAUNCHED = """
kernel[(1,)](*args)
assert native.path.again(kernel, (1,), args, {}) is not None

def resident():  # pages
    return int(Path("/proc/self/statm").read_text().split()[1])

def grown(work, times):  # how many blocks and what share of the memory, from a tenth of the work to its end
    work(times // 10)
    gc.collect()
    blocks, pages = sys.getallocatedblocks(), resident()
    work(times - times // 10)
    gc.collect()
    return sys.getallocatedblocks() - blocks, resident() / pages - 1
"""


def run(tmp_path, text):
    """Run a program; give what it printed."""
    program = tmp_path / "program.py"
    program.write_text(HEAD + text)
    ran = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


LAUNCHES = {
    "a_million": (
        1_000_000,
        "kernel[(1,)](*args)",
    ),
    "prepared": (300_000, "prepared(*args)"),
    "callable_grids": (100_000, "kernel[lambda meta: (meta['N'],)](*args, num_warps=4)"),
    "refused_grids": (100_000, "fails(kernel[-1], *args)"),
    "failing_grids": (100_000, "fails(kernel[lambda meta: 1 / 0], *args)"),
    "watched": (20_000, "observed(kernel[(1,)], *args)"),
    "failing_hooks": (20_000, "badly_observed(kernel[(1,)], *args)"),
    "failing_driver": (50_000, "fails(refused_by_driver[(1, 70000)], *args)"),
}


def test_launches_leave_nothing_behind(tmp_path):
    """THREAD-3: neither blocks of Python's allocator nor resident memory grow with the number of launches."""
    parts = [LEAKS.replace("LAUNCH", launch).replace("TIMES", str(times)) for times, launch in LAUNCHES.values()]
    told = run(tmp_path, WATCHERS + "".join(parts)).splitlines()
    found = {what: tuple(map(float, line.split())) for what, line in zip(LAUNCHES, told, strict=True)}
    # Some blocks are caches of the interpreter; a leak would show in each launch, and there are 18,000 and more.
    assert not {what: grown for what, grown in found.items() if grown[0] > 200 or grown[1] >= 0.01}


WATCHERS = (
    LAUNCHED
    + """
def fails(call, *args):
    try:
        call(*args)
    except Exception:
        return
    raise AssertionError("no error")

def observed(call, *args):
    with gridpact.hooks.observe(lambda metadata: None, lambda metadata: None):
        call(*args)

def badly_observed(call, *args):
    with gridpact.hooks.observe(lambda metadata: 1 / 0):
        fails(call, *args)

usual = native.path.remember
def widened(*told):  # lets a grid pass that the driver refuses
    return usual(*told[:6], {**told[6], "limits": (2**31 - 1,) * 3})

native.path.remember = widened
refused_by_driver = gridpact.jit(kernel.fn)
refused_by_driver[(1,)](*args)
native.path.remember = usual
prepared = kernel.prepare(*args, grid=(1,))
"""
)

LEAKS = """
def work(times):
    for _ in range(times):
        LAUNCH

print(*grown(work, TIMES))
"""


def test_kernels_leave_nothing_behind(tmp_path):
    """With all that was remembered of them, though each is in a ring with its own grid."""
    told = run(
        tmp_path,
        LAUNCHED
        + """
gone = []

def work(times):
    for i in range(times):
        new = gridpact.jit(kernel.fn)
        prepared = new.prepare(*args, grid=(1,))
        for grid in ((1,), lambda meta: (1,)):
            new[grid](*args)
            prepared[grid](*args)
        new.ring = (new[new[(1,)]], prepared)
        gone.append(weakref.ref(new))
        del new, prepared

work(6)
gc.collect()
entries = lambda: sum(type(found).__name__ in ("Entry", "Prepared", "Bound") for found in gc.get_objects())
before = entries()
work(10)
gc.collect()
print(sum(ref() is not None for ref in gone), entries() - before)
""",
    )
    assert told.split() == ["0", "0"]


def test_the_stress_program_ends_well():
    """Once with the path as it is installed; `make sanitize` looks closer, and at more."""
    program = Path(__file__).with_name("native_stress.py")
    ran = subprocess.run([sys.executable, program, *QUICK], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.endswith("through\n")


QUICK = [
    *(
        "hooks",
        "grids",
        "kernels_that_go",
        "many_entries_and_shapes",
        "tensors_that_do_something",
        "wrong_words",
        "forks",
    ),
    *(
        "wrong_entries",
        "drivers_that_fail",
        "interrupts",
        "collections",
        "deep",
        "grids_that_do_something",
        "endless_launches",
    ),
]


def test_a_scalar_of_numpy_before_any_tensor(tmp_path):
    """No tensor was read yet in that process, and so no reader was registered."""
    told = run(
        tmp_path,
        """
@gridpact.jit
def scalar(x):
    pass

for _ in range(2):
    scalar[(1,)](np.float32(2.5))
print("through")
""",
    )
    assert told == "through\n"
