"""Native code: under AddressSanitizer on every path, errors too, and launches that leave no memory behind."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import gridpact
from gridpact import native, toolchain
from gridpact.arguments import classify
from gridpact.contract import kernels

PROGRAM = """
    import numpy as np
    import gridpact
    from gridpact import native

    native._FLAGS = (*native._FLAGS, "-fsanitize=address", "-g", "-fno-omit-frame-pointer")
    from gridpact.contract import kernels

    probes = kernels("triton")

    seen = np.zeros(7 * 24, np.int32)
    probes.coordinates[(4, 3, 2)](seen, 4, 3)
    device = gridpact.open_device("sycl:cpu")
    stream = gridpact.Stream()
    for _ in range(200):
        probes.coordinates[(4, 3, 2)](seen, 4, 3, stream=stream)
    stream.close()
    print((seen[::7] == 201).all())

    route, queue = device.route, device.default_stream().handle
    for call in (
        lambda: route.load(queue, bytes(64), 0, "x", ""),
        lambda: route.load(queue, bytes(64), 2, "x", ""),
        lambda: route.load(queue, b"no binary", 1, "x", ""),
        lambda: route.load(queue, b"", 0, "x", ""),
        lambda: route.new_queue(99, True),
        lambda: route.is_on(queue, 99),
        lambda: route.submit(queue, kernel.handle, (1, 1, 7), (1, 1, 0), 0, []),
        lambda: route.submit(queue, kernel.handle, (1, 1, 2**20), (1, 1, 2**20), 0, []),
    ):
        kernel = next(iter(next(iter(device._loaded.values())).values()))
        try:
            call()
        except gridpact.BackendError as error:
            print("refused:", str(error).splitlines()[0])
    print(device.route._library.gp_device_text(0, None, 0), device.route._library.gp_device_numbers(0, None, 0))
"""


def sanitizer():
    """Find the compiler's AddressSanitizer runtime, or nothing."""
    name = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=False).stdout
    return name.strip() if os.path.isabs(name.strip()) else ""


def test_native_code_is_clean_under_address_sanitizer(sycl, tmp_path):
    if not native.compiler() or not sanitizer():
        pytest.skip("AddressSanitizer's runtime is not installed")
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(PROGRAM))
    standard = subprocess.run(["gcc", "-print-file-name=libstdc++.so"], capture_output=True, text=True, check=True)
    env = {
        **os.environ,
        "LD_PRELOAD": f"{sanitizer()}:{standard.stdout.strip()}",
        # The runtime that is tested with keeps memory until the process ends; its own leaks are not the question here.
        "ASAN_OPTIONS": "detect_leaks=0:protect_shadow_gap=0",
        "PYTHONMALLOC": "malloc",
        "XDG_CACHE_HOME": str(tmp_path),
    }
    ran = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=280, env=env, check=False)
    lines = ran.stdout.splitlines()
    assert "AddressSanitizer" not in ran.stderr, ran.stderr
    assert ran.returncode == 0, ran.stderr
    assert lines[0] == "True"
    assert sum(line.startswith("refused:") for line in lines) == 8
    assert lines[-1] == "-1 -1"


def resident_kib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


@pytest.mark.parametrize("is_asynchronous", [False, True])
@pytest.mark.parametrize("launches", [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
@pytest.mark.timeout(1800)
def test_launches_leave_no_memory_behind(sycl, launches, is_asynchronous):
    optional = kernels("triton").optional

    stream = gridpact.Stream() if is_asynchronous else None
    options = {"stream": stream} if is_asynchronous else {}
    sizes = []
    for i in range(launches):
        optional[1](np.zeros(1, np.int64), None, **options)
        if i % (launches // 10) == launches // 10 - 1:
            gridpact.synchronize(stream)
            sizes.append(resident_kib())
    assert sizes[-1] <= sizes[0] * 1.01, sizes


@pytest.mark.parametrize("binaries", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.timeout(1800)
def test_binaries_that_come_and_go_leave_no_memory_behind(sycl, binaries):
    optional = kernels("triton").optional

    device, seen = gridpact.open_device(sycl), np.zeros(1, np.int64)
    compiled = optional.warmup(seen, None)
    leaves = classify(optional.signature, {"seen": seen, "extra": None}).leaves
    sizes = []
    for i in range(binaries):
        binary = toolchain.Binary(compiled.asm, "spv", compiled.metadata)  # a new one: loaded again
        kernel = device.load(binary, leaves, device.default_stream())
        assert device.load(binary, leaves, device.default_stream()) is kernel
        del binary, kernel
        if i % (binaries // 10) == binaries // 10 - 1:
            sizes.append(resident_kib())
    assert sizes[-1] <= sizes[0] * 1.01, sizes
