"""The SYCL runtime's part of a launch under the sanitizers: real kernels on the CPU, and what they wrote."""

import contextvars
import gc
import os
import threading
import time

import numpy as np
import triton.language as tl

import gridpact
from gridpact import native

if os.environ.get("GRIDPACT_SANITIZED"):
    native._FLAGS = (*native._FLAGS, "-fsanitize=address,undefined", "-fno-omit-frame-pointer", "-g", "-O1")


@gridpact.jit
def kernel(a, n, x, N: tl.constexpr):
    tl.store(a + tl.program_id(0), n + N + x)


def refused(call, *args):
    try:
        call(*args)
    except Exception:
        return True
    return False


def launches(times):
    a, b = np.zeros(64, "i4"), np.zeros(32, "f8")
    for i in range(2, times):
        kernel[(64,)](a, i, 0, 5)
        assert (a == i + 5).all()
        kernel[lambda meta: [32]](b, i, 0.5, 5)
        assert (b == i + 5.5).all()
        assert refused(kernel[-1], a, i, 0, 5)
        assert refused(kernel[lambda meta: 1 / 0], a, i, 0, 5)


def on_streams(times):
    """Launches in flight, whose kernels, arrays and streams nobody else keeps."""
    for i in range(2, times):
        if i % 20 == 2:
            new = gridpact.jit(kernel.fn)
        stream = gridpact.Stream("sycl:cpu")
        a = np.zeros(64, "i4")
        new[(64,)](a, i, 0, 5, stream=stream)
        new[(64,)](np.zeros(64, "i4"), i, 0, 5, stream=stream)
        gridpact.open_device("sycl:cpu").synchronize(stream)
        assert (a == i + 5).all()
        new[(64,)](a, i, 0, 5, stream=stream)
        if i % 2:
            stream.close()
        gc.collect()


def forever():
    while True:
        kernel[(64,)](np.zeros(64, "i4"), 7, 0, 5)


def in_thread(call, *args, **options):
    thread = threading.Thread(target=contextvars.copy_context().run, args=[call, *args], **options)
    thread.start()
    return thread


with gridpact.device("sycl:cpu"):
    launches(100)
    assert native.path.again(kernel, (64,), (np.zeros(64, "i4"), 9, 0, 5), {}) is not None
    for thread in [in_thread(launches, 100) for _ in range(3)]:
        thread.join()
    on_streams(60)
    for _ in range(2):
        in_thread(forever, daemon=True)
    time.sleep(0.05)
print("through")
