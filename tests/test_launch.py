"""Launches on each device: what comes back, refusals before anything ran, threads, identity of binaries."""

import threading

import numpy as np
import pytest

import gridpact
from gridpact.contract import kernels


@pytest.fixture
def probes(device):
    return kernels("reference" if device == "reference" else "triton")


def poisoned(n=7):
    return np.full(n, -77, np.int32)


def test_launch_gives_the_compiled_kernel(device, probes):
    seen = np.full(1, -77, np.int64)
    compiled = probes.optional[1](seen, None)
    assert isinstance(compiled, gridpact.CompiledKernel)
    assert compiled.name == "optional"
    assert compiled.asm
    assert compiled.metadata.threads >= 1
    assert compiled.n_regs == compiled.n_spills == 0
    assert len(compiled.hash) == 64
    assert probes.optional[2](seen, None) is compiled


def test_warmup_compiles_and_does_not_launch(device, probes):
    seen = np.full(1, -77, np.int64)
    compiled = probes.optional.warmup(seen, (2, (3, None)), grid=(1,))
    assert seen[0] == -77
    assert probes.optional[1](seen, (2, (3, None))) is compiled
    assert seen[0] == 5


def test_warmup_takes_dtypes_for_tensors(device, probes):
    compiled = probes.optional.warmup(np.int64, None)
    aligned = np.full(8, -77, np.int64)
    aligned = aligned[(-aligned.ctypes.data % 16) // 8 :]
    assert probes.optional[1](aligned, None) is compiled
    assert aligned[0] == 1


def test_compiled_kernel_launches_what_it_was_built_for(device, probes):
    seen = np.full(8, -77, np.int64)
    seen = seen[(-seen.ctypes.data % 16) // 8 :]
    compiled = probes.optional.warmup(seen, None)
    assert compiled[(1,)](seen, None) is compiled
    assert seen[0] == 1
    for wrong in ((seen, (2, (3, None))), (seen[1:], None), (seen.view("f8"), None)):
        before = seen.copy()
        with pytest.raises(gridpact.ContractError) as caught:
            compiled[(1,)](*wrong)
        assert caught.value.clause == "SPEC-1"
        assert np.array_equal(before, seen)


def test_misaligned_view_after_an_aligned_one_is_right(device, probes):
    whole = np.full(64, -77, np.int64)
    binaries = set()
    for offset in range(4):
        binaries.add(probes.optional[1](whole[8 * offset + offset :], None).hash)
        assert whole[8 * offset + offset] == 1
    assert len(binaries) == 2  # aligned to 16 bytes and not
    assert (whole == 1).sum() == 4


def test_constexprs_of_other_type_make_other_binaries(device):
    if device == "reference":

        @gridpact.jit
        def kernel(out, C: "tl.constexpr"):
            out[0] = 1 / np.float32(C) if C else np.copysign(np.inf, C)

    else:
        import triton.language as tl

        @gridpact.jit
        def kernel(out, C: tl.constexpr):
            # Triton 3.3 itself loses the sign when it makes a tensor of -0.0, so look at the constant.
            name: tl.constexpr = f"{C}"
            tl.store(out, float("-inf") if name == "-0.0" else float("inf"))

    out = np.ones(2, np.float32)
    hashes = [kernel[1](out, C).hash for C in (1, True, 1.0, 2, 2.0)]
    assert len(set(hashes)) == 5
    kernel[1](out, 0.0)
    assert out[0] == np.inf
    kernel[1](out, -0.0)
    assert out[0] == -np.inf
    nan = float("nan")
    assert kernel[1](out, nan).hash == kernel[1](out, -nan).hash


def test_options_are_refused_by_name_before_anything_ran(device, probes):
    seen = poisoned()
    wrong = [
        ({"num_warp": 4}, TypeError, "META-3"),
        ({"WIDTH": 4}, TypeError, "META-3"),
        ({"num_ctas": 2}, gridpact.UnsupportedError, "META-2"),
        ({"num_ctas": True}, ValueError, "META-2"),
        ({"stream": 0}, TypeError, "STREAM-5"),
        ({"stream": "s"}, TypeError, "STREAM-5"),
        ({"device": "reference:1"}, ValueError, "DEVICE-1"),
        ({"device": "cuad"}, ValueError, "DEVICE-1"),
        ({"device": 0}, TypeError, "DEVICE-1"),
    ]
    for options, kind, clause in wrong:
        with pytest.raises(gridpact.LaunchError) as caught:
            probes.coordinates[1](seen, 1, 1, **options)
        assert isinstance(caught.value, kind), options
        assert caught.value.clause == clause
        assert np.array_equal(seen, poisoned())


def test_kernel_parameter_named_like_an_option_wins(device):
    if device == "reference":

        @gridpact.jit
        def kernel(out, stream, num_warps):
            out[0] = stream + num_warps

    else:
        import triton.language as tl

        @gridpact.jit
        def kernel(out, stream, num_warps):
            tl.store(out, stream + num_warps)

    out = poisoned(1)
    kernel[1](out, stream=40, num_warps=2)
    assert out[0] == 42


def test_calling_a_kernel_is_refused(probes):
    with pytest.raises(gridpact.ContractError, match=r"Write coordinates\[grid\]"):
        probes.coordinates(1, 2, 3)


def test_many_threads_compile_once_and_run_right(device, probes):
    if device == "reference":

        @gridpact.jit
        def kernel(out, n):
            out[0] = n

    else:
        import triton.language as tl

        @gridpact.jit(do_not_specialize=["n"])
        def kernel(out, n):
            tl.store(out, n)

    outs = [np.full(16, -77, np.int32) for _ in range(16)]
    compiled, failed = [], []
    barrier = threading.Barrier(len(outs))

    def work(i):
        try:
            with gridpact.device(device):
                barrier.wait()
                for _ in range(20):
                    compiled.append(kernel[1](outs[i], i))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(outs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert [out[0] for out in outs] == list(range(16))
    assert len({id(one) for one in compiled}) == len({one.hash for one in compiled}) == len(kernel.compiled)


def test_device_context_is_of_this_thread_only(device):
    names = []
    thread = threading.Thread(target=lambda: names.append(gridpact.backends.current_device()))
    thread.start()
    thread.join()
    assert names == [gridpact.backends.DEFAULT_DEVICE]
    assert gridpact.backends.current_device() == device


def test_dropped_kernels_and_binaries_are_freed(device, probes):
    import gc
    import weakref

    def make(offset):
        if device == "reference":

            @gridpact.jit
            def kernel(out):
                out[0] = offset

        else:
            import triton.language as tl

            value = tl.constexpr(offset)

            @gridpact.jit
            def kernel(out):
                tl.store(out, value)

        out = poisoned(1)
        compiled = kernel[1](out)
        assert out[0] == offset
        return weakref.ref(kernel), weakref.ref(compiled.binary)

    references = [make(offset) for offset in (3, 4)]
    gc.collect()
    assert [kernel() for kernel, _ in references] == [None, None]
    assert [binary() for _, binary in references] == [None, None]
