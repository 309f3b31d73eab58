"""What only a GPU shows of the CUDA backend, beside the clauses: `make verify-gpu` asks those, and these."""

import gc
import threading

import numpy as np
import pytest

import gridpact
from gridpact.backends import cuda as backend

pytest.importorskip("triton", exc_type=ImportError)
import triton
import triton.language as tl

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]


@gridpact.jit
def scaled(x, out, n, factor: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) * factor, at < n)


@gridpact.jit
def product(a, b, out, K: tl.constexpr, SIZE: tl.constexpr):
    i, j = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    total = tl.zeros((SIZE, SIZE), tl.float32)
    for k in range(0, K, SIZE):
        left = tl.load(a + i * K + k + j)
        right = tl.load(b + (k + i) * SIZE + j)
        total += tl.dot(left, right)
    tl.store(out + i * SIZE + j, total)


def ask(call, *args):
    from cuda.bindings import driver

    code, *results = getattr(driver, call)(*args)
    assert not code, (call, code)
    return results[0] if results else None


@pytest.fixture
def torch():
    return pytest.importorskip("torch", exc_type=ImportError)


def library_of(name):
    module = pytest.importorskip(name)
    if name == "jax":
        module = pytest.importorskip("jax.numpy")
        return module.asarray, np.asarray
    if name == "numba":
        from numba import cuda

        return cuda.to_device, lambda array: array.copy_to_host()
    if name == "torch":
        return lambda array: module.from_numpy(array).cuda(), lambda tensor: tensor.cpu().numpy()
    return module.asarray, module.asnumpy


@pytest.mark.filterwarnings("ignore::Warning")  # of the libraries' own
@pytest.mark.parametrize("name", ["torch", "cupy", "numba"])
def test_arrays_of_each_library_are_read_and_written(name):
    to_device, to_host = library_of(name)
    x, out = np.arange(1000, dtype=np.float32), np.full(1001, -7, np.float32)
    given, written = to_device(x), to_device(out)
    compiled = scaled[(4,)](given, written, 1000, 3, 256)
    gridpact.synchronize("cuda:0")
    assert compiled.device.name == "cuda:0"
    assert to_host(written).tolist() == [*(3 * x), -7]


@pytest.mark.filterwarnings("ignore::Warning")
def test_an_array_of_jax_is_read(torch, monkeypatch):
    """JAX's arrays never change, so they are for parameters that are only read."""
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # it would take most of the GPU's memory
    jax = pytest.importorskip("jax")

    @gridpact.jit
    def copied(x: tl.const, out, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at))

    x = jax.numpy.arange(64, dtype="int32") + 5
    x.block_until_ready()
    out = torch.zeros(64, dtype=torch.int32, device="cuda")
    copied[(1,)](x, out, BLOCK=64)
    assert out.tolist() == list(range(5, 69))


def test_a_raw_address_with_a_declared_type_is_an_argument(torch):
    class Raw:
        dtype = "float32"

        def __init__(self, tensor):
            self.tensor = tensor

        def data_ptr(self):
            return self.tensor.data_ptr()

    x, out = torch.arange(10, dtype=torch.float32, device="cuda"), torch.zeros(10, device="cuda")
    with gridpact.device("cuda:0"):
        scaled[(1,)](Raw(x), Raw(out), 10, 2, 16)
    gridpact.synchronize("cuda:0")
    assert out.tolist() == [2.0 * i for i in range(10)]


def test_pinned_memory_is_ready_and_other_host_memory_is_refused(torch):
    x, out = torch.arange(100, dtype=torch.float32).pin_memory(), torch.zeros(100).pin_memory()
    for factor in (2, 5):
        scaled[(1,)](x, out, 100, factor, 128, device="cuda:0")
        assert out.tolist() == [float(factor * i) for i in range(100)]
    with pytest.raises(gridpact.ContractError, match=r"'x' of 'scaled'.*cuda:0 can reach.*host memory.*\[DEVICE-1\]"):
        scaled[(1,)](np.zeros(8, np.float32), out, 8, 2, 16, device="cuda:0")


def test_shared_memory_beyond_48_kib(torch):
    a, b = torch.randn(128, 256, device="cuda"), torch.randn(256, 128, device="cuda")
    out = torch.zeros(128, 128, device="cuda")
    compiled = product[(1,)](a.half(), b.half(), out, 256, 128, num_warps=8, num_stages=3)
    assert compiled.metadata.shared > 48 * 1024
    exact = a.half().double() @ b.half().double()
    assert (out.double() - exact).abs().max() < 256 * 2.0**-10


def test_maxnreg_bounds_the_registers(torch):
    from cuda.bindings import driver

    x, device, found = torch.arange(8192, dtype=torch.float32, device="cuda"), gridpact.open_device("cuda:0"), {}
    for most in (None, 64):
        out = torch.zeros(8192, device="cuda")
        compiled = scaled[(1,)](x, out, 8192, 2, 8192, num_warps=1, maxnreg=most)
        assert torch.equal(out, 2 * x)
        kind = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NUM_REGS
        found[most] = ask("cuFuncGetAttribute", kind, device._loaded[compiled.binary].handle)
    assert found[64] <= 64 < found[None]


@pytest.mark.parametrize("options", [{"num_ctas": 2}, {"launch_cooperative_grid": True}, {"launch_pdl": True}])
def test_clusters_cooperative_and_programmatic_launches_are_right(torch, options):
    x, out = torch.arange(4096, dtype=torch.float32, device="cuda"), torch.zeros(4096, device="cuda")
    for factor in (2, 3):  # the second may begin before the first is over, if it is told so
        scaled[(32,)](x, out, 4096, factor, 128, **options)
    assert torch.equal(out, 3 * x)


def test_memory_on_a_stream_that_its_library_does_not_know_is_kept(torch):
    """torch would give the memory to the next tensor while the kernel still waits to run."""

    @gridpact.jit
    def waits(flag, x, turns):
        turn = 0
        while (tl.atomic_add(flag, 0) == 0) & (turn < turns):
            turn += 1
        tl.store(x, tl.load(x) + 1)

    stream, flag = gridpact.Stream("cuda:0"), torch.zeros(1, dtype=torch.int32, device="cuda")
    x = torch.full((64,), 5, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    waits[(1,)](flag, x, 20_000_000, stream=stream)
    address = x.data_ptr()
    del x
    gc.collect()
    others = [torch.zeros(64, dtype=torch.int32, device="cuda") for _ in range(100)]
    assert address not in [other.data_ptr() for other in others]
    with torch.cuda.stream(torch.cuda.Stream()):
        flag.fill_(1)
    gridpact.synchronize(stream)
    assert not any(other.any() for other in others)
    gridpact.synchronize("cuda:0")
    assert not gridpact.open_device("cuda:0")._flights


def test_modules_of_dropped_kernels_are_unloaded(torch, monkeypatch):
    x, loaded, driver_call = torch.zeros(16, device="cuda"), [], backend._ask

    def noted(call, *args):
        result = driver_call(call, *args)
        if call == "cuModuleLoadData":
            loaded.append(int(result))
        elif call == "cuModuleUnload" and int(args[0]) in loaded:  # another is of a kernel that an earlier test dropped
            loaded.remove(int(args[0]))
        return result

    monkeypatch.setattr(backend, "_ask", noted)
    for factor in range(2, 60):
        kernel = gridpact.jit(scaled.fn)
        kernel[(1,)](x, x, 16, factor, 16)
        del kernel
        gc.collect()
    gridpact.synchronize("cuda:0")
    assert len(loaded) <= 2


def test_a_thread_keeps_the_context_that_it_had(torch):
    """A launch on a thread without a context makes the device's own current, and takes it back."""
    x, seen = torch.ones(16, device="cuda"), []

    def launch():
        seen.append(int(ask("cuCtxGetCurrent")))
        scaled[(1,)](x, x, 16, 2, 16)
        seen.append(int(ask("cuCtxGetCurrent")))

    thread = threading.Thread(target=launch)
    thread.start()
    thread.join()
    assert seen == [0, 0]
    assert x.tolist() == [2.0] * 16


def test_plain_triton_runs_through_our_launcher(torch, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    calls, launch = [], gridpact.triton.Launcher.__call__
    monkeypatch.setattr(
        gridpact.triton.Launcher, "__call__", lambda self, *args: calls.append(args[:3]) or launch(self, *args)
    )
    triton.runtime.driver.set_active(gridpact.triton.driver("cuda:0"))
    try:

        @triton.autotune([triton.Config({"BLOCK": block}) for block in (64, 128)], key=["n"])
        @triton.jit
        def doubled(x, n, BLOCK: tl.constexpr):
            at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            tl.store(x + at, 2 * tl.load(x + at, at < n), at < n)

        x = torch.ones(1000, device="cuda")
        doubled[lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)](x, 1000)
        before = x.clone()
        doubled[lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)](x, 1000)
        assert torch.equal(x, 2 * before)
        assert calls[-1] in ((16, 1, 1), (8, 1, 1))
        with pytest.raises(gridpact.ContractError, match=r"^grid\.y: .*65535"):
            doubled[(1, 65536)](x, 1000)
    finally:
        triton.runtime.driver.reset_active()


def test_what_triton_packs_keeps_our_checks(torch):
    from triton.tools.tensor_descriptor import TensorDescriptor

    @gridpact.jit
    def added(source, out, BLOCK: tl.constexpr):
        row = tl.program_id(0)
        tl.store(out + row * BLOCK + tl.arange(0, BLOCK), tl.reshape(source.load([row, 0]), (BLOCK,)) + 1)

    source, out = torch.arange(128, dtype=torch.float32, device="cuda").reshape(2, 64), torch.zeros(128, device="cuda")
    described, stream = TensorDescriptor.from_tensor(source, [1, 64]), gridpact.Stream("cuda:0")
    torch.cuda.synchronize()
    added[(2,)](described, out, 64, stream=stream)
    gridpact.synchronize(stream)
    assert torch.equal(out, source.ravel() + 1)
    for grid, options, told in (
        ((1, 65536), {}, r"grid\.y: .*\[GRID-7\]"),
        ((65536, 32768), {}, r"grid: .*\[GRID-8\]"),
        ((2,), {"num_warp": 2}, r"num_warps.*\[META-3\]"),
        ((2,), {"stream": 7}, r"\[STREAM-5\]"),
        ((2,), {"device": "reference"}, r"'source' of 'added'.*\[DEVICE-1\]"),
    ):
        with pytest.raises(gridpact.LaunchError, match=told):
            added[grid](described, out, 64, **options)


def test_an_event_and_a_stream_serve_a_thread_without_a_context(torch):
    stream, x, seen = gridpact.Stream("cuda:0"), torch.ones(16, device="cuda"), []
    torch.cuda.synchronize()
    scaled[(1,)](x, x, 16, 3, 16, stream=stream)
    event = stream.record()

    def wait():
        event.synchronize()
        seen.append((event.is_complete, x.tolist()))
        scaled[(1,)](x, x, 16, 3, 16, stream=torch.cuda.Stream())

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    assert seen == [(True, [3.0] * 16)]


def test_pinned_memory_alone_under_capture_is_refused(torch):
    """It would be waited for on the default stream, which would end the capture of another one."""
    x, y = torch.ones(16).pin_memory(), torch.ones(16, device="cuda")
    scaled[(1,)](x, x, 16, 2, 16, device="cuda:0")
    scaled[(1,)](y, y, 16, 2, 16)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(gridpact.ContractError, match=r"\[CAPTURE-1\]"):
            scaled[(1,)](x, x, 16, 2, 16, device="cuda:0")
        scaled[(1,)](y, y, 16, 2, 16)
    graph.replay()
    torch.cuda.synchronize()
    assert (x.tolist(), y.tolist()) == ([2.0] * 16, [4.0] * 16)


def test_an_unknown_device_names_those_that_are_here():
    with pytest.raises(gridpact.ContractError, match=r"expected one of cuda:0.*\[DEVICE-1\]"):
        gridpact.open_device("cuda:64")


def test_binary_that_is_no_module_is_an_error_of_the_driver(torch):
    device = gridpact.open_device("cuda:0")
    binary = gridpact.toolchain.Binary({"cubin": b"\x7fELF" + bytes(200)}, "cubin", gridpact.KernelMetadata("none"))
    with pytest.raises(gridpact.BackendError, match="cuModuleLoadData"):
        device.load(binary, [], device.default_stream())


def test_two_gpus_reach_each_other_or_are_refused(torch):
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU is here: two of one host are needed")
    near = torch.arange(16, dtype=torch.float32, device="cuda:1")
    far = torch.zeros(16, device="cuda:0")
    torch.cuda.synchronize(0), torch.cuda.synchronize(1)
    compiled = scaled[(1,)](near, near, 16, 2, 16)  # the first pointer's owner
    assert compiled.device.name == "cuda:1"
    torch.cuda.synchronize(1)
    assert near.tolist() == [2.0 * i for i in range(16)]
    with pytest.raises(gridpact.ContractError, match=r"expected one of cuda:1.*\[STREAM-5\]"):
        scaled[(1,)](near, near, 16, 2, 16, stream=torch.cuda.Stream(device=0))
    with pytest.raises(gridpact.ContractError, match=r"'out' of 'scaled'.*cuda:1 can reach.*cuda:0.*\[DEVICE-1\]"):
        scaled[(1,)](near, far, 16, 2, 16)
    context = ask("cuDevicePrimaryCtxRetain", ask("cuDeviceGet", 0))
    with torch.cuda.device(1):
        ask("cuCtxEnablePeerAccess", context, 0)  # from here on a kernel on 1 can follow memory of 0
    scaled[(1,)](near, far, 16, 2, 16)  # on the stream that is torch's current one on the launch device
    torch.cuda.synchronize(1)
    assert far.tolist() == [4.0 * i for i in range(16)]


def test_a_prepared_launch_goes_to_the_current_stream_and_into_a_graph(torch, natively):
    x, out = torch.full((16,), 3.0, device="cuda"), torch.zeros(16, device="cuda")
    prepared = scaled.prepare(x, out, 16, 5, 16, grid=(1,))
    prepared(x, out, 16, 5, 16)
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        prepared(x, out, 16, 5, 16)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        prepared(x, out, 16, 5, 16)
    assert [told["stream"] for told in natively[:2]] == [0, side.cuda_stream]
    assert len({told["stream"] for told in natively}) == 3
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert out.tolist() == [15.0] * 16


def test_memory_on_a_given_stream_is_held_natively(torch, natively, monkeypatch):
    device, held = gridpact.open_device("cuda:0"), []
    add = type(device._flights).add
    monkeypatch.setattr(device._flights, "add", lambda *args: held.append(args) or add(device._flights, *args))
    stream = gridpact.Stream("cuda:0")
    x, out = torch.ones(16, device="cuda"), torch.zeros(16, device="cuda")
    torch.cuda.synchronize()
    for _ in range(3):
        scaled[(1,)](x, out, 16, 2, 16, stream=stream)
    assert len(natively) == len(held) == 3
    for handle, _, keep in held:
        assert handle == stream.handle
        assert {id(x), id(out), id(stream.owner)} <= set(map(id, keep))
    gridpact.synchronize("cuda:0")
    assert not device._flights
    assert out.tolist() == [2.0] * 16


def test_a_negated_view_is_refused_natively(torch, natively):
    plain = torch.zeros(32, device="cuda")
    scaled[(1,)](plain[::2], plain[::2], 16, 2, 16)
    view = torch.zeros(16, dtype=torch.complex64, device="cuda").conj().imag
    with pytest.raises(gridpact.ContractError, match="lazy view"):
        scaled[(1,)](view, view, 16, 2, 16)
    assert len(natively) == 1
