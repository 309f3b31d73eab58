"""Upstream Triton's C launcher on a driver that only keeps what it is asked; in environments with upstream Triton."""

import ctypes
import dataclasses
import importlib.metadata
import os
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest

from gridpact.conformance import check, model, subjects
from gridpact.conformance.isolation import Worker
from gridpact.conformance.subjects import fake_driver, triton_cuda_fake


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
    assert "an environment of its own" in facts["reason"]


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
    address, *numbers = subject.passed(result).values()
    assert (address, numbers) == (seen.ctypes.data, [5, -2, -3, -4, 5, 6, 2**32 - 1, 2**40])


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


def changed(**fields):
    """Give a driver that says of each call something else than what it was asked."""
    return lambda calls: [dataclasses.replace(call, **fields) for call in calls]


def without_parameters(calls):
    return [dataclasses.replace(call, parameters=tuple(bytes(len(part)) for part in call.parameters)) for call in calls]


def never(calls):
    return []


def twice(calls):
    return [call for call in calls for _ in range(2)]


SABOTEURS = [
    (changed(grid=(7, 1, 2)), "GRID-2:missing_axes_are_one:grid=7"),
    (changed(grid=(9, 5, 3)), "META-5:device_is_given_the_ranges_of_the_grid:grid=7x5x3;num_warps=4"),
    (changed(block=(1, 1, 1)), "GRID-2:missing_axes_are_one:grid=7"),
    (changed(block=(64, 1, 1)), "META-1:each_launch_has_its_own_geometry:order=8x1"),
    (changed(cluster=(1, 1, 1)), "META-2:clusters_are_made_or_refused:num_ctas=2"),
    (changed(shared_bytes=0), "META-1:metadata_tells_shared_memory:num_warps=4"),
    (changed(function=1), "KEY-1:spelled_out_default_changes_nothing"),
    # Triton 3.9 violates it as it is.
    *(
        [(changed(binary="other"), "KEY-1:constants_that_look_alike_differ:pairs=none_and_text;order=as_listed")]
        if upstream() < (3, 9)
        else []
    ),
    (without_parameters, "GRID-5:spellings_mean_the_same:given=two"),
    (without_parameters, "HOOK-1:watched_launch_writes_the_same:hooks=that_lie;side=both;stream=default"),
    (without_parameters, "ARG-1:arguments_bind_as_in_python:given=all_by_name"),
    (without_parameters, "ARG-2:declared_integer_arrives:given=i16_-32768"),
    (without_parameters, "ARG-2:integers_arrive_side_by_side:bound=high"),
    (without_parameters, "SPEC-1:misaligned_view_after_an_aligned_one_is_right:given=i4_4"),
    (never, "GRID-2:missing_axes_are_one:grid=7"),
    (never, "ARG-2:undeclared_integer_arrives:value=1"),
    (never, "KEY-1:nan_equals_itself"),
    (never, "SPEC-1:misaligned_view_after_an_aligned_one_is_right:given=i4_4"),
    (never, "META-6:launch_metadata_does_not_steer:metadata=lies;watched=no;num_warps=8"),
    (twice, "GRID-11:first_launch_is_like_later_ones:grid=5"),
    (twice, "META-5:device_is_given_the_ranges_of_the_grid:grid=7;num_warps=1"),
]


@needs_upstream
@pytest.mark.parametrize(("saboteur", "case"), SABOTEURS)
def test_a_driver_that_was_asked_something_else_is_found(subject, saboteur, case, monkeypatch):
    model.load_contract()
    told = fake_driver.driver_calls
    model.CASES[case].run(subject)
    assert subject.asked.checks
    monkeypatch.setattr(fake_driver, "driver_calls", lambda: saboteur(told()))
    subject.begin(check.Asked())
    subject._binaries.clear()
    with pytest.raises(model.Violated):
        model.CASES[case].run(subject)


@needs_upstream
@pytest.mark.parametrize("field", ["block", "cluster", "shared_bytes", "stream", "binary"])
def test_a_hook_that_steers_is_found(subject, field, monkeypatch):
    model.load_contract()
    told, watching = fake_driver.driver_calls, subject.triton.knobs.runtime.launch_enter_hook
    other = {"block": (64, 1, 1), "cluster": (1, 1, 2), "shared_bytes": 7, "stream": 7, "binary": "other"}[field]

    def steered():
        is_watched = bool(getattr(watching, "calls", watching))
        return changed(**{field: other})(told()) if is_watched else told()

    monkeypatch.setattr(fake_driver, "driver_calls", steered)
    with pytest.raises(model.Violated):
        model.CASES["HOOK-1:watched_launch_writes_the_same:hooks=that_read;side=both;stream=default"].run(subject)


@needs_upstream
def test_what_an_h200_refuses_is_refused_with_its_codes(opened):
    """Codes and order as the driver of an H200 gave them, asked with the same launches."""
    triton_cuda_fake.activate()
    library = fake_driver.load()
    opened.begin(check.Asked())
    compiled = opened.launch("counted", (1,), np.zeros(1, "i4"))
    opened.driver_calls()

    class Attribute(ctypes.Structure):
        _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint * 16))

    class Config(ctypes.Structure):
        _fields_ = (
            ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
            ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(Attribute)), ("count", ctypes.c_uint),
        )  # fmt: skip

    parameters = (ctypes.c_void_p * 3)(*[ctypes.cast(ctypes.pointer(ctypes.c_uint64(0)), ctypes.c_void_p)] * 3)

    def code(grid=(1, 1, 1), block=(128, 1, 1), shared=0, cluster=None, is_cooperative=False):
        attributes = (Attribute * 2)()
        count = 0
        for number, values in ((4, cluster), (2, (1,) if is_cooperative else None)):
            if values is not None:
                attributes[count].id = number
                attributes[count].value[: len(values)] = values
                count += 1
        config = Config(grid, block, shared, None, attributes, count)
        return library.cuLaunchKernelEx(ctypes.byref(config), ctypes.c_void_p(compiled.function), parameters, None)

    assert [code(), code(shared=49152), code(shared=49153), code(shared=200_000)] == [0, 0, 1, 1]
    assert {code(block=block) for block in ((1, 1, 128), (256, 1, 1), (64, 2, 1), (0, 1, 1), (2048, 1, 1))} == {1}
    assert [code(grid=grid) for grid in ((0, 1, 1), (1, 65536, 1), (2**31, 1, 1))] == [1, 1, 1]
    assert [code(grid=(2 * n, 1, 1), cluster=(n, 1, 1)) for n in (1, 2, 3, 7, 8)] == [0] * 5
    assert [code(grid=(2 * n, 1, 1), cluster=(n, 1, 1)) for n in (9, 16, 32)] == [912] * 3
    assert code(grid=(3, 1, 1), cluster=(2, 1, 1)) == code(grid=(0, 1, 1), cluster=(0, 1, 1)) == 912
    assert code(grid=(2**32 - 2, 1, 1), cluster=(2**32 - 1, 1, 1)) == 1
    assert [code(grid=(n, 1, 1), is_cooperative=True) for n in (132, 2112, 2113)] == [0, 0, 720]
    opened.driver_calls()
