"""Why a kernel was compiled, classes of arguments, and what was compiled ahead."""

import collections
import subprocess
import sys
import textwrap
import types
import warnings

import numpy as np
import pytest

import gridpact
from gridpact.arguments import CLASSES
from gridpact.compiles import STORM, RecompileWarning
from gridpact.errors import ContractError, HookError

tl = pytest.importorskip("triton.language")
CompilationError = pytest.importorskip("triton.compiler.errors").CompilationError
pytestmark = pytest.mark.usefixtures("on_sycl")

WIDTH = tl.constexpr(2)


@pytest.fixture
def on_sycl(sycl):
    with gridpact.device("sycl:cpu"):
        yield


def scaled(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) * WIDTH, mask=i < n)


def numbered(out, value, C: tl.constexpr, dtype: tl.constexpr = None):
    tl.store(out, value)


def aligned(count, dtype="f4"):
    memory = np.zeros(count + 16, dtype)
    return memory[-memory.ctypes.data % 16 // memory.itemsize :][:count]


def watched(kernel, *launches):
    seen = []
    with gridpact.hooks.observe(compiled=seen.append):
        for args, kwargs in launches:
            kernel[1](*args, **kwargs)
    return seen


def test_each_new_binary_is_told_once_with_the_fact_that_is_new():
    kernel, x, out = gridpact.jit(scaled), aligned(64), aligned(64)
    seen = watched(
        kernel,
        ((x, out, 16), {"BLOCK": 16}),
        ((x, out, 32), {"BLOCK": 16}),
        ((x, out, 17), {"BLOCK": 16}),
        ((x[1:], out, 16), {"BLOCK": 16}),
        ((x, out, 16), {"BLOCK": 32, "num_warps": 2}),
    )
    assert [[*map(str, each.changes)] for each in seen] == [
        [],
        ["argument n: not divisible by 16"],
        ["argument x: not divisible by 16"],
        ["constexpr BLOCK: 16 -> 32", "option num_warps: 4 -> 2"],
    ]
    assert [each.known for each in seen] == [0, 1, 2, 3]
    assert {each.device for each in seen} == {"sycl:cpu"}
    assert len({each.key.digest for each in seen}) == 4
    assert str(seen[1]).endswith(": argument n: not divisible by 16")


def test_observer_of_one_kernel_sees_no_other():
    kernel, other, out = gridpact.jit(numbered), gridpact.jit(numbered), aligned(1)
    seen = []
    with gridpact.hooks.observe(compiled=seen.append, kernel=kernel):
        other[1](out, 5, 1)
        kernel[1](out, 5, 2)
    kernel[1](out, 5, 3)
    assert [each.kernel for each in seen] == ["numbered"]


def test_who_watches_compiles_alone_watches_no_launch():
    with gridpact.hooks.observe(compiled=print):
        assert gridpact.hooks.observers_of(gridpact.jit(numbered)) == ()


def test_observer_that_raises_stops_the_launch_and_no_later_one():
    kernel, out = gridpact.jit(numbered), np.zeros(1, "f4")
    with gridpact.hooks.observe(compiled=lambda compiled: 1 / 0), pytest.raises(HookError) as caught:
        kernel[1](out, 5, 1)
    assert not caught.value.launched
    assert out[0] == 0
    kernel[1](out, 5, 1)
    assert out[0] == 5


def test_equal_kernels_share_a_binary():
    def make():
        return gridpact.jit(numbered)

    out, one, other = aligned(1), make(), make()
    first = one[1](out, 5, "shared")
    seen = watched(other, ((out, 5, "shared"), {}))
    assert [each.origin for each in seen] == ["memory"]
    assert other[1](out, 5, "shared").binary is first.binary
    assert other[1](out, 5, "shared").hash == first.hash


def test_name_of_a_kernel_is_part_of_its_identity():
    out = aligned(1)
    names = [lambda proxy: f"one_{proxy.constants['C']}", lambda proxy: f"two_{proxy.constants['C']}"]
    one, other = (gridpact.jit(numbered, repr=name)[1](out, 5, 7) for name in names)
    assert (one.name, other.name) == ("one_7", "two_7")
    assert one.hash != other.hash


def test_storm_is_warned_of_once_and_names_the_fact():
    kernel, out = gridpact.jit(numbered), aligned(1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number in range(STORM + 4):
            kernel[1](out, 5, number + 2)
    (warning,) = (each for each in caught if each.category is RecompileWarning)
    assert str(warning.message) == (
        "kernel 'numbered': 16 of its 17 binaries differ in one fact, constexpr C: 17 -> 18. Pass 'C' as a number "
        "that is no constexpr, or choose among few values of it. [KEY-4]"
    )


def test_launch_that_warns_as_an_error_keeps_its_binary():
    kernel, out = gridpact.jit(numbered), np.zeros(1, "f4")
    for number in range(STORM):
        kernel[1](out, 5, number + 2)
    with pytest.raises(RecompileWarning):
        kernel[1](out, 5, 1000)
    assert len(kernel.compiled) == STORM + 1


# ---------------------------------------------------------------------------------------------------------- state


def test_state_that_changed_is_refused_where_that_was_chosen(monkeypatch):
    kernel, x, out = gridpact.jit(scaled, on_state_change="refuse"), aligned(16) + 1, aligned(16)
    kernel[1](x, out, 16, BLOCK=16)
    monkeypatch.setitem(globals(), "WIDTH", tl.constexpr(2.0))
    with pytest.raises(ContractError, match=r"captured WIDTH: 2 -> 2\.0 \(int -> float\).*\[STATE-1\]"):
        kernel[1](x, out, 16, BLOCK=16)
    monkeypatch.setitem(globals(), "WIDTH", tl.constexpr(2))
    kernel[1](x, out, 16, BLOCK=16)
    assert (out == 2).all()


def test_reaction_that_is_none_is_refused():
    with pytest.raises(ContractError, match=r"on_state_change: expected 'recompile' or 'refuse', got 'ignore'"):
        gridpact.jit(scaled, on_state_change="ignore")


def while_compiling(monkeypatch, change):
    """Make a change in the middle of each compile."""
    device = gridpact.open_device("sycl:cpu")
    compiled = type(device).compile

    def compile_and_change(self, *args):
        binary = compiled(self, *args)
        change()
        return binary

    monkeypatch.setattr(type(device), "compile", compile_and_change)


def test_value_that_changes_in_place_while_a_kernel_is_compiled_is_noticed(monkeypatch):
    kernel, x, out, width = gridpact.jit(scaled), aligned(16), aligned(16), tl.constexpr(776)
    monkeypatch.setitem(globals(), "WIDTH", width)
    while_compiling(monkeypatch, lambda: setattr(width, "value", 777))
    with pytest.raises(ContractError, match=r"may not change in place while it is compiled.*\[STATE-1\]"):
        kernel[1](x, out, 16, BLOCK=16)
    assert not kernel.compiled


def test_name_that_is_rebound_while_a_kernel_is_compiled_is_seen_by_the_next_launch(monkeypatch):
    kernel, x, out = gridpact.jit(scaled), aligned(16) + 1, aligned(16)
    monkeypatch.setitem(globals(), "WIDTH", tl.constexpr(3))
    while_compiling(monkeypatch, lambda: globals().update(WIDTH=tl.constexpr(5)))
    kernel[1](x, out, 16, BLOCK=16)
    assert (out == 3).all()  # what it was when the launch read it
    kernel[1](x, out, 16, BLOCK=16)
    assert (out == 5).all()


# -------------------------------------------------------------------------------------------------------- classes


def test_classes_are_listed():
    def kernel(x, n, m: tl.int64, scale: tl.float32, BLOCK: tl.constexpr):
        pass

    listed = gridpact.jit(kernel, do_not_specialize=["n"]).classes
    assert listed == {
        "x": ("None", "equal to 1", "divisible by 16", "any"),
        "n": ("None", "any"),
        "m": ("divisible by 16", "any"),
        "scale": ("any",),
        "BLOCK": ("each value",),
    }
    assert {name for names in listed.values() for name in names} <= set(CLASSES)


@pytest.mark.parametrize(
    ("over", "count"), [(None, 2 * 2 * 3), (["x"], 2), (["x", "n"], 6), ([2], 3), ([], 1), (["BLOCK"], 1)]
)
def test_classes_are_compiled_ahead_in_every_combination(over, count):
    kernel = gridpact.jit(scaled)
    made = kernel.precompile(np.float32, aligned(16), 16, BLOCK=16, over=over)
    assert len({each.hash for each in made}) == len(made) == count
    assert set(kernel.compiled) == {each.key for each in made}


@pytest.mark.parametrize("n", [16, 2**40, 2**63, np.int32(5), True, 0.5])
def test_each_class_of_a_number_is_compiled_ahead(n):
    kernel, out = gridpact.jit(numbered), aligned(2, "f8")
    kernel.precompile(out, n, 3, over=["value"])
    numbers = {16: (2, 17, 32), 5: (2, 17, 32), 2**40: (2**40, 2**40 + 1), 2**63: (2**63, 2**63 + 1)}
    for number in (n, *numbers.get(n, ())):
        assert not watched(kernel, ((out, number, 3), {}))


def test_declared_number_and_keyword_only_parameters_are_compiled_ahead():
    def kernel(out, n: tl.int64, *, m, BLOCK: tl.constexpr = 16):
        tl.store(out, n + m)

    jitted, out = gridpact.jit(kernel), aligned(2, "i8")
    jitted.precompile(out, 5, m=7, num_warps=2)
    for n in (1, 2, 16):
        for m in (1, 2, 16):
            assert not watched(jitted, ((out, n), {"m": m, "num_warps": 2}))
            assert out[0] == n + m


def test_too_many_combinations_are_refused():
    def kernel(a, b, c, d, e, f, g):
        pass

    jitted = gridpact.jit(kernel)
    with pytest.raises(ContractError, match=r"at most 64 binaries.*got 128 .*over=.*\[SPEC-2\]"):
        jitted.precompile(*[np.float32] * 7)
    assert not jitted.compiled


def test_misspelt_parameter_to_compile_ahead_is_refused():
    with pytest.raises(ContractError, match=r"over of 'scaled'.*got 'm' .*\[SPEC-2\]"):
        gridpact.jit(scaled).precompile(np.float32, np.float32, 16, BLOCK=16, over=["m"])


@pytest.mark.parametrize("switch", ["do_not_specialize", "do_not_specialize_on_alignment"])
def test_constant_cannot_be_switched_off(switch):
    with pytest.raises(
        ContractError, match=r"a constexpr has a binary for each of its values.*got 'BLOCK'.*\[SPEC-2\]"
    ):
        gridpact.jit(scaled, **{switch: ["BLOCK"]})


# ------------------------------------------------------------------------------------------------------------ why


PROGRAM = """
import sys
import numpy as np
import triton.language as tl
import gridpact

@gridpact.jit
def numbered(out, value, C: tl.constexpr):
    tl.store(out, value)

@gridpact.jit
def other(out):
    tl.store(out, 1)

out = np.zeros(1, "i4")
other[1](out)
for number in range(int(sys.argv[1]) if len(sys.argv) > 1 else 3):
    numbered[1](out, 5, number + 2)
numbered[1](out, 16, 2)
if "fail" in sys.argv:
    raise KeyError("on purpose")
"""


def why(tmp_path, *arguments, program=PROGRAM):
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(program))
    command = [sys.executable, "-m", "gridpact", "why", *(str(each).replace("FILE", str(file)) for each in arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


def test_why_says_what_made_each_binary(tmp_path):
    ran = why(tmp_path, "FILE:numbered")
    assert ran.returncode == 0, ran.stderr
    assert "constexpr C: 2 -> 3" in ran.stdout
    assert "argument value: divisible by 16 (was not)" in ran.stdout
    assert "numbered: 4 binaries" in ran.stdout
    assert "other" not in ran.stdout


def test_why_finds_a_storm_and_says_what_would_spare_it(tmp_path):
    ran = why(tmp_path, "FILE", "--", "20")
    assert ran.returncode == 0, ran.stderr
    assert "other on" in ran.stdout
    assert "a storm. Pass 'C' as a number that is no constexpr" in ran.stdout


def test_why_tells_what_it_saw_of_a_program_that_fails(tmp_path):
    ran = why(tmp_path, "FILE", "--", "1", "fail")
    assert ran.returncode == 1
    assert "numbered: 2 binaries" in ran.stdout
    assert "program.py: KeyError: 'on purpose'" in ran.stdout
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere.py"], "file: expected a Python program that exists, got 'nowhere.py'"),
        (["FILE:nubmered"], "kernel 'nubmered': no launch of it was seen. Did you mean 'numbered'?"),
    ],
)
def test_why_says_what_is_wrong(tmp_path, arguments, told):
    ran = why(tmp_path, *arguments)
    assert ran.returncode
    assert told in ran.stdout
    assert "Traceback" not in ran.stderr


def test_why_reads_what_is_on_disk(tmp_path, monkeypatch):
    (tmp_path / "cache").mkdir(mode=0o700)
    monkeypatch.setenv("GRIDPACT_KERNEL_CACHE", str(tmp_path / "cache"))
    first = why(tmp_path, "FILE", "--", "2")
    again = why(tmp_path, "FILE", "--", "2")
    assert first.stdout.count("compiled in") == again.stdout.count("from disk") == 4
    stored = why(tmp_path, "numbered")
    assert stored.returncode == 0, stored.stderr
    assert "the first on disk" in stored.stdout.splitlines()[0]
    assert "constexpr C: 2 -> 3" in stored.stdout.splitlines()[1]
    misspelt = why(tmp_path, "numberd")
    assert misspelt.returncode == 1
    assert "kernel 'numberd': no binary of it is on disk. Did you mean 'numbered'?" in misspelt.stdout


# -- state that changes beside a compile

beside = types.ModuleType("beside")


def fill(out):
    tl.store(out, beside.VALUE)


def spoil():
    beside.LIST[0] += 4
    return 0


beside.spoil = spoil


def spoiled(out):
    tl.store(out, beside.LIST[0] + beside.spoil())


def test_observer_that_changes_state_makes_the_next_launch_compile():
    kernel, out, wrote = gridpact.jit(fill), aligned(1, "i4"), []
    beside.VALUE = tl.constexpr(4)

    def change(compiled):
        beside.VALUE = tl.constexpr(8)

    with gridpact.hooks.observe(compiled=change):
        kernel[1](out)
        wrote += [*out]
    for _ in range(3):
        kernel[1](out)
        wrote += [*out]
    assert wrote == [4, 8, 8, 8]


def test_what_was_compiled_while_state_changed_is_not_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("GRIDPACT_KERNEL_CACHE", str(tmp_path))
    beside.LIST = [4]
    with pytest.raises(ContractError, match=r"while it is compiled.*\[STATE-1\]"):
        gridpact.jit(spoiled)[1](aligned(1, "i4"))
    assert beside.LIST != [4]
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_state_may_change_before_there_is_a_binary():
    kernel, out = gridpact.jit(on_state_change="refuse")(fill), aligned(1, "i4")
    beside.VALUE = "no number"
    with pytest.raises(CompilationError, match=r"beside\.VALUE"):
        kernel[1](out)
    beside.VALUE = tl.constexpr(3)
    kernel[1](out)
    assert out[0] == 3


def test_named_tuples_with_fields_in_another_order_are_two_kernels():
    @gridpact.jit
    def first(out, pair):
        tl.store(out, pair.a)

    out, wrote = aligned(1, "i4"), []
    for fields in ("a b", "b a"):
        first[1](out, collections.namedtuple("Pair", fields)(a=5, b=7))
        wrote += [*out]
    assert wrote == [5, 5]


@pytest.mark.parametrize(
    ("name", "told"), [(lambda proxy: 1 / 0, "raised ZeroDivisionError"), (lambda proxy: None, "got None")]
)
def test_name_that_is_none_is_refused(name, told):
    with pytest.raises(ContractError, match=rf"repr=: expected a function that gives .*{told}.*\[KEY-1\]"):
        gridpact.jit(numbered, repr=name)[1](aligned(1), 5, 1)
