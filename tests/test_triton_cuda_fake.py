"""Upstream Triton's C launcher on a driver that only keeps what it is asked; in environments with upstream Triton."""

import ctypes
import importlib.metadata
import os
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest

from gridpact.conformance import check, model, subjects
from gridpact.conformance.isolation import Worker


def upstream():
    try:
        return tuple(map(int, importlib.metadata.version("triton").split(".")[:2]))
    except importlib.metadata.PackageNotFoundError:
        return (0, 0)


needs_upstream = pytest.mark.skipif(upstream() < (3, 6), reason="needs upstream Triton 3.6 or newer: see noxfile.py")


@pytest.fixture(scope="module")
def opened():
    with mock.patch.dict(os.environ):  # Triton's switches are of the whole process
        yield subjects.open_subject("triton:cuda:fake")


@pytest.fixture
def subject(opened):
    opened.begin(check.Asked())
    return opened


@pytest.mark.skipif(upstream() >= (3, 6), reason="upstream Triton is here")
def test_without_upstream_triton_it_says_what_it_needs():
    worker = Worker("triton:cuda:fake")
    try:
        facts = worker.start()
    finally:
        worker.close()
    assert not facts["ready"]
    assert "triton" in facts["reason"]


@needs_upstream
def test_a_launch_is_one_driver_call_with_its_grid_and_block(subject):
    subject.launch("coordinates", (7, 5, 3), np.zeros(1, "i4"), 7, 5, num_warps=8)
    (call,) = subject.driver_calls()
    assert (call.grid, call.block, call.cluster) == ((7, 5, 3), (256, 1, 1), (1, 1, 1))
    assert subject.driver_calls() == []


@needs_upstream
def test_parameters_are_the_bytes_that_the_binary_declares(subject):
    seen = np.zeros(9, "i8")
    result = subject.launch("integers", (1,), seen, 5, -2, -3, -4, 5, 6, 2**32 - 1, 2**40)
    (call,) = subject.driver_calls()
    assert int.from_bytes(call.parameters[0], "little") == seen.ctypes.data
    assert [len(part) for part in call.parameters] == [8, 1, 2, 4, 8, 1, 2, 4, 8, 8, 8]  # two hidden pointers last
    assert list(subject.passed(result).values()) == [5, -2, -3, -4, 5, 6, 2**32 - 1, 2**40]


@needs_upstream
def test_shared_memory_and_clusters_are_kept(subject):
    subject.launch("shared_coordinates", (4, 2), np.zeros(7, "i4"), 1, 1, num_warps=4)
    subject.launch("coordinates", (4, 2), np.zeros(7, "i4"), 1, 1, num_ctas=2)
    shared, clustered = subject.driver_calls()
    assert shared.shared_bytes > 0 == clustered.shared_bytes
    assert (clustered.grid, clustered.cluster) == ((8, 2, 1), (2, 1, 1))


@needs_upstream
def test_one_binary_has_one_digest_and_two_have_two(subject):
    kernel = subject.kernel("constant", fresh=True)
    for constant in (2, 3, 2):
        subject.launch("constant", (1,), np.zeros(2, "i4"), constant, kernel=kernel, num_warps=1 + constant % 2)
    first, second, again = (call.binary for call in subject.driver_calls())
    assert first == again != second


@needs_upstream
@pytest.mark.parametrize("grid", [(1, 65536), (1, 1, 65536)])
def test_what_a_device_refuses_is_refused_with_the_drivers_words(subject, grid):
    with pytest.raises(RuntimeError, match="invalid argument"):
        subject.launch("counted", grid, np.zeros(1, "i4"))
    assert subject.driver_calls() == []


@needs_upstream
def test_the_largest_grid_of_each_axis_is_taken(subject):
    for grid in ((2**31 - 1,), (1, 65535), (1, 1, 65535)):
        subject.launch("counted", grid, np.zeros(1, "i4"))
        assert subject.driver_calls()[0].grid == (*grid, 1, 1)[:3]


@needs_upstream
def test_memory_that_nothing_wrote_to_is_not_judged(subject):
    seen = check.poisoned(4)
    subject.launch("counted", (1,), seen)
    for part in (seen, seen[1:], seen.view("u1")):
        with pytest.raises(model.Unsupported, match="no kernel runs"):
            check.same(subject, "memory", np.zeros(4), part)
    check.same(subject, "other numbers", 3, np.array(3))


@needs_upstream
def test_a_grid_that_wraps_is_found(subject):
    model.load_contract()
    case = model.CASES["GRID-8:large_grid_reaches_the_driver_whole:grid=65536x65536;num_warps=1"]
    with pytest.raises((model.Violated, model.Unsupported)):
        case.run(subject)
    with pytest.raises(model.Violated, match="0 driver calls and no error"):
        model.CASES["GRID-8:large_grid_reaches_the_driver_whole:grid=65536x32768;num_warps=1"].run(subject)


@needs_upstream
def test_a_finding_is_a_program_that_runs_by_hand(subject, tmp_path):
    subject.launch("counted", (2, 2, 2, 2), np.zeros(1, "i4"))
    program = tmp_path / "program.py"
    program.write_text(subject.asked.script.text)
    env = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    ran = subprocess.run([sys.executable, program], capture_output=True, text=True, env=env, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("driver call: grid (2, 2, 2), block (128, 1, 1)")


@needs_upstream
def test_the_driver_is_the_process_only_one(subject):
    assert ctypes.CDLL("libcuda.so.1").gridpact_take


SANITIZED = """
from gridpact import native

native._FLAGS = (*native._FLAGS, "-fsanitize=address,undefined", "-fno-sanitize-recover", "-g")
from gridpact.conformance import check, model, subjects

subject = subjects.open_subject("triton:cuda:fake")
asked = 0
for case in model.select(["GRID-[13678]", "META-[56]", "KEY-1"]):
    subject.begin(check.Asked())
    try:
        case.run(subject)
    except (model.Violated, model.Unsupported):
        pass
    asked += 1
print(asked)
"""


@needs_upstream
def test_the_driver_is_clean_under_sanitizers(tmp_path):
    found = {name: subprocess.run(["gcc", f"-print-file-name={name}.so"], capture_output=True, text=True, check=True)
             for name in ("libasan", "libubsan", "libstdc++")}  # fmt: skip
    if not os.path.isabs(found["libasan"].stdout.strip()):
        pytest.skip("AddressSanitizer's runtime is not installed")
    env = {
        **os.environ,
        "LD_PRELOAD": ":".join(ran.stdout.strip() for ran in found.values()),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python's and LLVM's own are not the question here
        "XDG_CACHE_HOME": str(tmp_path),
    }
    program = tmp_path / "program.py"
    program.write_text(SANITIZED)
    ran = subprocess.run([sys.executable, program], capture_output=True, text=True, env=env, timeout=280, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "runtime error" not in ran.stderr
    assert int(ran.stdout) > 100
