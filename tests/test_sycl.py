"""The SYCL backend: limits, loading, the device-binary cache, both ways to the runtime, processes and forks."""

import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import gridpact
from gridpact import launch, spirv, toolchain
from gridpact.arguments import Leaf, classify
from gridpact.backends import ending
from gridpact.backends import sycl as backend
from gridpact.contract import kernels


@pytest.fixture
def cpu(sycl):
    return gridpact.open_device(sycl)


@pytest.fixture
def probes(sycl):
    return kernels("triton")


def run_program(tmp_path, text, **environment):
    """Run a program in a fresh process, with no variable that a user would not have."""
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(text))
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OCL_", "SYCL_", "ONEAPI_", "LD_LIBRARY"))}
    return subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        timeout=250,
        env={**clean, **environment},
        check=False,
    )


ADD = """
    import numpy as np, triton.language as tl, gridpact
    from gridpact import backends

    @gridpact.jit
    def add(x, y, out, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + i, tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)

    def check():
        n = 1000
        x, y, out = np.arange(n, dtype="f4"), np.ones(n, "f4"), np.full(n, np.nan, "f4")
        add[lambda meta: (gridpact.cdiv(n, meta["BLOCK"]),)](x, y, out, n, BLOCK=256)
        if not np.array_equal(out, x + y):
            raise SystemExit(f"wrong: {out[:5]}")
        print("right on", backends.open_device("sycl:cpu").route.name)
"""

# A kernel that says that it runs, and waits for a flag.
HOLD = """
    @gridpact.jit
    def hold(flag):
        tl.store(flag + 1, 1)
        turn = 0
        while (tl.atomic_add(flag, 0) == 0) & (turn < 60_000_000):
            turn += 1

    flag = np.zeros(2, np.int32)
"""


def test_device_reports_its_limits(cpu):
    assert cpu.limits.programs == (2**31 - 1,) * 3
    assert cpu.limits.threads >= 1024
    assert cpu.limits.shared_bytes >= 32768
    assert cpu.limits.threads_in_launch == 2**64 - 1
    assert {"fp64", "host_memory"} <= cpu.capabilities
    assert backend.status("sycl:cpu").is_usable


@pytest.mark.parametrize("grid", [(2**31,), (1, 2**31), (1, 1, 2**31), (2**40,)])
def test_axis_past_31_bits_is_refused(probes, grid):
    seen = np.full(7, -77, np.int32)
    with pytest.raises(ValueError, match="at most 2147483647 programs on sycl:cpu") as caught:
        probes.coordinates[grid](seen, 1, 1)
    assert caught.value.clause == "GRID-7"
    assert (seen == -77).all()


def test_launch_of_more_threads_than_the_device_counts_is_refused(probes):
    seen = np.full(7, -77, np.int32)
    largest = 2**31 - 1
    with pytest.raises(gridpact.ContractError, match=r"at most 18446744073709551615 threads in one launch.*GRID-7"):
        probes.coordinates[(largest, largest, largest)](seen, 1, 1)
    assert (seen == -77).all()


def test_ranges_past_32_bits_reach_the_driver_whole(cpu, probes, monkeypatch, by_definition):
    submitted = []
    monkeypatch.setattr(cpu.route, "submit", lambda *args: submitted.append(args[2:4]) or 1)
    monkeypatch.setattr(cpu.route, "wait", lambda event: None)
    monkeypatch.setattr(cpu.route, "free_event", lambda event: None)
    seen = np.full(7, -77, np.int32)
    probes.coordinates[(65536, 32768, 5)](seen, 1, 1, num_warps=4)
    probes.coordinates[(2**31 - 1, 65535)](seen, 1, 1, num_warps=1)
    assert submitted == [
        ((5, 32768, 65536 * 128), (1, 1, 128)),
        ((1, 65535, (2**31 - 1) * 32), (1, 1, 32)),
    ]


def test_more_than_2_to_the_31_threads_run_in_one_launch(probes):
    import triton.language as tl

    @gridpact.jit
    def count_some(seen, STEP: tl.constexpr):
        x = tl.program_id(0)
        if x % STEP == 0:
            tl.atomic_add(seen, 1)
        if x == tl.num_programs(0) - 1:
            tl.store(seen + 1, x)

    programs = 2**21 + 1  # of 1024 threads: 2^31 + 1024 threads
    seen = np.array([0, -77], np.int32)
    count_some[programs](seen, STEP=2**16, num_warps=32)
    assert seen.tolist() == [33, programs - 1]


@pytest.mark.parametrize(
    ("options", "clause"),
    [
        ({"num_warps": 0}, "META-2"),
        ({"num_warps": 3}, "META-2"),
        ({"num_warps": "4"}, "META-2"),
        ({"num_stages": 0}, "META-2"),
        ({"threads_per_warp": 7}, "META-2"),
        ({"num_ctas": 2}, "META-2"),
        ({"cluster_dims": (2, 1, 1)}, "META-2"),
        ({"launch_cooperative_grid": True}, "META-2"),
        ({"grf_mode": "large"}, "META-2"),
        ({"generate_native_code": True}, "META-2"),
        ({"num_warps": 512}, "META-4"),
    ],
)
def test_option_that_the_device_cannot_do_is_refused(probes, options, clause):
    seen = np.full(7, -77, np.int32)
    with pytest.raises(gridpact.LaunchError) as caught:
        probes.coordinates[1](seen, 1, 1, **options)
    assert caught.value.clause == clause
    assert (seen == -77).all()


def test_every_option_of_the_toolchain_has_a_policy(cpu):
    assert set(cpu.options) == set(toolchain.option_defaults(cpu.target)) == set(backend._POLICIES)
    for name, option in cpu.options.items():
        assert option.policy == "applied" or option.reason, name


@pytest.mark.parametrize("lanes", [16, 32])
@pytest.mark.parametrize("num_warps", [1, 8])
def test_threads_of_a_program_come_from_the_compiled_kernel(probes, lanes, num_warps):
    seen = np.full(7, -77, np.int32)
    seen[0] = 0
    compiled = probes.coordinates[1](seen, 1, 1, num_warps=num_warps, threads_per_warp=lanes)
    assert compiled.metadata.threads == num_warps * lanes
    assert seen.tolist() == [1, 0, 0, 0, 1, 1, 1]


def test_shared_memory_over_the_limit_is_refused_with_need_and_limit(sycl):
    import triton.language as tl

    @gridpact.jit
    def transpose(x, y, N: tl.constexpr):
        row, column = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
        tl.store(y + row * N + column, tl.trans(tl.load(x + row * N + column)))

    x, y = np.zeros((256, 256), "f8"), np.full((256, 256), np.nan)
    with pytest.raises(gridpact.ResourceError, match="shared memory of 'transpose'") as caught:
        transpose[1](x, y, N=256)
    assert caught.value.need > caught.value.limit == gridpact.open_device(sycl).limits.shared_bytes
    assert caught.value.clause == "META-4"
    assert np.isnan(y).all()


def test_inline_assembly_is_refused(sycl):
    import triton.language as tl

    @gridpact.jit
    def shift(x, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        text: tl.constexpr = "shl.b32 $0, $1, 3;"
        tl.store(x + i, tl.inline_asm_elementwise(text, "=r,r", [tl.load(x + i)], tl.int32, is_pure=True, pack=1))

    x = np.arange(32, dtype=np.int32)
    with pytest.raises(gridpact.UnsupportedError, match="inline assembly") as caught:
        shift[1](x, BLOCK=32)
    assert caught.value.capability == "inline_assembly"
    assert np.array_equal(x, np.arange(32))


def test_kernel_that_is_named_like_a_library_function_runs(sycl):
    import triton.language as tl

    @gridpact.jit
    def exp(x):
        tl.store(x, 3)

    @gridpact.jit
    def printf(x):
        tl.store(x, 4)

    x = np.full(1, -77, np.int32)
    assert exp[1](x).name == "exp_kernel"
    assert x[0] == 3
    printf[1](x)
    assert x[0] == 4


def compiled_probe(cpu, probes):
    kernel = probes.optional
    arguments = classify(kernel.signature, kernel.signature.bind((np.zeros(2, np.int64), None), {}))
    return toolchain.compile_kernel(kernel.source(cpu), arguments, cpu.target, {}), arguments


def test_packing_that_does_not_match_the_module_is_refused(cpu, probes):
    binary, arguments = compiled_probe(cpu, probes)
    with pytest.raises(gridpact.BackendError, match="matching its parameters"):
        cpu.load(binary, [*arguments.leaves, Leaf("extra", "i32", 0)], cpu.default_stream())
    with pytest.raises(gridpact.BackendError, match="matching its parameters"):
        cpu.load(binary, [Leaf("other", "i32", 0)], cpu.default_stream())


def test_module_that_the_runtime_refuses_gives_its_build_log(cpu, probes, monkeypatch):
    binary, arguments = compiled_probe(cpu, probes)
    monkeypatch.setattr(spirv, "for_cpu", lambda module: module)  # keep what the CPU refuses
    with pytest.raises(gridpact.BackendError, match="clBuildProgram") as caught:
        cpu.load(binary, arguments.leaves, cpu.default_stream())
    assert "5892" in caught.value.log
    assert "'optional'" in str(caught.value)


def test_kernel_bundle_route_of_other_backends_works_too(cpu, probes):
    binary, arguments = compiled_probe(cpu, probes)
    stream = cpu.default_stream()
    if not cpu.route.keeps_binaries:
        pytest.skip("dpctl has one way to load only")
    handle, _ = cpu.route.load(stream.handle, spirv.for_cpu(binary.code), backend._BUNDLE, binary.metadata.name, "")
    kernel = backend._Kernel(cpu.route, handle)
    seen = np.full(2, -77, np.int64)
    arguments = classify(probes.optional.signature, {"seen": seen, "extra": None})
    desc = launch.describe(binary.metadata, (1, 1, 1), stream, kernel, arguments.leaves, (), is_waited_for=True)
    cpu.launch(desc)
    assert seen.tolist() == [1, -77]


def test_bundle_of_garbage_is_an_error(cpu):
    with pytest.raises(gridpact.BackendError):
        cpu.route.load(cpu.default_stream().handle, b"\0" * 64, backend._BUNDLE, "x", "")


def test_memory_elsewhere_is_refused_with_both_devices(cpu):
    class CudaTensor:
        dtype, device = "float32", "cuda:1"

        def data_ptr(self):
            return 4096

    with pytest.raises(gridpact.ContractError, match=r"'seen' of 'optional'.*sycl:cpu can reach.*cuda:1.*\[DEVICE-1\]"):
        kernels("triton").optional[1](CudaTensor(), None)


# -- processes


def test_fresh_process_needs_no_variable(sycl, tmp_path):
    ran = run_program(tmp_path, ADD + "\n    check()\n")
    assert (ran.returncode, ran.stdout) == (0, "right on native\n"), ran.stderr


def test_dpctl_before_us_does_not_matter(sycl, tmp_path):
    ran = run_program(tmp_path, "    import dpctl, dpctl.memory\n" + ADD + "\n    check()\n")
    assert (ran.returncode, ran.stdout) == (0, "right on native\n"), ran.stderr


def test_devices_asked_for_too_early_are_named(sycl, tmp_path):
    ran = run_program(tmp_path, "    import dpctl\n    dpctl.get_devices()\n" + ADD + "\n    check()\n")
    if ran.returncode == 0:
        assert ran.stdout == "right on native\n"  # a runtime that looks again
    else:
        assert "lists no CPU device" in ran.stderr
        assert "before other code of the process" in ran.stderr


def test_device_binaries_are_cached_and_verified(sycl, tmp_path):
    program = ADD + "\n    check()\n"
    home = tmp_path / "home"
    for expected in (1, 1):
        ran = run_program(tmp_path, program, XDG_CACHE_HOME=str(home))
        assert ran.returncode == 0, ran.stderr
        entries = list((home / "gridpact" / "device").iterdir())
        assert len(entries) == expected
    raw = bytearray(entries[0].read_bytes())
    raw[len(raw) // 2] ^= 1
    entries[0].write_bytes(raw)
    ran = run_program(tmp_path, program, XDG_CACHE_HOME=str(home))
    assert (ran.returncode, ran.stdout) == (0, "right on native\n"), ran.stderr
    assert entries[0].read_bytes() != bytes(raw)  # a miss: made again


def test_without_a_compiler_dpctl_launches_with_its_limit(sycl, tmp_path):
    program = (
        ADD
        + """
    check()
    device = backends.open_device("sycl:cpu")
    print(device.limits.threads_in_launch, backends.device_status("sycl:cpu").facts["via"])
    from gridpact.contract import kernels
    probes = kernels("triton")
    seen = np.full(7, -77, np.int32)
    seen[0] = 0
    probes.coordinates[1](seen, 1, 1)
    print(seen.tolist())
    try:
        probes.coordinates[2**24](seen, 1, 1)
    except gridpact.ContractError as error:
        print(error)
    stream = gridpact.Stream("sycl:cpu")
    out = np.zeros(1, np.int64)
    probes.optional[1](out, (40, (2, None)), stream=stream)
    gridpact.synchronize(stream)
    print(out[0])

    @gridpact.jit
    def total(x, out, N: tl.constexpr):
        tl.store(out, tl.sum(tl.load(x + tl.arange(0, N)), 0))

    x, out = np.arange(256, dtype="f4"), np.full(1, np.nan, "f4")
    compiled = total[1](x, out, N=256)
    print(out[0], compiled.metadata.shared > 0)
    """
    )
    ran = run_program(tmp_path, program, PATH=str(tmp_path), CXX="")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        "right on dpctl",
        "2147483647 opencl, dpctl launcher",
        "[1, 0, 0, 0, 1, 1, 1]",
        "grid: at most 2147483647 threads in one launch on sycl:cpu, got '16777216 x 1...f 128 threads' (str). "
        "Launch in parts. [GRID-7]",
        "42",
        "32640.0 True",
    ]


def test_compiler_that_fails_shows_what_it_said(sycl, tmp_path):
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\necho 'no such flag' >&2\nexit 3\n")
    broken.chmod(0o755)
    ran = run_program(tmp_path, ADD + "\n    check()\n", XDG_CACHE_HOME=str(tmp_path / "home"), CXX=str(broken))
    assert ran.returncode == 1
    assert "exit code 3" in ran.stderr
    assert "no such flag" in ran.stderr
    assert list((tmp_path / "home" / "gridpact" / "native").iterdir()) == []


def test_forked_child_gets_a_clear_error(sycl, tmp_path):
    program = (
        ADD
        + """
    import os
    check()
    child = os.fork()
    if child == 0:
        try:
            check()
        except gridpact.BackendError as error:
            print(error, flush=True)
        os._exit(7)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status))
    check()
    """
    )
    ran = run_program(tmp_path, program)
    lines = ran.stdout.splitlines()
    assert lines[0] == lines[3] == "right on native", ran.stderr
    assert "forked" in lines[1]
    assert "spawn" in lines[1]
    assert lines[2] == "7"


@pytest.mark.parametrize("is_held", [False, True])
def test_forked_child_leaves_with_its_own_exit_code(sycl, tmp_path, is_held):
    """Also while a kernel of its parent is in flight: the runtime would wait for threads that did not come along."""
    program = (
        ADD
        + HOLD
        + f"""
    import os, sys

    if {is_held}:
        hold[1](flag, stream=gridpact.Stream("sycl:cpu"))
        while not flag[1]:
            pass
    child = os.fork()
    if child == 0:
        print("from the child")
        sys.exit(5)
    _, status = os.waitpid(child, 0)
    flag[0] = 1
    print(os.waitstatus_to_exitcode(status))
    """
    )
    ran = run_program(tmp_path, program)
    assert (ran.returncode, ran.stdout) == (0, "from the child\n5\n"), ran.stderr


def test_process_that_exits_with_a_kernel_in_flight_ends_well(sycl, tmp_path):
    program = (
        ADD
        + """
    @gridpact.jit
    def work(out, n):
        total = 0
        for i in range(n):
            total += tl.load(out + 1, volatile=True)
        tl.store(out, total)

    out = np.zeros(2, np.int32)
    work[1](out, 3_000_000, stream=gridpact.Stream("sycl:cpu"))
    print("leaving")
    """
    )
    ran = run_program(tmp_path, program)
    assert (ran.returncode, ran.stdout) == (0, "leaving\n"), ran.stderr


def test_failed_device_assertion_aborts_the_process_with_its_place(sycl, tmp_path):
    program = (
        ADD
        + """
    @gridpact.jit(debug=True)
    def check_positive(x):
        tl.device_assert(tl.load(x) > 0, "not positive")

    check_positive[1](np.ones(1, np.int32))
    print("positive passed", flush=True)
    check_positive[1](np.zeros(1, np.int32))
    """
    )
    ran = run_program(tmp_path, program)
    assert ran.stdout.startswith("positive passed")
    assert ran.returncode == -signal.SIGABRT
    assert "not positive" in ran.stdout + ran.stderr


@pytest.mark.parametrize("streams", ["one", "one for each launch"])
def test_process_ends_well_while_daemon_threads_launch(sycl, tmp_path, streams):
    """The runtime's own end, and that of queues and kernels, must not meet a thread that is using them."""
    stream = "stream" if streams == "one" else "gridpact.Stream()"
    program = tmp_path / "program.py"
    program.write_text(
        "import threading, time\nimport numpy as np\nimport gridpact\nimport triton.language as tl\n"
        "@gridpact.jit\ndef kernel(seen, n):\n    tl.store(seen, n)\n"
        "stream = gridpact.Stream()\nkernel[1](np.zeros(1, np.int32), 3)\n"
        "def launch():\n"
        f"    while True:\n        kernel[1](np.zeros(1, np.int32), 3, stream={stream})\n"
        "for _ in range(3):\n    threading.Thread(target=launch, daemon=True).start()\n"
        "time.sleep(0.05)\n"
    )
    for _ in range(5):
        ran = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60, check=False)
        assert (ran.returncode, ran.stderr) == (0, "")


def test_process_ends_well_while_daemon_threads_compile(sycl, tmp_path):
    """The compiler must not come back to an interpreter that has ended meanwhile."""
    program = tmp_path / "program.py"
    program.write_text(
        "import threading, time\nimport numpy as np\nimport gridpact\nimport triton.language as tl\n"
        "@gridpact.jit\ndef kernel(seen, N: tl.constexpr):\n    tl.store(seen, N)\n"
        "numbers = iter(range(10**9))\ngridpact.open_device('sycl:cpu')\n"
        "def launch():\n    while True:\n        kernel[1](np.zeros(1, np.int32), next(numbers))\n"
        "for _ in range(3):\n    threading.Thread(target=launch, daemon=True).start()\n"
        "time.sleep(0.3)\n"
    )
    for _ in range(5):
        ran = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60, check=False)
        assert (ran.returncode, ran.stderr) == (0, "")


def test_launch_of_an_exit_function_is_waited_for(sycl, tmp_path):
    """It was registered before the device was opened, so it runs after the device's own."""
    program = (
        "\n    import atexit\n    atexit.register(lambda: last())\n"
        + ADD
        + """
    @gridpact.jit
    def work(out, n):
        total = 0
        for i in range(n):
            total += tl.load(out + 1, volatile=True)
        tl.store(out, total + 7)

    out = np.zeros(2, np.int32)
    stream = gridpact.Stream("sycl:cpu")

    def last():
        work[1](out, 3_000_000, stream=stream)
        print(out[0])
    """
    )
    ran = run_program(tmp_path, program)
    assert (ran.returncode, ran.stdout) == (0, "7\n"), ran.stderr


def test_event_in_a_forked_child_says_why(sycl, tmp_path):
    program = (
        ADD
        + HOLD
        + """
    import os

    stream = gridpact.Stream("sycl:cpu")
    hold[1](flag, stream=stream)
    event = stream.record()
    while not flag[1]:
        pass
    child = os.fork()
    if child == 0:
        for ask in (event.synchronize, lambda: event.is_complete):
            try:
                ask()
            except gridpact.BackendError as error:
                print("forked" in str(error), flush=True)
        print(gridpact.backends.device_status("sycl:cpu").is_usable, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    flag[0] = 1
    """
    )
    ran = run_program(tmp_path, program)
    assert (ran.returncode, ran.stdout) == (0, "True\nTrue\nFalse\n"), ran.stderr


def test_what_the_end_of_the_process_asks_to_free_is_kept_while_it_is_used(monkeypatch):
    called = []
    monkeypatch.setattr(ending.weakref, "finalize", lambda owner, call: called.append(call))
    freed, owner = [], type("Owner", (), {})()
    ending.free_with(owner, lambda: freed.append(7))
    called[0]()  # as `atexit` does it, whatever a thread is at
    assert freed == []
    del owner
    called[0]()
    assert freed == [7]
