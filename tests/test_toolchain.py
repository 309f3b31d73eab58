"""The installed Triton as a compiler: the same for 3.3, 3.6 and 3.9, no driver, no cache, names as Python means them.

`make test` runs this with triton-xpu 3.3; nox runs it with upstream Triton 3.6.0 and 3.9.0.
"""

import os
import re
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

import gridpact
from gridpact import toolchain
from gridpact.arguments import classify

triton = pytest.importorskip("triton", reason="no Triton is installed")
tl = triton.language

pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")  # 3.9 says so once unless it is set

CPU = {
    "name": "cpu",
    "sub_group_sizes": (16, 32),
    "has_fp64": True,
    "max_work_group_size": 8192,
    "max_num_sub_groups": 64,
}
TARGETS = {
    "cuda": toolchain.Target("cuda", 90, 32),
    "xpu": toolchain.Target("xpu", tuple(sorted(CPU.items())), 32, inlines_all=True),
}
HAS = {"cuda": True, "xpu": toolchain.installed().distribution == "triton-xpu"}


@pytest.fixture(params=TARGETS)
def target(request):
    if not HAS[request.param]:
        pytest.skip(f"{toolchain.installed().distribution} has no backend for {request.param}")
    return TARGETS[request.param]


class Compiling:
    """What the toolchain needs to know of a device."""

    compiles = True


def compiled(kernel, target, *args, options=None, **kwargs):
    arguments = classify(kernel.signature, kernel.signature.bind(args, kwargs))
    return toolchain.compile_kernel(kernel.source(Compiling), arguments, target, options or {}, name=kernel.repr)


def constants(binary):
    """Give the integer constants that the kernel's first IR holds."""
    return {int(n) for n in re.findall(r"arith.constant (?:dense<)?(-?\d+)>? ?:", binary.asm["ttir"])}


def memory(dtype="i4"):
    return np.zeros(64, dtype)


@gridpact.jit
def store(out, value):
    tl.store(out, value)


def test_kernel_is_compiled_to_a_binary(target):
    binary = compiled(store, target, memory(), 5)
    assert binary.kind == {"cuda": "cubin", "xpu": "spv"}[target.backend]
    assert binary.code[:4] == {"cuda": b"\x7fELF", "xpu": b"\x03\x02\x23\x07"}[target.backend]
    assert list(binary.asm)[:2] == ["ttir", "ttgir"]
    assert binary.metadata.name == "store"
    assert binary.metadata.threads == 128
    assert binary.metadata.shared == 0


def test_metadata_is_that_of_the_compiled_kernel(target):
    @gridpact.jit
    def total(x, out, N: tl.constexpr):
        tl.store(out, tl.sum(tl.load(x + tl.arange(0, N)), 0))

    binary = compiled(total, target, memory("f4"), memory("f4"), N=64, options={"num_warps": 2})
    assert binary.metadata.threads == 64
    assert binary.metadata.shared > 0
    assert binary.metadata.num_stages == toolchain.option_defaults(target)["num_stages"]


def test_binary_is_the_same_each_time(target):
    first, second = (compiled(store, target, memory(), 5) for _ in range(2))
    assert first.code == second.code


def test_specialization_reaches_the_compiler(target):
    aligned = np.zeros(80, "i4")
    aligned = aligned[(-aligned.ctypes.data % 16) // 4 :]
    assert "tt.divisibility = 16" in compiled(store, target, aligned, 5).asm["ttir"]
    assert "tt.divisibility" not in compiled(store, target, aligned[1:], 5).asm["ttir"]
    assert compiled(store, target, aligned[1:], 32).asm["ttir"].count("tt.divisibility = 16") == 1
    assert 1 in constants(compiled(store, target, aligned, 1))


def test_every_kind_of_argument_compiles(target):
    @gridpact.jit
    def everything(out, flag, a: tl.int8, b: tl.int16, c: tl.int32, d: tl.int64, e: tl.uint64, f: tl.float16,
                   g: tl.bfloat16, h, i: tl.float64, t, none, D: tl.constexpr, S: tl.constexpr):  # fmt: skip
        if (none is None) and (S == "text"):
            total = a + b + c + d + e.to(tl.int64) + t[0] + t[1][1] + flag.to(tl.int32)
            tl.store(out, total.to(tl.float64) + f + g + h + i + tl.full((), 3, D))

    binary = compiled(
        everything, target, memory("f8"), True, 2, 3, 4, 5, 6, 0.5, 1.5, 2.5, 3.5, (7, (None, 8)), None,
        D=tl.int8, S="text",
    )  # fmt: skip
    (parameters,) = re.findall(r"tt\.func public @everything\(([^\n]*)\) attributes", binary.asm["ttir"])
    assert [re.search(r": (!tt.ptr<)?(\w+)", p)[2] for p in re.split(r", (?=%)", parameters)] == [
        "f64", "i1", "i8", "i16", "i32", "i64", "i64", "f16", "bf16", "f32", "f64", "i32", "i32",
    ]  # fmt: skip


# -- names mean what Python means by them

CAPTURED = tl.constexpr(1001)
ALSO_CAPTURED = 1002


def make(value):
    CAPTURED = tl.constexpr(value)  # shadows the global, which Triton 3.3 by itself would take

    @gridpact.jit
    def kernel(out):
        tl.store(out, CAPTURED)

    return kernel


def test_closure_is_what_python_means(target):
    assert constants(compiled(make(2001), target, memory())) >= {2001}
    assert constants(compiled(make(2002), target, memory())) >= {2002}
    assert 1001 not in constants(compiled(make(2002), target, memory()))


@gridpact.jit
def helper(value, by=CAPTURED):
    return value * by + CAPTURED


def test_helpers_and_their_defaults_are_followed(target):
    @gridpact.jit
    def kernel(out, value):
        tl.store(out, helper(value))

    binary = compiled(kernel, target, memory(), 5)
    assert constants(binary) == {1001}


def test_helpers_of_one_name_are_told_apart(target):
    def make_helper(value):
        constant = tl.constexpr(value)

        @gridpact.jit
        def inner(x):
            return x + constant

        return inner

    first, second = make_helper(3001), make_helper(3002)

    @gridpact.jit
    def kernel(out, value):
        tl.store(out, first(value))
        tl.store(out + 1, second(value))

    assert constants(compiled(kernel, target, memory(), 5)) >= {3001, 3002}


def test_helper_reached_through_a_module_works(target):
    import types

    library = types.ModuleType("library")
    library.helper, library.other = helper, 5

    @gridpact.jit
    def kernel(out, value):
        tl.store(out, library.helper(value))

    assert 1001 in constants(compiled(kernel, target, memory(), 5))
    assert library.helper is helper  # the module itself is untouched


def test_triton_helper_works_in_our_kernel(target):
    @triton.jit
    def theirs(value):
        return value + CAPTURED

    @gridpact.jit
    def kernel(out, value):
        tl.store(out, theirs(value))

    assert 1001 in constants(compiled(kernel, target, memory(), 5))


def test_triton_kernel_becomes_ours(target):
    @triton.jit(do_not_specialize=["value"])
    def theirs(out, value):
        tl.store(out, value)

    ours = gridpact.jit(theirs)
    assert ours.fn is theirs.fn
    out = memory()
    binary = compiled(ours, target, out, 16)
    assert binary.asm["ttir"].count("tt.divisibility = 16") == (out.ctypes.data % 16 == 0)


FACTOR = 2


@pytest.mark.skipif(not hasattr(triton, "constexpr_function"), reason="Triton before 3.6 has no constexpr_function")
def test_function_of_the_compile_time_is_run_and_followed(target, monkeypatch):
    @triton.constexpr_function
    def scaled(n):
        return n * FACTOR

    @gridpact.jit
    def captured(out, C: tl.constexpr):
        tl.store(out, scaled(C))

    @gridpact.jit
    def given(out, F: tl.constexpr):
        tl.store(out, F(5))

    out = np.zeros(1, "i4")
    assert constants(compiled(captured, target, out, 4)) == {8}
    assert constants(compiled(given, target, out, scaled)) == {10}
    before = captured.source(Compiling).facts
    monkeypatch.setitem(globals(), "FACTOR", 3)
    assert constants(compiled(captured, target, out, 4)) == {12}
    assert captured.source(Compiling).facts != before


def test_function_is_an_argument(target):
    @gridpact.jit
    def apply(out, value, F: tl.constexpr):
        tl.store(out, F(value))

    assert 1001 in constants(compiled(apply, target, memory(), 5, F=helper))


def test_default_that_only_the_enclosing_scope_knows_works(target):
    def make_kernel(block):
        @gridpact.jit
        def kernel(out, BLOCK: tl.constexpr = block * 2):
            tl.store(out + tl.arange(0, BLOCK), 7)

        return kernel

    assert "tensor<16xi32>" in compiled(make_kernel(8), target, memory()).asm["ttir"]


def test_tritons_own_cache_goes_by_our_identity(target):
    @gridpact.jit
    def kernel(out, C: tl.constexpr):
        tl.store(out, FACTOR)

    source = kernel.source(Compiling)
    one, other = (toolchain.function_of_triton(source, name, target) for name in ("one", "other"))
    assert (one.cache_key, other.cache_key) == ("one", "other")
    assert isinstance(one, triton.runtime.JITFunction)
    hashes = {
        triton.compiler.ASTSource(function, {"out": "*i32", "C": "constexpr"}, {(1,): 5}, {}).hash()
        for function in (one, other)
    }
    assert len(hashes) == 2


def test_name_of_the_kernel_can_be_chosen(target):
    @gridpact.jit(repr=lambda proxy: f"chosen_{proxy.constants['N']}")
    def kernel(out, N: tl.constexpr):
        tl.store(out, N)

    assert compiled(kernel, target, memory(), N=3).metadata.name == "chosen_3"


def test_noinline_helper_is_inlined_where_the_target_asks(target):
    @gridpact.jit(noinline=True)
    def inner(a):
        return a * 3 + 1

    @gridpact.jit
    def kernel(out, a):
        tl.store(out, inner(a))

    asm = compiled(kernel, target, memory(), 5).asm["ttir"]
    assert ("tt.call" in asm) == (not target.inlines_all)


# -- errors


def test_wrong_kernel_is_shown_as_triton_shows_it(target):
    @gridpact.jit
    def kernel(out):
        tl.store(out, undefined_name)  # noqa: F821

    with pytest.raises(triton.CompilationError, match="undefined_name is not defined"):
        compiled(kernel, target, memory())


def test_static_assertion_keeps_its_kind(target):
    @gridpact.jit
    def kernel(out, N: tl.constexpr):
        tl.static_assert(N == 4, "N must be 4")
        tl.store(out, N)

    assert compiled(kernel, target, memory(), N=4).code
    with pytest.raises(triton.compiler.errors.CompileTimeAssertionFailure, match="N must be 4"):
        compiled(kernel, target, memory(), N=5)


def test_resource_error_is_also_tritons():
    error = toolchain.out_of_resources(gridpact.ResourceError("shared memory of 'k'", 5, 4, "bytes"))
    assert isinstance(error, gridpact.ResourceError)
    assert isinstance(error, triton.runtime.errors.OutOfResources)
    assert (error.need, error.limit, error.required) == (5, 4, 5)
    assert "at most 4 bytes, got 5" in str(error)


def test_target_without_a_backend_is_named():
    with pytest.raises(gridpact.UnsupportedError, match="cannot compile for this target, got 'abacus'"):
        toolchain.option_defaults(toolchain.Target("abacus", 1, 1))


# -- nothing of Triton runs, nothing of it is changed


def test_threads_compile_at_once(target):
    alone = compiled(store, target, memory(), 5).code
    results, failed = [], []

    def work():
        try:
            results.append(compiled(store, target, memory(), 5).code)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert results == [alone] * 8


def run_program(tmp_path, text, **environment):
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(text))
    env = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "triton"), "HOME": str(tmp_path), **environment}
    ran = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=200, env=env, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_no_driver_cache_or_torch_is_touched(tmp_path):
    out = run_program(
        tmp_path,
        """
        import sys
        import numpy as np, triton, triton.language as tl, gridpact
        from gridpact import toolchain
        from gridpact.arguments import classify

        @gridpact.jit
        def inner(a):
            return a + 1

        @gridpact.jit
        def kernel(out):
            tl.store(out, inner(2))

        class Compiling:
            compiles = True

        before = dict(vars(triton.runtime.jit))
        arguments = classify(kernel.signature, {"out": np.zeros(4)})
        toolchain.compile_kernel(kernel.source(Compiling), arguments, toolchain.Target("cuda", 80, 32), {})
        after = dict(vars(triton.runtime.jit))
        known = getattr(triton.runtime.jit, "_triton_jit_function_registry", {})
        is_unchanged = all(before[name] is after[name] for name in before) and before.keys() == after.keys()
        print("torch" in sys.modules, is_unchanged, any(name.startswith("__main__") for name in known))
        """,
    )
    is_torch_loaded, is_unchanged, is_registered = out.split()
    assert (is_torch_loaded, is_unchanged, is_registered) == ("False", "True", "False")
    assert not (tmp_path / "triton").exists()
    assert not (tmp_path / ".triton").exists()


@pytest.mark.parametrize("switch", ["TRITON_DEFAULT_FP_FUSION", "ALLOW_LHS_TMEM_LAYOUT_CONVERSION"])
def test_identity_holds_the_environment_switches(monkeypatch, switch):
    before = toolchain.environment()
    monkeypatch.setenv(switch, "0")
    assert toolchain.environment() != before
    monkeypatch.setenv("UNRELATED", "1")
    monkeypatch.delenv(switch)
    assert toolchain.environment() == before


def test_two_distributions_of_triton_are_refused(tmp_path):
    fake = tmp_path / "site" / "pytorch_triton-9.9.9.dist-info"
    fake.mkdir(parents=True)
    (fake / "METADATA").write_text("Metadata-Version: 2.1\nName: pytorch-triton\nVersion: 9.9.9\n")
    out = run_program(
        tmp_path,
        """
        from gridpact import toolchain, UnsupportedError
        try:
            toolchain.installed()
        except UnsupportedError as error:
            print(error)
        """,
        PYTHONPATH=str(tmp_path / "site"),
    )
    assert "pytorch-triton 9.9.9 overlay each other's files" in out
    assert "uninstall both" in out


def test_missing_triton_is_named(monkeypatch):
    toolchain.installed.cache_clear()
    monkeypatch.setattr(toolchain, "_DISTRIBUTIONS", ("no-such-distribution",))
    try:
        with pytest.raises(gridpact.UnsupportedError, match=r"no Triton is installed.*gridpact\[sycl\]"):
            toolchain.installed()
    finally:
        toolchain.installed.cache_clear()
