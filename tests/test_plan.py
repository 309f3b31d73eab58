"""What a launch would be, with no device: literal geometry, limits, policies, and every mistake in one sentence.

Needs no device. `make test` runs it with triton-xpu 3.3; it also runs with upstream Triton 3.6.0 and 3.9.0.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import gridpact
from gridpact import asked as asking
from gridpact import backends, cli, plan, toolchain
from gridpact.backends import cuda
from gridpact.metadata import KernelMetadata

pytest.importorskip("triton", reason="no Triton is installed")
pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")  # 3.9 says so once unless it is set

ADD = str(Path(__file__).parents[1] / "examples" / "add.py")
SIGNATURE = "x=*fp32:16,y=*fp32:16,out=*fp32:16,n=i32,BLOCK=1024"
HAS_XPU = "xpu" in toolchain.installed().distribution
ALL = ("xpu", "cuda:90", "hip:gfx942")
HERE = ALL if HAS_XPU else ALL[1:]
needs_xpu = pytest.mark.skipif(not HAS_XPU, reason="the installed Triton has no backend for xpu")

KERNELS = """
import numpy as np
import triton
import triton.language as tl
import gridpact

@gridpact.jit
def total(x, out, N: tl.constexpr = 4096):
    tl.store(out, tl.sum(tl.load(x + tl.arange(0, N)), 0))

@gridpact.jit
def square(x, out, N: tl.constexpr = 128):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    a = tl.load(x + at)
    tl.store(out + at, tl.dot(a, a))

@gridpact.jit(do_not_specialize=["free"])
def typed(out, small: tl.int8, wide: tl.int64, half: tl.float16, free, source: tl.const, MODE: tl.constexpr = "a"):
    tl.store(out, tl.load(source) + small + wide.to(tl.int32) + free + half.to(tl.int32))

@triton.jit
def theirs(x, n):
    tl.store(x, n)
"""


@pytest.fixture
def write(tmp_path):
    """Write a file of kernels, with more behind them; gives its path."""

    def written(more=""):
        path = tmp_path / "kernels.py"
        path.write_text(KERNELS + more)
        return str(path)

    return written


def run(*arguments):
    result = CliRunner().invoke(cli.app, ["plan", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def planned(target="cuda:90", where=f"{ADD}:add", signature="", grid=(7, 5, 3), **options):
    return plan.plan_launch(asking.read_launch(where, signature), target, grid, options)


def policies(found):
    return {field.name: field.policy for field in found.fields}


# -- geometry

GEOMETRY = {
    "xpu": {"global range (z, y, x)": (3, 5, 896), "local range (z, y, x)": (1, 1, 128)},
    "cuda:90": {"grid": (7, 5, 3), "block": (128, 1, 1), "cluster": (1, 1, 1)},
    "hip:gfx942": {"grid": (7, 5, 3), "block": (256, 1, 1)},
}


@pytest.mark.parametrize("target", HERE)
def test_geometry_of_the_example(target):
    found = planned(target)
    assert found.geometry == GEOMETRY[target]
    assert (found.metadata.num_warps, found.metadata.threads_per_warp) == (4, 64 if target == "hip:gfx942" else 32)
    assert found.metadata.shared == 0
    assert found.programs == (7, 5, 3)
    assert not found.errors


@pytest.mark.parametrize("target", HERE)
def test_options_change_the_geometry(target):
    found = planned(target, num_warps=8)
    assert {value for values in found.geometry.values() for value in values} >= {
        "xpu": {7 * 256, 256}, "cuda:90": {256}, "hip:gfx942": {512}
    }[target]  # fmt: skip


def test_cluster_multiplies_the_grid_of_blocks_and_divides_its_limit():
    found = planned(num_ctas=2)
    assert found.geometry == {"grid": (14, 5, 3), "block": (128, 1, 1), "cluster": (2, 1, 1)}
    assert found.checks[0].limit == (2**31 - 1) // 2


@needs_xpu
def test_lanes_of_xpu_can_be_chosen():
    found = planned("xpu", threads_per_warp=16)
    assert found.geometry == {"global range (z, y, x)": (3, 5, 448), "local range (z, y, x)": (1, 1, 64)}


@pytest.mark.parametrize("target", HERE)
def test_shared_bytes_are_those_of_the_metadata_and_all_dynamic(write, target):
    found = planned(target, f"{write()}:total", "x=*fp32:16,out=*fp32:16", num_warps=8)
    assert found.metadata.shared == 32  # one float of each warp
    check = found.checks[-1]
    assert (check.subject, check.need) == ("shared memory, bytes", 32)
    code, output = run(f"{write()}:total", "--signature", "x=*fp32,out=*fp32", "--grid", "1", "--target", target)
    assert code == 0
    assert "16 bytes: 0 static + 16 dynamic" in output


@pytest.mark.parametrize("target", HERE)
def test_binaries_declare_no_shared_memory_of_their_own(write, target):
    asked = asking.read_launch(f"{write()}:total", "x=*fp32,out=*fp32")
    platform = plan._PLATFORMS[target]()
    asm = toolchain.compile_kernel(
        asked.kernel.source(platform), asked.arguments, platform.target, {}, links=False
    ).asm  # fmt: skip
    if "ptx" in asm:
        assert re.findall(r"(\S+ )?\.shared \S+ \S+ \S+ global_smem\[\]", asm["ptx"]) == [".extern "]
    if "amdgcn" in asm:
        assert ".amdhsa_group_segment_fixed_size 0\n" in asm["amdgcn"]
        assert "hsaco" not in asm
    if "llir" in asm and target == "xpu":
        assert re.search(r"spir_kernel void @total\(.*addrspace\(3\)", asm["llir"])  # a parameter of the launch


# -- policies


@pytest.mark.parametrize("target", HERE)
def test_no_field_of_the_toolchain_is_unknown(target):
    found = planned(target)
    assert "unknown" not in policies(found).values()
    assert set(toolchain.option_defaults(plan._PLATFORMS[target]().target)) <= set(policies(found))
    for field in found.fields:
        assert field.policy == "applied" or field.reason, field.name


@pytest.mark.parametrize("target", HERE)
def test_policies(target):
    told = policies(planned(target))
    narrow = "applied" if target == "cuda:90" else "default only"
    assert (told["num_warps"], told["num_stages"], told["shared"]) == ("applied",) * 3
    assert told["num_ctas"] == narrow
    assert told["launch_cooperative_grid"] == ("default only" if target == "xpu" else "applied")
    assert (told["backend_name"], told["hash"]) == ("default only", "irrelevant")


def test_policy_heeds_the_architecture():
    assert policies(planned("cuda:80"))["num_ctas"] == "default only"
    assert policies(planned("hip:gfx950"))["kpack"] == "default only"
    with pytest.raises(gridpact.UnsupportedError, match=r"only 1 on cuda:80 .*9\.0\), got 2 \(int\)\. \[META-2\]"):
        planned("cuda:80", num_ctas=2)


def test_field_in_no_table_is_told_as_unknown_and_refused_unless_default(monkeypatch):
    monkeypatch.delitem(cuda._POLICIES, "maxnreg")
    found = planned()
    assert [field.name for field in found.fields if field.policy == "unknown"] == ["maxnreg"]
    with pytest.raises(gridpact.UnsupportedError, match="does not know what it does"):
        planned(maxnreg=64)


# -- limits


@pytest.mark.parametrize("target", ["cuda:90", "hip:gfx942"])
@pytest.mark.parametrize(("axis", "grid"), [("y", (7, 65536, 3)), ("z", (7, 5, 65536))])
def test_axis_past_its_limit_is_refused_as_a_launch_would_be(target, axis, grid):
    (error,) = planned(target, grid=grid).errors
    assert isinstance(error, ValueError)
    told = f"grid.{axis}: at most 65535 programs on {target}, got 65536 (int). Put the long axis on x. [GRID-7]"
    assert str(error) == told
    code, output = run(f"{ADD}:add", "--grid", ",".join(map(str, grid)), "--target", target)
    assert code == 1
    assert told in output
    assert output.count("✗ fail") == 1


def test_each_axis_keeps_its_largest_count_and_no_more():
    assert not planned(grid=(2**31 - 1, 65535, 65535)).errors
    assert len(planned(grid=(2**31, 65536, 65536)).errors) == 3
    threads = 256
    assert not planned("hip:gfx942", grid=(2**32 // threads - 1,)).errors  # HIP: less than 2^32 threads along x
    (error,) = planned("hip:gfx942", grid=(2**32 // threads,)).errors
    assert error.clause == "GRID-7"


@needs_xpu
def test_xpu_limits_the_axes_and_the_product_and_leaves_the_rest_to_the_device():
    found = planned("xpu", grid=(2**31 - 1, 65536, 1))
    assert not found.errors
    assert [check.limit for check in found.checks] == [2**31 - 1] * 3 + [2**64 - 1, None, None]
    (error,) = planned("xpu", grid=(2**31 - 1, 2**27, 1)).errors
    assert "at most 18446744073709551615 threads in one launch on xpu" in str(error)
    assert error.clause == "GRID-7"
    assert run(f"{ADD}:add", "--grid", "7")[1].count("the device knows") == 2


@pytest.mark.parametrize(("target", "warps"), [("cuda:90", 64), ("hip:gfx942", 32)])
def test_too_many_threads_are_refused_as_a_launch_would_be(target, warps):
    (error,) = planned(target, num_warps=warps).errors
    assert isinstance(error, gridpact.ResourceError)
    assert (error.need, error.limit, error.clause) == (2048, 1024, "META-4")
    code, output = run(f"{ADD}:add", "--grid", "7", "--target", target, "--option", f"num_warps={warps}")
    assert code == 1
    told = "threads of a program of 'add': at most 1024 threads, got 2048 (int). Lower num_warps. [META-4]"
    assert output.endswith(told + "\n")


@pytest.mark.parametrize(("target", "limit"), [("cuda:90", 227), ("cuda:86", 99), ("hip:gfx942", 64)])
def test_shared_memory_is_limited_by_the_architecture(write, target, limit):
    found = planned(target, f"{write()}:square", "x=*fp32:16,out=*fp32:16,N=128")
    check = found.checks[-1]
    assert check.limit == limit * 1024
    assert (check.error is None) == (check.need <= check.limit)
    if target == "cuda:86":
        assert [error.clause for error in found.errors] == ["META-4"]


def test_every_launch_check_is_asked(write):
    where, signature = f"{write()}:square", "x=*fp32:16,out=*fp32:16,N=128"
    found = planned("hip:gfx942", where, signature, grid=(1, 70000, 1), num_warps=32)
    assert [error.clause for error in found.errors] == ["GRID-7", "META-4"]


def test_empty_grid_runs_nothing_and_is_no_mistake():
    code, output = run(f"{ADD}:add", "--grid", "7,0", "--target", "cuda:90")
    assert code == 0
    assert "nothing would run. [GRID-9]" in output


# -- what the file tells


def test_file_tells_types_constants_specialization_options_and_grid(write):
    path = write("""
x = np.zeros(128, np.float32)[1:]
total[lambda meta: (meta["N"], meta["num_warps"])](x, np.zeros(8, np.float16), N=64, num_warps=2)
""")
    asked = asking.read_launch(f"{path}:total")
    assert asked.spelled == {"x": "*fp32", "out": "*fp16:16", "N": "64"}
    assert asked.options == {"num_warps": 2}
    found = plan.plan_launch(asked, "cuda:90")
    assert found.programs == (64, 2, 1)
    assert found.metadata.threads == 64
    assert plan.plan_launch(asked, "cuda:90", (1,), {"num_warps": 1}).metadata.threads == 32


def test_file_stops_before_its_launch_and_opens_no_driver(write, tmp_path):
    path = write(f"""
if __name__ == "__main__":
    print("told by the file")
    square[(1,)](None, None)  # of another kernel: skipped
    try:
        total[(3,)](np.zeros(8192, np.float32), np.zeros(1, np.float32), N=8192)
    except Exception:
        pass
    open({str(tmp_path / "reached")!r}, "w")
""")
    program = (
        "import sys; from gridpact import cli; from gridpact.backends import sycl\n"
        f"code = cli.app(['plan', {path + ':total'!r}, '--target', 'cuda:90'], standalone_mode=False)\n"
        "print(code, sycl._runtime.cache_info().currsize, 'torch' in sys.modules)"
    )
    env = {**os.environ, "TRITON_DEFAULT_FP_FUSION": "1"}
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, env=env)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.endswith("0 0 False\n")
    assert "N=8192" in ran.stdout
    assert "\x1b[" not in ran.stdout  # no colour on a pipe
    assert (ran.stderr, "told by the file" in ran.stdout) == ("told by the file\n", False)
    assert not (tmp_path / "reached").exists()


def test_run_of_a_file_leaves_the_process_as_it_was(write):
    before = sys.argv, sys.path, sys.modules["__main__"], set(sys.modules), gridpact.launch.launch
    asking.read_launch(f"{write('total[1](np.zeros(4096), np.zeros(1))')}:total")
    assert before == (sys.argv, sys.path, sys.modules["__main__"], set(sys.modules), gridpact.launch.launch)


def test_file_runs_as_a_program_does(write, tmp_path):
    (tmp_path / "beside.py").write_text("WIDTH = 64\n")
    path = write("""
import sys
import beside
if __name__ == "__main__":
    is_itself = total.fn.__annotations__["N"] is tl.constexpr  # not a string: no __future__ of ours reaches the file
    total[(len(sys.argv), 1 + is_itself)](np.zeros(64, np.float32), np.zeros(1, np.float32), N=beside.WIDTH)
""")
    asked = asking.read_launch(f"{path}:total")
    assert asked.spelled["N"] == "64"
    assert plan.plan_launch(asked, "cuda:90").programs == (1, 2, 1)


def test_decorated_kernels_are_found(write):
    path = write("""
twice = triton.heuristics({"N": lambda args: 256})(total)
if __name__ == "__main__":
    twice[(1,)](np.zeros(256, np.float32), np.zeros(1, np.float32))
""")
    assert asking.read_launch(f"{path}:twice").spelled["N"] == "256"


# -- what a signature tells


def test_signature_of_the_example_plans_the_same():
    asked = asking.read_launch(f"{ADD}:add")
    signature = ",".join(f"{name}={what}" for name, what in asked.spelled.items())
    assert signature == "x=*fp32:16,y=*fp32:16,out=*fp32:16,n=i32:16,BLOCK=1024"
    assert asking.read_launch(f"{ADD}:add", signature).arguments.facts == asked.arguments.facts


@pytest.mark.parametrize(
    ("given", "spelled"),
    [
        ("n=i32", "i32"),
        ("n=i32:16", "i32:16"),
        ("n=i64:16", "i64:16"),
        ("n=u64", "u64"),
        ("n=fp32", "fp32"),
        ("n=i1", "i1"),
        ("n=*bf16", "*bf16"),
        ("n=*fp8e5:16", "*fp8e5:16"),
        ("n=1", "1"),  # a launch makes it a constant
        ("n=48", "i32:16"),
        ("n=None", "None"),
        ("n=(1, 7)", "('constexpr', 'i32')"),
        (" n = 2.5 ", "fp32"),
    ],
)
def test_signature_classifies_as_a_launch_does(given, spelled):
    asked = asking.read_launch(f"{ADD}:add", SIGNATURE.replace("n=i32", given))
    assert asked.spelled["n"] == spelled


def test_signature_heeds_declarations_and_defaults(write):
    asked = asking.read_launch(f"{write()}:typed", "out=*i32,small=i8,wide=i64:16,half=fp16,free=i32,source=*i32:16")
    assert asked.spelled == {
        "out": "*i32", "small": "i8", "wide": "i64:16", "half": "fp16", "free": "i32", "source": "*i32:16",
        "MODE": "'a'",
    }  # fmt: skip
    assert asked.arguments.types["source"] == "*ki32"
    assert plan.plan_launch(asked, "cuda:90", 1).metadata.name == "typed"


def test_kernels_of_triton_are_planned_by_their_signature(write):
    found = planned("cuda:90", f"{write()}:theirs", "x=*i32,n=i32")
    assert (found.metadata.name, found.geometry["block"]) == ("theirs", (128, 1, 1))


# -- mistakes: exit code 2, one sentence, no traceback

FORM = '--signature "x=TYPE,out=TYPE,N=VALUE"'
FREE = "out=*i32,small=2,wide=2,half=2.0,free=i32:16,source=*i32"


def signature(old, new):
    return ["{add}", "--signature", SIGNATURE.replace(old, new)]


MISTAKES = {
    "no function named": (["{kernels}"], "kernel: expected FILE.py:FUNCTION, got "),
    "no such file": (["no.py:add"], "file: expected one that exists, got 'no.py' (str)."),
    "no such function": (["{kernels}:totl"], "got 'totl' (str). Did you mean 'total'?"),
    "not a kernel": (["{kernels}:np"], "function 'np': expected one made by gridpact.jit or triton.jit, got "),
    "never launched": (["{kernels}:total"], f"runs to its end without launching it. Give its arguments as {FORM}"),
    "of triton": (["{kernels}:theirs"], "made by triton.jit, whose launches are not watched. Give its arguments as"),
    "unknown target": (
        ["{add}", "--target", "cuda:91"],
        "target: expected an architecture whose limits are known, got 'cuda:91' (str). Did you mean 'cuda:90'? [DEV",
    ),
    "no grid": (["{kernels}:total", "--signature", "x=*fp32,out=*fp32"], "grid: no launch was seen that tells it."),
    "grid of words": (
        ["{add}", "--grid", "7,x"],
        "grid: expected 1 to 3 ints such as 7,5,3, got '7,x' (str). [GRID-1]",
    ),
    "four axes": (["{add}", "--grid", "8,4,2,99"], "grid: expected 1 to 3 axes, got (8, 4, 2, 99) (tuple)."),
    "negative grid": (["{add}", "--grid", "-1"], "grid.x: a count of programs is 0 or more, got -1 (int). [GRID-6]"),
    "misspelt option": (["{add}", "--option", "num_warp=8"], "Did you mean 'num_warps'? [META-3]"),
    "option without value": (
        ["{add}", "--option", "num_warps"],
        "option: expected NAME=VALUE such as num_warps=8, got",
    ),
    "option of a wrong value": (["{add}", "--option", "num_warps=3"], "expected a power of two, got 3 (int). [META-2]"),
    "option of a wrong type": (["{add}", "--option", "debug=1"], "expected True or False, got 1 (int). [META-2]"),
    "misspelt parameter": (signature("BLOCK", "BLOK"), "got 'BLOK=1024' (str). Did you mean 'BLOCK'? [ARG-1]"),
    "misspelt type": (
        signature("x=*fp32", "x=*fp23"),
        "argument 'x' of 'add': expected a type such as *fp32:16 or i32, or a Python literal, got '*fp23:16' (str). "
        "Did you mean '*fp32'? [ARG-3]",
    ),
    "other divisor": (signature("n=i32", "n=i32:8"), "got 'i32:8' (str). Did you mean 'i32'? [ARG-3]"),
    "type that no launch gives": (
        signature("n=i32", "n=i16"),
        "argument 'n' of 'add': a launch passes it as i32, got 'i16' (str). [ARG-2]",
    ),
    "type of a constant": (signature("1024", "i32"), "'BLOCK' of 'add': a constexpr is a Python literal, got 'i32'"),
    "missing parameter": (signature("n=i32,", ""), "add() missing 1 required positional argument: 'n' [ARG-1]"),
    "parameter given twice": (
        signature("n=i32", "n=i32,n=i32"),
        "signature: expected each parameter once, got 'n=i32'",
    ),
    "alignment that does not count": (
        ["{kernels}:typed", "--signature", FREE],
        "argument 'free' of 'typed': a launch passes it as i32, got 'i32:16' (str). [ARG-2]",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_one_sentence(write, mistake):
    arguments, told = MISTAKES[mistake]
    kernels = write()
    arguments = [text.format(add=f"{ADD}:add", kernels=kernels) for text in arguments]
    code, output = run(*arguments, "--target", "cuda:90")
    assert code == 2
    assert told in output
    assert output.endswith("\n")
    assert "Traceback" not in output
    assert len(output.splitlines()) <= 2  # the kernel, where it was found, and the sentence


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("1 / 0", "got ZeroDivisionError in line {line}: division by zero.\n"),
        ("raise SystemExit(3)", "got SystemExit in line {line}: 3.\n"),
        ("this is no Python", "got SyntaxError: invalid syntax (kernels.py, line {line}).\n"),
        ("total[1](1)", "in line {line}: total() missing 1 required positional argument: 'out' [ARG-1].\n"),
        ("if __name__ == '__main__': 1 / 0", f"division by zero. Give its arguments as {FORM}"),
    ],
)
def test_file_that_fails_before_its_launch_is_told(write, more, told):
    code, output = run(f"{write(more)}:total")
    assert code == 2
    assert output.startswith("file 'kernels.py': expected to run until it launches 'total'")
    assert told.format(line=KERNELS.count("\n") + 1) in output
    assert output.count("\n") == 1


def test_grid_of_the_file_that_raises_is_told(write):
    path = write("total[lambda meta: meta['BLOCK']](np.zeros(4096), np.zeros(1))")
    code, output = run(f"{path}:total", "--target", "cuda:90")
    assert code == 2
    assert "grid: the launch's callable raised KeyError: 'BLOCK'. Give --grid, as in --grid 7,5,3. [GRID-10]" in output
    assert run(f"{path}:total", "--target", "cuda:90", "--grid", "7")[0] == 0


# -- targets that do not go


def test_target_that_triton_cannot_compile_for_is_told_and_others_are_planned(monkeypatch):
    def only_cuda(target, defaults=toolchain.option_defaults):
        if target.backend == "xpu":
            raise gridpact.UnsupportedError("toolchain", "cannot compile for this target", "xpu")
        return defaults(target)

    monkeypatch.setattr(toolchain, "option_defaults", only_cuda)
    code, output = run(f"{ADD}:add", "--grid", "7,5,3", "--target", "xpu", "--target", "cuda:90")
    assert code == 1
    assert "xpu\n  toolchain: cannot compile for this target, got 'xpu' (str).\n" in output
    assert "(7, 5, 3)" in output


def test_option_that_a_target_lacks_refuses_that_target_alone():
    code, output = run(
        *(f"{ADD}:add", "--grid", "7,5,3", "--target", "hip:gfx942", "--target", "cuda:90", "--option", "num_ctas=2")
    )
    assert code == 1
    assert "option 'num_ctas': only 1 on hip:gfx942 (CDNA has no clusters of work-groups), got 2 (int)" in output
    assert "(14, 5, 3)" in output


def test_kernel_that_does_not_compile_is_told_without_a_traceback(write):
    code, output = run(f"{write()}:total", "--signature", "x=i32,out=*fp32", "--grid", "1", "--target", "cuda:90")
    assert code == 1
    assert "kernel 'total': compiling for cuda:90 failed:" in output
    assert "Traceback" not in output


# -- the table


@needs_xpu
@pytest.mark.parametrize("columns", [80, 200])
def test_table_fits_the_terminal(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    code, output = run(f"{ADD}:add", "--grid", "7,5,3", *(f"--target={target}" for target in ALL))
    assert code == 0
    assert max(map(len, output.splitlines())) <= columns
    assert "…" not in output
    words = " ".join(output.split())
    for text in (
        "global range (z, y, x) (3, 5, 896) local range (z, y, x) (1, 1, 128) warps 4 of 32 lanes, 128 threads",
        "grid (7, 5, 3) block (256, 1, 1) warps 4 of 64 lanes, 256 threads",
        "grid.y, programs 5 65,535 ✓ pass",
        "default only num_ctas=1, cluster_dims=(1, 1, 1) (SYCL has no clusters of work-groups)",
    ):
        assert text in words


@needs_xpu
def test_target_without_a_device_compiles_what_the_device_does(sycl):
    device, planless = backends.open_device(sycl), planned("xpu")
    asked = asking.read_launch(f"{ADD}:add")
    options = {name: option.default for name, option in device.options.items()}
    metadata = device.compile(asked.kernel.source(device), asked.arguments, options, None).metadata
    same = KernelMetadata(metadata.name, metadata.num_warps, metadata.threads_per_warp, metadata.shared)
    mine = planless.metadata
    assert same == KernelMetadata(mine.name, mine.num_warps, mine.threads_per_warp, mine.shared)
    assert device.limits.programs == tuple(check.limit for check in planless.checks[:3])


@pytest.mark.parametrize(("num_ctas", "limit"), [(2, 8), (8, 8), (16, 16), (32, 16)])
def test_blocks_of_a_cluster_are_held_against_what_a_device_takes(num_ctas, limit):
    asked = asking.read_launch(f"{ADD}:add")
    found = plan.plan_launch(asked, "cuda:90", (2,), {"num_ctas": num_ctas})
    (check,) = [check for check in found.checks if check.subject == "blocks of a cluster"]
    assert (check.need, check.limit, check.error is None) == (num_ctas, limit, num_ctas <= limit)
    if num_ctas > limit:
        told = "cluster of 'add': at most 16 blocks, got 32 (int). Lower num_ctas. [META-4]"
        assert [str(error) for error in found.errors] == [told]


@pytest.mark.parametrize("target", ["cuda:90", "hip:gfx942"])
def test_how_many_programs_run_at_once_only_the_device_knows(target):
    asked = asking.read_launch(f"{ADD}:add")
    found = plan.plan_launch(asked, target, (100_000,), {"launch_cooperative_grid": True})
    (check,) = [check for check in found.checks if "cooperative" in check.subject]
    assert (check.need, check.limit, check.error) == (100_000, None, None)


def test_a_file_that_goes_to_another_folder_is_read(tmp_path, monkeypatch):
    (tmp_path / "moving.py").write_text(f"import os\nos.chdir('/')\n{Path(ADD).read_text()}")
    monkeypatch.chdir(tmp_path)
    assert asking.read_launch("moving.py:add").spelled["BLOCK"] == "1024"
