"""Triton's own runtime on our backend: the launcher of the shared shape, and autotune without a GPU."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import gridpact

triton = pytest.importorskip("triton", reason="no Triton is installed")
tl = triton.language


@pytest.fixture
def driver(sycl, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    made = gridpact.triton.driver(sycl)
    triton.runtime.driver.set_active(made)
    yield made
    triton.runtime.driver.reset_active()


def count():
    @triton.jit
    def kernel(seen, width, height):
        x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
        tl.atomic_add(seen + (z * height + y) * width + x, 1 + x + 100 * y + 10000 * z)

    return kernel


def test_unmodified_kernel_runs(driver):
    seen = np.zeros((3, 5, 7), np.int32)
    count()[(7, 5, 3)](seen, 7, 5)
    z, y, x = np.indices((3, 5, 7))
    assert np.array_equal(seen, 1 + x + 100 * y + 10000 * z)


@pytest.mark.parametrize(
    ("grid", "kind", "clause"),
    [((-1,), ValueError, "GRID-6"), ((1, -1), ValueError, "GRID-6"), ((-2, -1), ValueError, "GRID-6"),
     ((2**31,), ValueError, "GRID-7"), ((2.0,), TypeError, "GRID-1"), ((True,), TypeError, "GRID-1")],
)  # fmt: skip
def test_wrong_grid_is_refused_by_the_launcher(driver, grid, kind, clause):
    seen = np.full(64, -77, np.int32)
    with pytest.raises(gridpact.ContractError) as caught:
        count()[grid](seen, 4, 4)
    assert isinstance(caught.value, kind)
    assert caught.value.clause == clause
    assert (seen == -77).all()


@pytest.mark.parametrize(
    ("options", "clause"),
    [({"num_ctas": 2}, "META-2"), ({"num_warps": 512}, "META-4"), ({"grf_mode": "large"}, "META-2")],
)
def test_option_that_the_device_lacks_is_refused(driver, options, clause):
    seen = np.full(64, -77, np.int32)
    with pytest.raises(gridpact.LaunchError) as caught:
        count()[(1,)](seen, 4, 4, **options)
    assert caught.value.clause == clause
    assert (seen == -77).all()


def test_launcher_has_the_literal_shape_of_the_boundary(driver):
    compiled = count().warmup(np.zeros(64, np.int32), 7, 5, grid=(1,))
    seen, calls = np.zeros((3, 5, 7), np.int32), []
    stream = driver.get_current_stream(0)

    def enter(metadata):
        calls.append(("enter", metadata, int(seen.sum())))

    def exit(metadata):
        calls.append(("exit", metadata, int(seen.sum() > 0)))

    compiled.run(7, 5, 3, stream, compiled.function, compiled.packed_metadata, "observed", enter, exit, seen, 7, 5)
    assert seen.min() == 1
    assert calls == [("enter", "observed", 0), ("exit", "observed", 1)]
    compiled.run(0, 5, 3, stream, compiled.function, compiled.packed_metadata, "observed", enter, exit, seen, 7, 5)
    assert len(calls) == 2  # nothing ran, nobody was called
    with pytest.raises(gridpact.ContractError, match="expected 3 arguments"):
        compiled.run(1, 1, 1, stream, compiled.function, compiled.packed_metadata, None, None, None, seen)
    with pytest.raises(gridpact.ContractError, match=r"argument 'seen'.*compiled for \*i32"):
        compiled.run(
            1, 1, 1, stream, compiled.function, compiled.packed_metadata, None, None, None, seen.view("f4"), 7, 5
        )
    with pytest.raises(gridpact.ContractError, match=r"argument 'width'.*\[ARG-2\]"):
        compiled.run(1, 1, 1, stream, compiled.function, compiled.packed_metadata, None, None, None, seen, 2**40, 5)


def test_exit_hook_follows_a_launch_that_fails(driver, monkeypatch):
    compiled = count().warmup(np.zeros(64, np.int32), 7, 5, grid=(1,))
    seen, calls = np.zeros(64, np.int32), []

    def fail(*args):
        raise gridpact.BackendError("sycl:cpu", "submit", "made to fail")

    monkeypatch.setattr(driver.device.route, "submit", fail)
    with pytest.raises(gridpact.BackendError, match="made to fail"):
        compiled.run(
            1, 1, 1, None, compiled.function, compiled.packed_metadata, None, calls.append, calls.append, seen, 7, 5
        )
    assert len(calls) == 2


def test_every_kind_of_argument_arrives(driver):
    @triton.jit
    def kernel(out, flag, n: tl.int64, x, pair, none, KIND: tl.constexpr):
        if (none is None) and (KIND == "sum"):
            tl.store(out, flag.to(tl.int64) + n + x.to(tl.int64) + pair[0] + tl.load(pair[1]))

    out, inner = np.full(1, -77, np.int64), np.full(1, 10000, np.int64)
    kernel[(1,)](out, True, 2**40, 30.0, (400, inner), None, KIND="sum")
    assert out[0] == 1 + 2**40 + 30 + 400 + 10000


def test_given_stream_makes_the_launch_asynchronous(driver):
    @triton.jit
    def hold(flag, out):
        tries = 0
        while (tl.atomic_add(flag, 0) == 0) & (tries < 200_000_000):
            tries += 1
        tl.store(out, 1)

    flag, out = np.zeros(1, np.int32), np.zeros(1, np.int32)
    hold.warmup(flag, out, grid=(1,))
    with gridpact.stream(gridpact.Stream("sycl:cpu")) as stream:
        hold[(1,)](flag, out)
        assert out[0] == 0
        flag[0] = 1
        gridpact.synchronize(stream)
    assert out[0] == 1


@triton.jit(noinline=True)
def noinline_helper(a):
    return a * 2


def test_noinline_helper_is_refused_where_it_would_abort_the_process(driver):
    @triton.jit
    def kernel(out):
        tl.store(out, noinline_helper(tl.load(out)))

    out = np.full(1, 21, np.int32)
    with pytest.raises(gridpact.UnsupportedError, match="noinline"):
        kernel[(1,)](out)
    assert out[0] == 21


def test_plain_kernel_named_like_a_library_function_is_refused(driver):
    @triton.jit
    def exp(out):
        tl.store(out, 1)

    @triton.jit
    def read(out):
        tl.store(out, 1)

    read[(1,)](np.zeros(1, np.int32))

    with pytest.raises(gridpact.UnsupportedError, match=r"kernel 'exp'.*Rename it"):
        exp[(1,)](np.zeros(1, np.int32))


def test_compiled_kernel_refuses_what_it_was_not_built_for(driver):
    whole = np.zeros(80, np.int32)
    aligned = whole[(-whole.ctypes.data % 16) // 4 :][:64]

    @triton.jit
    def store(out, n, by, B: tl.constexpr):
        tl.store(out, n * by + B)

    compiled = store.warmup(aligned, 32, 1, B=4, grid=(1,))

    def launch(*args):
        compiled.run(1, 1, 1, None, compiled.function, compiled.packed_metadata, None, None, None, *args)

    launch(aligned, 48, 1, 4)
    assert aligned[0] == 52
    for wrong in (
        (aligned[1:], 32, 1, 4),
        (aligned, 33, 1, 4),
        (aligned, 32, 2, 4),
        (aligned, 32, 1, 5),
        (aligned, 32, 1, 4.0),
    ):
        with pytest.raises(gridpact.ContractError) as caught:
            launch(*wrong)
        assert caught.value.clause == "SPEC-1"
    assert aligned[0] == 52


def test_autotune_and_heuristics_of_plain_kernels(driver):
    @triton.autotune([triton.Config({"BLOCK": 128}, num_warps=2), triton.Config({"BLOCK": 64}, num_warps=1)], key=["n"])
    @triton.heuristics({"EVEN": lambda arguments: arguments["n"] % arguments["BLOCK"] == 0})
    @triton.jit
    def double(x, out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        if EVEN:
            tl.store(out + i, tl.load(x + i) * 2)
        else:
            tl.store(out + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)

    for n in (1000, 1024):
        x, out = np.arange(n, dtype=np.float32), np.full(n, np.nan, np.float32)
        double[lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)](x, out, n)
        assert np.array_equal(out, 2 * x)
    assert double.best_config.kwargs["BLOCK"] in (64, 128)


# -- triton's decorators on gridpact.jit, in a process without any driver


def run_program(tmp_path, text):
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(text))
    env = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "triton")}
    ran = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=200, env=env, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


PROGRAM = """
    import numpy as np, triton, triton.language as tl, gridpact

    configs = [triton.Config({"BLOCK": block}, num_warps=warps) for block in (64, 256) for warps in (1, 4, 512)]

    @triton.autotune(configs, key=["n"])
    @triton.heuristics({"EVEN": lambda arguments: arguments["n"] % arguments["BLOCK"] == 0})
    @gridpact.jit
    def double(x, out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        if EVEN:
            tl.store(out + i, tl.load(x + i) * 2)
        else:
            tl.store(out + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)

    for n in (1000, 1024):
        x, out = np.arange(n, dtype="f4"), np.full(n, np.nan, "f4")
        compiled = double[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, out, n)
        print(np.array_equal(out, 2 * x), type(compiled).__name__, double.best_config.num_warps < 512)
"""


def test_decorators_stack_on_our_kernels_without_a_driver(sycl, tmp_path):
    out = run_program(tmp_path, PROGRAM)
    assert out.splitlines() == ["True CompiledKernel True"] * 2
    assert not (tmp_path / "triton").exists()


def test_plain_kernel_without_a_driver_is_told_what_to_do(sycl, tmp_path):
    out = run_program(
        tmp_path,
        PROGRAM
        + """
    @triton.jit
    def plain(out):
        tl.store(out, 1)

    try:
        plain[(1,)](out)
    except gridpact.UnsupportedError as error:
        print(error)
    triton.runtime.driver.set_active(gridpact.triton.driver("sycl:cpu"))
    plain[(1,)](out)
    print(out[0])
    """,
    )
    told, value = out.splitlines()[2:]
    assert 'triton.runtime.driver.set_active(gridpact.triton.driver("sycl:cpu"))' in told
    assert value == "1.0"


def test_driver_of_an_unknown_device_is_refused(sycl):
    with pytest.raises(gridpact.ContractError, match=r"DEVICE-1"):
        gridpact.triton.driver("sycl:gpu:99")
