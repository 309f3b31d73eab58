"""Torch's CPU tensors as arguments: without a copy, by `@gridpact.jit` and by Triton's own decorators.

Kernels write over poison: NaN, or a value that no kernel here writes.
"""

import ctypes
from contextlib import contextmanager

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed here: `nox -s torch` has it")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

import gridpact  # noqa: E402
import gridpact.triton  # noqa: E402
from gridpact.errors import ContractError, ContractTypeError, ContractValueError  # noqa: E402
from gridpact.native import marks  # noqa: E402


@pytest.fixture(autouse=True)
def _on_cpu(sycl):
    with gridpact.device(sycl):
        torch.manual_seed(0)
        yield


@pytest.fixture
def driver(sycl, monkeypatch, tmp_path_factory):
    """Make plain `@triton.jit` programs run on gridpact; active before the test decorates anything."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "triton"))
    triton.runtime.driver.set_active(gridpact.triton.driver(sycl))
    yield
    triton.runtime.driver.reset_active()


@contextmanager
def refused(kind, clause, words):
    """Assert that a launch is refused by an error of this kind, for this clause, in these words."""
    with pytest.raises(kind, match=words) as caught:
        yield
    assert caught.value.clause == clause


# Kernels are defined as functions, and jitted by gridpact here or by Triton in the tests of its own decorators.


def _add_one(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)


def _copy(out, x: tl.const, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n), mask=at < n)


add_one = gridpact.jit(_add_one)
copy = gridpact.jit(_copy)


@gridpact.jit
def address(out, x):
    tl.store(out, x.to(tl.int64))


@gridpact.jit
def widen(out, x, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at).to(tl.float32))


# ---------------------------------------------------------------------------------------------------- without a copy


def made_in_inference_mode():
    with torch.inference_mode():
        return torch.zeros(64)


class Labelled(torch.Tensor):
    """A tensor subclass of a user."""


TENSORS = {
    "contiguous": lambda: torch.zeros(64),
    "slice with an offset": lambda: torch.zeros(99)[3:67],
    "transposed": lambda: torch.zeros(8, 8).T,
    "every second element": lambda: torch.zeros(128)[::2],
    "from_numpy": lambda: torch.from_numpy(np.zeros(64, np.float32)),
    "requires_grad": lambda: torch.zeros(64, requires_grad=True),
    "parameter": lambda: torch.nn.Parameter(torch.zeros(64)),
    "detached": lambda: torch.zeros(64, requires_grad=True).detach(),
    "in shared memory": lambda: torch.zeros(64).share_memory_(),
    "made in inference mode": made_in_inference_mode,
    "subclass": lambda: torch.zeros(64).as_subclass(Labelled),
}


@pytest.mark.parametrize("make", TENSORS.values(), ids=TENSORS)
def test_a_kernel_is_given_the_tensor_and_no_copy_of_it(make):
    x = make()
    seen = torch.full((1,), -1)
    address[1](seen, x)
    assert seen.item() == x.data_ptr()
    add_one[1](x, 1, BLOCK=16)
    assert x.detach().flatten()[:2].tolist() == [1, 0]


def test_a_slice_is_written_and_nothing_beside_it():
    whole = torch.full((100,), 7.0)
    add_one[4](whole[5:55], 50, BLOCK=16)
    assert whole.tolist() == [7] * 5 + [8] * 50 + [7] * 45


def test_numpy_sees_what_a_kernel_writes_to_its_memory():
    array = np.arange(50, dtype=np.float32)
    add_one[4](torch.from_numpy(array), 50, BLOCK=16)
    assert array.tolist() == list(range(1, 51))


def test_a_misaligned_slice_runs_a_binary_of_its_own():
    x = torch.zeros(65)
    aligned, misaligned = add_one[4](x, 64, BLOCK=16), add_one[4](x[1:], 64, BLOCK=16)
    assert aligned is not misaligned
    assert x.tolist() == [1] + [2] * 63 + [1]


def test_an_empty_tensor_is_an_argument():
    add_one[4](torch.empty(0), 0, BLOCK=16)


# ------------------------------------------------------------------------------------------------------ element types


DTYPES = [
    torch.bool, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32,
    torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e5m2, torch.float8_e4m3fn,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_elements_of_each_type_arrive_bit_by_bit(dtype):
    if dtype == torch.bool:
        x = torch.arange(100) % 3 == 0
    else:
        x = torch.arange(100 * dtype.itemsize, dtype=torch.uint8).view(dtype)
    out = torch.full((100 * dtype.itemsize,), 0xA5, dtype=torch.uint8)
    copy[4](out.view(dtype), x, 50, BLOCK=16)
    assert torch.equal(out[: 50 * dtype.itemsize], x.view(torch.uint8)[: 50 * dtype.itemsize])
    assert (out[50 * dtype.itemsize :] == 0xA5).all()


def test_bool_is_true_or_false_in_a_kernel():
    x, out = torch.tensor([True, False] * 8), torch.full((16,), torch.nan)
    widen[1](out, x, BLOCK=16)
    assert out.tolist() == [1, 0] * 8


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e5m2, torch.float8_e4m3fn], ids=str)
def test_narrow_floats_have_torchs_values(dtype):
    codes = 256**dtype.itemsize  # all of them
    x = torch.arange(codes).to(torch.uint16 if dtype.itemsize == 2 else torch.uint8).view(dtype)
    if dtype == torch.float8_e4m3fn:  # the toolchain reads this format's two NaNs as numbers
        x = torch.where(x.float().isnan(), 0, x.float()).to(dtype)
    out = torch.full((codes,), -12345.0)
    widen[codes // 256](out, x, BLOCK=256)
    torch.testing.assert_close(out, x.float(), rtol=0, atol=0, equal_nan=True)


REFUSED_DTYPES = [torch.complex64, torch.complex128, torch.float8_e8m0fnu]


@pytest.mark.parametrize("dtype", REFUSED_DTYPES, ids=str)
def test_a_type_that_kernels_do_not_have_is_refused_by_name(dtype):
    with refused(ContractTypeError, "ARG-3", rf"^argument 'x' of '_add_one': .*{str(dtype)[6:]}"):
        add_one[1](torch.zeros(16, dtype=dtype), 16, BLOCK=16)


# --------------------------------------------------------------------------------- tensors that are no memory to write


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(8).to_sparse(),
        lambda: torch.eye(8).to_sparse_csr(),
        lambda: torch.zeros(64).to_mkldnn(),
    ],
    ids=["sparse", "sparse rows", "opaque layout"],
)
def test_a_tensor_without_storage_is_refused(make):
    with refused(ContractTypeError, "ARG-3", "argument 'x' of '_add_one': expected a tensor with storage"):
        add_one[1](make(), 64, BLOCK=16)


def fake():
    with FakeTensorMode():
        return torch.empty(64)


def freed():
    tensor = torch.zeros(64)
    tensor.untyped_storage().resize_(0)
    return tensor


def jagged():
    return torch.nested.nested_tensor([torch.zeros(3), torch.zeros(4)], layout=torch.jagged)


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
@pytest.mark.parametrize("make", [fake, freed, jagged])
def test_elements_at_address_zero_are_refused(make):
    with refused(ContractError, "ARG-3", "^argument 'x' of '_add_one': "):
        add_one[0](make(), 64, BLOCK=16)  # an empty grid judges its arguments, and a failing test kills nothing


def test_a_meta_tensor_is_memory_that_the_device_cannot_reach():
    with refused(ContractValueError, "DEVICE-1", "^argument 'x' of '_add_one': .* meta"):
        add_one[1](torch.empty(64, device="meta"), 64, BLOCK=16)


def negated():
    """Give a view whose elements have the other sign in memory; only complex tensors make them."""
    return torch.zeros(64, dtype=torch.complex64).conj().imag


def test_a_lazily_negated_view_is_refused_and_its_resolved_copy_is_not():
    view = negated()
    with refused(ContractValueError, "ARG-3", r"lazy view.*resolve_neg"):
        add_one[4](view, 64, BLOCK=16)
    copied = view.resolve_neg()
    add_one[4](copied, 64, BLOCK=16)
    assert (copied == 1).all()


def test_a_negated_view_is_refused_where_launches_of_its_like_are_remembered(natively):
    plain = torch.zeros(128)
    for _ in range(2):
        add_one[4](plain[::2], 64, BLOCK=16)
    assert len(natively) == 2
    with refused(ContractValueError, "ARG-3", r"lazy view.*resolve_neg"):
        add_one[4](negated(), 64, BLOCK=16)
    assert len(natively) == 2


def test_the_mark_of_a_negated_view_is_found_and_told_right():
    mark = marks.negative_mark(torch)
    assert mark is not None
    inner_at, word_at, bit = mark

    def is_marked(tensor):
        inner = ctypes.c_uint64.from_address(id(tensor) + inner_at).value
        return bool(ctypes.c_uint64.from_address(inner + word_at).value & bit)

    plain = [
        torch.rand(3, 5).t(),
        torch.zeros(()),
        torch.ones(7, requires_grad=True).exp(),
        torch.nn.Parameter(torch.ones(2)),
    ]
    plain += [
        negated().resolve_neg(),
        torch.zeros(4, dtype=torch.complex64).conj().real,
        torch.ones(2)[None].expand(3, 2),
    ]
    views = [negated(), negated()[3:9], negated().view(8, 8).t(), torch._neg_view(torch.ones(3, dtype=torch.float16))]
    assert [is_marked(tensor) for tensor in (*plain, *views)] == [False] * len(plain) + [True] * len(views)


def test_torch_is_asked_where_the_experiment_shows_no_mark(monkeypatch):
    monkeypatch.setattr(torch, "_neg_view", lambda tensor: tensor[...])
    assert marks.negative_mark(torch) is None


def test_a_lazily_conjugated_view_is_refused():
    with refused(ContractTypeError, "ARG-3", "complex64"):
        add_one[1](torch.zeros(64, dtype=torch.complex64).conj(), 64, BLOCK=16)


def test_a_storage_is_no_tensor():
    with refused(ContractTypeError, "ARG-3", "^argument 'x' of '_add_one': "):
        add_one[1](torch.zeros(64).untyped_storage(), 64, BLOCK=16)


# ---------------------------------------------------------------------------------------------- grids, and dtypes alone


@gridpact.jit
def coordinates(out, y, z):
    at = (tl.program_id(2) * y + tl.program_id(1)) + tl.program_id(0) * y * z
    tl.store(out + at, at)


@pytest.mark.parametrize("shape", [(5,), (5, 3), (5, 3, 2)], ids=str)
@pytest.mark.parametrize("is_callable", [False, True], ids=["given", "returned"])
def test_torch_size_is_a_grid(shape, is_callable):
    size = torch.empty(shape).shape
    _, y, z = (*shape, 1, 1)[:3]
    out = torch.full((64,), -1, dtype=torch.int32)
    coordinates[(lambda meta: size) if is_callable else size](out, y, z)
    assert out.tolist() == [*range(size.numel()), *[-1] * (64 - size.numel())]


def test_a_torch_size_of_nothing_runs_nothing():
    x = torch.zeros(64)
    add_one[torch.empty(0, 3).shape](x, 64, BLOCK=16)
    assert (x == 0).all()


@pytest.mark.parametrize(
    "grid",
    [torch.tensor(2), torch.tensor([2]), (torch.tensor(2),), (1, torch.tensor(2)), lambda meta: torch.tensor(2)],
    ids=["0-d", "1-d", "axis x", "axis y", "returned"],
)
def test_a_tensor_is_no_count_of_programs(grid):
    x = torch.zeros(64)
    with refused(ContractTypeError, "GRID-1", "^grid"):
        add_one[grid](x, 64, BLOCK=16)
    assert (x == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_a_dtype_stands_for_a_tensor_in_warmup(dtype):
    out, x = torch.zeros(64, dtype=dtype), torch.ones(64, dtype=dtype)
    warm = copy.warmup(dtype, dtype, 64, BLOCK=16, grid=out.shape)
    assert (out == 0).all()
    assert copy[4](out, x, 64, BLOCK=16) is warm
    assert (out == 1).all()


def test_dtypes_in_warmup_are_told_apart_and_complex_is_refused():
    by_type = {copy.warmup(dtype, dtype, 64, BLOCK=16) for dtype in (torch.float32, torch.int32, torch.float64)}
    assert len(by_type) == 3
    with refused(ContractTypeError, "ARG-3", "complex64"):
        copy.warmup(torch.complex64, torch.complex64, 64, BLOCK=16)


def test_a_dtype_is_a_constant_that_kernels_can_compare():
    @gridpact.jit
    def compare(out, A: tl.constexpr, B: tl.constexpr):
        if A == B:
            tl.store(out, 1)
        else:
            tl.store(out, 2)

    out = torch.full((1,), -1)
    same = compare[1](out, torch.float16, torch.float16)
    assert out.item() == 1
    assert compare[1](out, torch.float16, torch.bfloat16) is not same
    assert out.item() == 2


# ------------------------------------------------------------------------------------------------------------- DLPack


class OnlyDLPack:
    """An array of some other library: all that is known of it is DLPack."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


class BeforeVersion1(OnlyDLPack):
    """The same from a library that knows DLPack 0 only: no version is asked, none is told."""

    def __dlpack__(self, stream=None):
        return self._array.__dlpack__()


@pytest.mark.parametrize("kind", [OnlyDLPack, BeforeVersion1])
def test_a_tensor_through_dlpack_is_not_copied(kind):
    whole = torch.full((100,), 7.0)
    part = whole[5:55]
    seen = torch.full((1,), -1)
    address[1](kind(seen), kind(part))
    assert seen.item() == part.data_ptr()
    add_one[4](kind(part), 50, BLOCK=16)
    assert whole.tolist() == [7] * 5 + [8] * 50 + [7] * 45


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dlpack_names_the_same_element_types(dtype):
    out, x = torch.zeros(64, dtype=torch.uint8).view(dtype), torch.ones(64, dtype=torch.uint8).view(dtype)
    direct = copy[4](out, x, out.numel(), BLOCK=16)
    out.view(torch.uint8).zero_()
    assert copy[4](OnlyDLPack(out), OnlyDLPack(x), out.numel(), BLOCK=16) is direct
    assert (out.view(torch.uint8) == 1).all()


def test_a_complex_tensor_through_dlpack_is_refused():
    with refused(ContractTypeError, "ARG-3", "element type"):
        add_one[1](OnlyDLPack(torch.zeros(16, dtype=torch.complex64)), 16, BLOCK=16)


def read_only(count):
    array = np.zeros(count, np.float32)
    array.flags.writeable = False
    return array


def test_a_read_only_array_through_dlpack_is_refused_where_it_may_be_written():
    array, out = read_only(64), torch.full((64,), torch.nan)
    with refused(ContractValueError, "ARG-3", "read-only"):
        add_one[4](OnlyDLPack(array), 64, BLOCK=16)
    assert (array == 0).all()
    copy[4](out, OnlyDLPack(array), 64, BLOCK=16)  # its parameter is declared tl.const
    assert (out == 0).all()


# -------------------------------------------------------------------------------------------------------- with autograd


@gridpact.jit
def cube(out, x, upstream, n, IS_BACKWARD: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    result = value * value * value
    if IS_BACKWARD:
        result = 3 * value * value * tl.load(upstream + at, mask=at < n)
    tl.store(out + at, result, mask=at < n)


class Cube(torch.autograd.Function):
    """A differentiable operator made of one kernel."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        out = torch.full_like(x, torch.nan)
        cube[gridpact.cdiv(x.numel(), 16)](out, x, None, x.numel(), IS_BACKWARD=False, BLOCK=16)
        return out

    @staticmethod
    def backward(ctx, upstream):
        (x,) = ctx.saved_tensors
        out = torch.full_like(x, torch.nan)
        cube[gridpact.cdiv(x.numel(), 16)](out, x, upstream.contiguous(), x.numel(), IS_BACKWARD=True, BLOCK=16)
        return out


def test_a_kernel_is_an_operator_of_autograd():
    x = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(Cube.apply(x), x**3)
    assert torch.autograd.gradcheck(Cube.apply, (x,))


# --------------------------------------------------------------------------------------------- Triton's own decorators


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_triton_jit_takes_elements_of_each_type(driver, dtype):
    plain = triton.jit(_copy)
    out, x = torch.zeros(64, dtype=torch.uint8).view(dtype), torch.ones(64, dtype=torch.uint8).view(dtype)
    count = out.numel() - 2
    plain[(4,)](out, x, count, BLOCK=16)
    assert (out[:count].view(torch.uint8) == 1).all()
    assert (out[count:].view(torch.uint8) == 0).all()


@pytest.mark.parametrize("make", TENSORS.values(), ids=TENSORS)
def test_triton_jit_takes_tensors_without_a_copy(driver, make):
    x = make()
    triton.jit(_add_one)[(1,)](x, 1, BLOCK=16)
    assert x.detach().flatten()[:2].tolist() == [1, 0]


def test_triton_reinterprets_the_bytes_of_a_tensor(driver):
    @triton.jit
    def read(out, x, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at).to(tl.float32))

    codes, out = torch.arange(128, dtype=torch.uint8), torch.full((128,), -1.0)
    read[(1,)](out, triton.reinterpret(codes, tl.float8e5), BLOCK=128)
    torch.testing.assert_close(out, codes.view(torch.float8_e5m2).float(), rtol=0, atol=0, equal_nan=True)


def configurations(*pairs):
    return [triton.Config({"BLOCK": block}, num_warps=warps) for block, warps in pairs]


def blocks(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


def test_triton_autotune_tries_all_configurations_once_per_key(driver):
    tried = configurations((16, 1), (64, 4), (256, 2))
    tuned = triton.autotune(tried, key=["n"])(triton.jit(_copy))
    for count, keys in ((1000, 1), (1000, 1), (300, 2)):
        out, x = torch.full((1001,), torch.nan), torch.randn(1001)
        tuned[blocks](out, x, count)
        assert torch.equal(out[:count], x[:count])
        assert out[count:].isnan().all()
        assert len(tuned.cache) == keys
    assert set(tuned.configs_timings) == set(tried)
    assert tuned.best_config in tried


def test_triton_autotune_restores_what_a_kernel_changes_in_place(driver):
    tuned = triton.autotune(configurations((16, 1), (64, 4)), key=["n"], restore_value=["x"])(triton.jit(_add_one))
    x = torch.zeros(100)
    tuned[blocks](x, 100)
    assert (x == 1).all()


def test_triton_autotune_drops_a_configuration_that_the_device_has_no_room_for(driver):
    too_many_threads = triton.Config({"BLOCK": 64}, num_warps=512)
    fits = triton.Config({"BLOCK": 64}, num_warps=4)
    tuned = triton.autotune([too_many_threads, fits], key=["n"])(triton.jit(_copy))
    out, x = torch.full((1000,), torch.nan), torch.randn(1000)
    tuned[blocks](out, x, 1000)
    assert torch.equal(out, x)
    assert tuned.best_config is fits


def test_triton_heuristics_fill_in_constants(driver):
    @triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["n"]), "EVEN": lambda args: args["n"] == 64})
    @triton.jit
    def fill(out, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(out + at, BLOCK + EVEN, mask=at < n)

    for count, value in ((50, 64), (64, 65), (65, 128)):
        out = torch.full((100,), -1)
        fill[(1,)](out, count)
        assert out.tolist() == [value] * count + [-1] * (100 - count)


def test_triton_autotune_above_heuristics(driver):
    @triton.autotune(configurations((16, 1), (32, 2)), key=["n"])
    @triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
    @triton.jit
    def fill(out, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        if EVEN:
            tl.store(out + at, 1)
        else:
            tl.store(out + at, 2, mask=at < n)

    for count, value in ((64, 1), (65, 2)):
        out = torch.full((100,), -1)
        fill[blocks](out, count)
        assert out.tolist() == [value] * count + [-1] * (100 - count)


def test_triton_autotune_decorates_kernels_of_gridpact(driver):
    tuned = triton.autotune(configurations((16, 1), (64, 4)), key=["n"])(gridpact.jit(_copy))
    out, x = torch.full((100,), torch.nan), torch.randn(100)
    tuned[blocks](out, x, 100)
    assert torch.equal(out, x)
    assert len(tuned.configs_timings) == 2


def test_triton_jit_refuses_a_lazily_negated_view(driver):
    with refused(ContractValueError, "ARG-3", "lazy view"):
        triton.jit(_add_one)[(4,)](negated(), 64, BLOCK=16)


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
@pytest.mark.parametrize("make", [fake, freed, jagged])
def test_triton_jit_refuses_elements_at_address_zero(driver, make):
    with refused(ContractError, "ARG-3", "argument 'x' of '_add_one': "):
        triton.jit(_add_one)[(0,)](make(), 64, BLOCK=16)


def test_triton_jit_refuses_a_read_only_array_where_it_may_be_written(driver):
    array, out = read_only(64), torch.full((64,), torch.nan)
    with refused(ContractValueError, "ARG-3", "read-only"):
        triton.jit(_add_one)[(4,)](array, 64, BLOCK=16)
    assert (array == 0).all()
    triton.jit(_copy)[(4,)](out, array, 64, BLOCK=16)  # its parameter is declared tl.const
    assert (out == 0).all()
