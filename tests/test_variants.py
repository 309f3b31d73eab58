"""Which specializations of a kernel differ in machine code, with no device.

`make test` runs it with triton-xpu 3.3; it also runs with upstream Triton 3.6.0 and 3.9.0.
"""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import gridpact
from gridpact import asked as asking
from gridpact import cli, plan, spirv, toolchain, variants

pytest.importorskip("triton", reason="no Triton is installed")
pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")  # 3.9 says so once unless it is set

ROOT = Path(__file__).parents[1]
ADD = f"{ROOT / 'examples' / 'add.py'}:add"
HISTOGRAM = f"{ROOT / 'examples' / 'histogram.py'}:histogram_kernel"
HAS_XPU = "xpu" in toolchain.installed().distribution
HERE = ("xpu", "cuda:90", "hip:gfx942") if HAS_XPU else ("cuda:90", "hip:gfx942")
FORMS = {"xpu": "SPIR-V", "cuda:90": "SASS", "hip:gfx942": "AMDGCN"}

KERNELS = """
import numpy as np
import triton.language as tl
import gridpact

@gridpact.jit
def copied(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n), at < n)

def name_of(proxy):
    return "another_name"

@gridpact.jit(repr=name_of)
def copied_too(x, out, n, BLOCK: tl.constexpr):
    # The same, further down.

    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)

    tl.store(out + at, tl.load(x + at, at < n), at < n)

@gridpact.jit
def first(x, out):
    tl.store(out, tl.load(x))

@gridpact.jit
def scaled(x, out, factor, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at) * factor.to(tl.float32))

@gridpact.jit
def wrong(x, out):
    tl.store(out, x.no_such_thing)

@gridpact.jit(do_not_specialize=["free"], do_not_specialize_on_alignment=["x", "step"])
def declared(x, out, free, wide: tl.int64, step, pair, one, flag, half: tl.float16, BLOCK: tl.constexpr = 64):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at * step) + tl.load(pair[0] + at * one) + pair[1] + free + wide + flag + half)

if __name__ == "__main__":
    x = np.zeros(4096, np.float32)
    declared[(1,)](x, x, 16, 16, 16, (x, 16), 1, True, 1.0)
"""


@pytest.fixture
def kernels(tmp_path):
    path = tmp_path / "kernels.py"
    path.write_text(KERNELS)
    return str(path)


def listed(where, signature="", target="cuda:90", **options):
    return variants.list_variants(asking.read_launch(where, signature), plan.platform_of(target).device, options)


def run(*arguments):
    result = CliRunner().invoke(cli.app, ["variants", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def copies(dtype="fp32", block=1024):
    return f"x=*{dtype}:16,out=*{dtype}:16,n=i32:16,BLOCK={block}"


# -- what is compared


@pytest.mark.parametrize("target", HERE)
def test_names_and_places_in_the_source_are_no_difference_and_constants_are(kernels, target):
    one, same, other = (
        listed(f"{kernels}:{name}", copies(block=block), target)
        for name, block in (("copied", 1024), ("copied_too", 1024), ("copied", 512))
    )
    assert one.form == FORMS[target]
    for variant in one.variants:
        assert variant.code == same[variant.name].code, variant.name
        assert variant.code.size == same[variant.name].code.size > 0
    assert one["aligned"].code != other["aligned"].code
    assert "another_name" not in same["aligned"].code.text


# Element type -> accesses of aligned and unaligned memory, bits. A thread copies 8 elements here, of AMD's backend 4.
WIDTHS = {
    "fp32": {"xpu": (128, 32), "cuda:90": (128, 32), "hip:gfx942": (128, 32)},
    "fp16": {"xpu": (128, 16), "cuda:90": (128, 16), "hip:gfx942": (64, 16)},
    "i8": {"xpu": (64, 8), "cuda:90": (64, 8), "hip:gfx942": (32, 8)},
}


@pytest.mark.parametrize("target", HERE)
@pytest.mark.parametrize("dtype", WIDTHS)
def test_widths_of_a_copy(kernels, dtype, target):
    found = listed(f"{kernels}:copied", copies(dtype), target)
    aligned, unaligned = WIDTHS[dtype][target]
    for name, bits in (("aligned", aligned), ("unaligned", unaligned), ("indivisible", unaligned)):
        code = found[name].code
        threads = 256 if target == "hip:gfx942" else 128
        element = {"fp32": 32, "fp16": 16, "i8": 8}[dtype]
        assert set(code.loads) == set(code.stores) == {bits}, name
        assert code.loads[bits] * bits * threads == 1024 * element, name  # each element is loaded once
        assert code.loads == code.stores, name
    assert found["x unaligned"].code.loads.keys() <= {aligned, unaligned}
    assert max(found["out unaligned"].code.stores) == unaligned


@pytest.mark.parametrize("target", HERE)
def test_aligned_and_unaligned_differ_or_not(kernels, target):
    wide, narrow = listed(ADD, "", target), listed(f"{kernels}:first", "x=*fp16,out=*fp16", target)
    assert wide["unaligned"].same_as == ""
    assert wide.answer.startswith("aligned and unaligned differ: 16-byte loads become 4-byte ones")
    assert {variant.same_as for variant in narrow.variants} == {"", "aligned"}
    assert narrow["aligned"].code.loads == {16: 1}
    assert narrow.answer == f"same {FORMS[target]}: aligning x and out is worth nothing here"


def test_pointer_that_is_scattered_to_gains_nothing():
    found = listed(HISTOGRAM)
    assert (found["counts unaligned"].same_as, found["values unaligned"].same_as) == ("aligned", "unaligned")
    assert found.answer.endswith("16-byte loads become 4-byte ones; aligning counts beside the others is worth nothing")
    assert found["aligned"].code.stores == {}  # atomics are no stores


def test_copies_to_shared_memory_are_loads():
    found = listed(f"{ROOT / 'examples' / 'matmul.py'}:matmul_kernel")
    assert (found["aligned"].code.loads.keys(), found["unaligned"].code.loads.keys()) == ({128}, {32})
    assert "LDGSTS" in found["aligned"].code.text


def test_options_of_the_launch_count(kernels):
    assert max(listed(f"{kernels}:copied", copies(block=128), num_warps=1)["aligned"].code.loads) == 128
    assert max(listed(f"{kernels}:copied", copies(block=128), num_warps=4)["aligned"].code.loads) == 32


def test_without_a_disassembler_it_is_ptx(monkeypatch, kernels):
    monkeypatch.setattr(toolchain, "disassembler", lambda: None)
    found = listed(f"{kernels}:copied", copies("fp16"))
    assert found.form == "PTX"
    assert found["aligned"].code.size is None
    assert found["aligned"].code.loads == found["aligned"].code.stores == {128: 1}
    assert found["unaligned"].code.loads == found["unaligned"].code.stores == {16: 8}
    assert found["aligned"].code == listed(f"{kernels}:copied_too", copies("fp16"))["aligned"].code
    assert listed(f"{kernels}:first", "x=*fp16,out=*fp16")["unaligned"].same_as == "aligned"


@pytest.mark.parametrize(
    ("access_of", "line", "seen"),
    [
        (variants._sass_access, "@!P0 LDG.E.128 R16, desc[UR4][R20.64] ;", (False, 128)),
        (variants._sass_access, "LDG.E.128.CONSTANT R4, [R2.64] ;", (False, 128)),
        (variants._sass_access, "LDG.E.U16 R4, desc[UR4][R2.64+0x80] ;", (False, 16)),
        (variants._sass_access, "LDG.E.S8 R4, desc[UR4][R2.64] ;", (False, 8)),
        (variants._sass_access, "LDG.E R4, desc[UR4][R2.64] ;", (False, 32)),
        (variants._sass_access, "LDG.E.ENL2.256 R8, R4, desc[UR4][R2.64] ;", (False, 256)),
        (variants._sass_access, "LDGSTS.E.BYPASS.LTC128B.128 [R41], desc[UR8][R8.64], P2 ;", (False, 128)),
        (variants._sass_access, "LDGSTS.E [R41], desc[UR8][R8.64], P2 ;", (False, 32)),
        (variants._sass_access, "STG.E.64 desc[UR4][R2.64], R12 ;", (True, 64)),
        (variants._sass_access, "LDGDEPBAR ;", None),
        (variants._sass_access, "LDS.128 R4, [R2] ;", None),
        (variants._amdgcn_access, "global_load_dwordx4 v[4:7], v[2:3], off", (False, 128)),
        (variants._amdgcn_access, "global_load_ushort v4, v[2:3], off", (False, 16)),
        (variants._amdgcn_access, "global_load_short_d16_hi v4, v[2:3], off", (False, 16)),
        (variants._amdgcn_access, "global_load_lds_dword v[2:3], off", (False, 32)),
        (variants._amdgcn_access, "buffer_store_dwordx2 v[4:5], v2, s[0:3], 0 offen", (True, 64)),
        (variants._amdgcn_access, "global_store_byte v[2:3], v4, off", (True, 8)),
        (variants._amdgcn_access, "s_load_dwordx8 s[4:11], s[0:1], 0x8", None),
        (variants._amdgcn_access, "global_atomic_add v0, v1, s[2:3]", None),
        (variants._ptx_access, "@%p1 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];", (False, 128)),
        (variants._ptx_access, "ld.global.L1::evict_last.b16 {%rs1}, [%rd1];", (False, 16)),
        (variants._ptx_access, "ld.volatile.global.u8 %rs1, [%rd1];", (False, 8)),
        (variants._ptx_access, "@%p1 st.global.v2.b64 [ %rd1 + 0 ], { %rd2, %rd3 };", (True, 128)),
        (variants._ptx_access, "cp.async.cg.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x10, %r2;", (False, 128)),
        (variants._ptx_access, "ld.shared.v4.b32 {%r1, %r2, %r3, %r4}, [%r5];", None),
        (variants._ptx_access, "ld.param.u64 %rd1, [add_param_0];", None),
    ],
)
def test_accesses_of_instructions(access_of, line, seen):
    assert access_of(line) == seen


def module(*instructions):
    words = [0x07230203, 0x10000, 0, 99, 0]
    for opcode, *operands in instructions:
        words += [(1 + len(operands)) << 16 | opcode, *operands]
    return np.array(words, np.uint32).tobytes()


def text(string):
    return np.frombuffer(string.encode() + b"\0" * (4 - len(string) % 4), np.uint32).tolist()


def test_spirv_without_names_lines_and_debug_information():
    code = [(11, 1, *text("OpenCL.std")), (71, 5, 44, 16), (12, 6, 7, 1, 3)]
    named = [
        *(code[0], (11, 2, *text("OpenCL.DebugInfo.100")), (15, 6, 5, *text("kernel"), 9), (7, 8, *text("a.py"))),
        *((3, 3, 100000), (5, 5, *text("kernel")), (71, 5, 41, *text("kernel"), 0), code[1], (8, 8, 12, 3)),
        *((12, 6, 8, 2, 1), code[2], (317,), (330, *text("made by"))),
    ]
    assert spirv.code_of(module(*named)) == [code[0], (15, 6, 5, 9), *code[1:]]


def test_spirv_accesses_are_of_global_memory():
    types = [(22, 1, 32), (23, 2, 1, 4), (32, 3, 5, 2), (32, 4, 5, 1), (32, 5, 4, 2)]  # a float, four; global, local
    body = [(55, 3, 6), (55, 4, 7), (55, 5, 8), (61, 2, 9, 6, 2, 16), (61, 1, 10, 7), (61, 2, 11, 8), (62, 6, 9)]
    assert spirv.accesses_of(module(*types, *body)) == ({128: 1, 32: 1}, {128: 1})


# -- which variants there are


@pytest.mark.parametrize("target", HERE)
def test_variants_heed_declarations_tuples_and_constants(kernels, target):
    found = listed(f"{kernels}:declared", "", target)
    names = [variant.name for variant in found.variants]
    assert names == [
        "aligned", "unaligned", "out unaligned", "pair[0] unaligned", "indivisible", "wide indivisible",
        "pair[1] indivisible", "step = 1", "pair[1] = 1", "one not 1",
    ]  # fmt: skip
    assert found.pointers == ("out", "pair[0]")
    assert found.launched == "aligned"
    assert found["aligned"].arguments["wide"] == "i64:16"
    assert found["one not 1"].arguments["one"] == "i32:16"
    assert not any(variant.error for variant in found.variants)


def test_launch_of_two_classes_at_once_is_a_variant_of_its_own(kernels):
    signature = "x=*fp32,out=*fp32:16,n=i32,BLOCK=1024"
    found = listed(f"{kernels}:copied", signature)
    assert found.launched == "as launched" == found.variants[-1].name
    assert found["as launched"].arguments == {"x": "*fp32", "out": "*fp32:16", "n": "i32", "BLOCK": "1024"}
    assert listed(f"{kernels}:copied", signature.replace("n=i32", "n=i32:16")).launched == "x unaligned"
    assert "as launched" not in [variant.name for variant in listed(ADD).variants]


@pytest.mark.parametrize("target", HERE)
def test_no_pointer_chooses(tmp_path, target):
    path = tmp_path / "kernels.py"
    path.write_text(KERNELS.replace("@gridpact.jit\ndef first", "@gridpact.jit(do_not_specialize=[0, 1])\ndef first"))
    found = listed(f"{path}:first", "x=*fp16,out=*fp16", target)
    assert [variant.name for variant in found.variants] == ["aligned"]
    assert found.answer == "no pointer chooses among binaries: one serves aligned and unaligned memory"


@pytest.mark.parametrize("target", HERE)
def test_variant_that_does_not_compile_is_a_row_with_its_error(kernels, target):
    signature = "x=*fp32:16,out=*fp32:16,factor=i32,BLOCK=1024"
    found = listed(f"{kernels}:scaled", signature, target)
    assert found["factor = 1"].code is None
    assert "object has no attribute 'to'" in found["factor = 1"].error
    assert [variant.name for variant in found.variants if variant.error] == ["factor = 1"]
    code, output = run(f"{kernels}:scaled", "--signature", signature, "--target", target)
    assert code == 0
    assert "factor = 1: kernel 'scaled': compiling for" in output
    assert output.splitlines()[-1] == f"  {found.answer}"


# -- the command


def test_command_shows_the_variants_of_each_target():
    code, output = run(HISTOGRAM, *(f"--target={target}" for target in HERE))
    assert code == 0
    for target in HERE:
        assert f"\n{target}\n  {FORMS[target]} by {toolchain.installed().distribution} " in output
    rows = [line.split() for line in output.splitlines()]
    assert rows.count(["(this", "launch)"]) == len(HERE)
    assert ["counts", "unaligned"] in [row[:2] for row in rows if row[-1:] == ["aligned"]]
    assert sum(line.startswith("  aligned and unaligned differ: ") for line in output.splitlines()) == len(HERE)


def test_command_says_where_it_cannot_write():
    code, told = run(ADD, "--json", "/dev/full")
    assert (code, "--json: " in told) == (2, True)


def test_command_writes_json(tmp_path):
    path = tmp_path / "variants.json"
    code, _ = run(ADD, "--target", "cuda:90", "--target", "hip:gfx942", "--option", "num_warps=8", "--json", str(path))
    assert code == 0
    told = json.loads(path.read_text())
    assert told["kernel"] == "add"
    assert told["arguments"]["n"] == "i32:16"
    assert told["versions"][toolchain.installed().distribution] == toolchain.installed().full_version
    assert [found["target"] for found in told["targets"]] == ["cuda:90", "hip:gfx942"]
    found = listed(ADD, num_warps=8)
    first = told["targets"][0]
    assert (first["form"], first["answer"], first["launched"]) == ("SASS", found.answer, "aligned")
    for row, variant in zip(first["variants"], found.variants, strict=True):
        assert (row["name"], row["same_as"], row["size"]) == (variant.name, variant.same_as, variant.code.size)
        assert {int(bits): count for bits, count in row["loads"].items()} == variant.code.loads


MISTAKES = {
    "no such file": (["no.py:add"], "file: expected one that exists, got 'no.py' (str)."),
    "no such function": (["{kernels}:copid"], "got 'copid' (str). Did you mean 'copied'?"),
    "never launched": (["{kernels}:copied"], "runs to its end without launching it. Give its arguments as --signature"),
    "unknown target": (
        [ADD, "--target", "cuda:91"],
        "target: expected an architecture whose limits are known, got 'cuda:91' (str). Did you mean 'cuda:90'? [DEV",
    ),
    "misspelt option": ([ADD, "--option", "num_warp=8"], "Did you mean 'num_warps'? [META-3]"),
    "option of a wrong value": ([ADD, "--option", "num_warps=3"], "expected a power of two, got 3 (int). [META-2]"),
    "misspelt type": (["{kernels}:first", "--signature", "x=*fp23,out=*fp32"], "Did you mean '*fp32'? [ARG-3]"),
    "no folder for JSON": ([ADD, "--json", "no/such.json"], "--json: expected a file in a folder that exists, got "),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_one_sentence(kernels, mistake):
    arguments, told = MISTAKES[mistake]
    code, output = run(*(text.format(kernels=kernels) for text in arguments), "--target", "cuda:90")
    assert code == 2
    assert told in output
    assert "Traceback" not in output
    assert len(output.splitlines()) <= 4  # the kernel, an empty line, the target, and the sentence


def test_target_that_triton_cannot_compile_for_is_told_and_others_are_shown(monkeypatch):
    def only_cuda(target, defaults=toolchain.option_defaults):
        if target.backend == "hip":
            raise gridpact.UnsupportedError("toolchain", "cannot compile for this target", "hip")
        return defaults(target)

    monkeypatch.setattr(toolchain, "option_defaults", only_cuda)
    code, output = run(ADD, "--target", "hip:gfx942", "--target", "cuda:90")
    assert code == 1
    assert "hip:gfx942\n  toolchain: cannot compile for this target, got 'hip' (str).\n" in output
    assert "aligned and unaligned differ" in output


def test_kernel_that_does_not_compile_at_all_ends_with_1(kernels):
    code, output = run(f"{kernels}:wrong", "--signature", "x=*fp32,out=*fp32", "--target", "cuda:90")
    assert code == 1
    assert "no_such_thing" in output
    assert output.endswith("  nothing to compare: aligned does not compile\n")
    assert "Traceback" not in output


# -- the measurements


@pytest.fixture(scope="module")
def alignment():
    spec = importlib.util.spec_from_file_location("alignment", ROOT / "bench" / "alignment.py")
    loaded, path = importlib.util.module_from_spec(spec), list(sys.path)
    sys.modules["alignment"] = loaded  # its dataclass looks itself up there
    spec.loader.exec_module(loaded)
    yield loaded
    del sys.modules["alignment"]
    sys.path[:] = path


def test_tables_of_the_text_are_made_from_the_results(alignment):
    path = ROOT / "docs" / "alignment.md"
    parts = alignment.docs_parts(ROOT / "bench" / "results")
    assert path.read_text() == alignment.with_parts(path.read_text(), parts)
    assert parts["code"].count("| no |") > 0
    assert "sycl:cpu" in parts["times"]


def test_each_kernel_of_the_measurements_runs_right_with_each_binary(alignment, sycl):
    with gridpact.device(sycl):
        for workload in alignment.workloads(1 << 16, 64):
            rows = alignment.time_rows(workload, alignment.Host(), rounds=4)
            assert [row["what"] for row in rows] == list(alignment.CONTENDERS)
            assert rows[0]["ratio"] == 1
            assert all(row["us"] > 0 for row in rows)
            assert len(alignment.time_table(rows)) == 2
