"""Compiled kernels on disk: what comes back is what was compiled, or nothing."""

import collections
import enum
import json
import math
import os
import struct
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gridpact
from gridpact import cache, launch, stored, toolchain
from gridpact.arguments import classify
from gridpact.identity import Key, typed
from gridpact.metadata import KernelMetadata


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GRIDPACT_KERNEL_CACHE", str(tmp_path))
    monkeypatch.delenv("TRITON_ALWAYS_COMPILE", raising=False)
    return tmp_path / "kernels"


KEY = Key((("source", typed("text")), ("argument n", typed((1, True, 1.0, b"\xff")))))
BINARY = toolchain.Binary(
    {"ttir": "text: ä", "cubin": b"\x7fELF\0\xff"},
    "cubin",
    KernelMetadata("add", fields={"name": "add", "x": (1, None)}),
)


def parts(binary):
    """Give all of a binary as text that tells types apart."""
    return repr((dict(binary.asm), binary.kind, binary.metadata, dict(binary.metadata.fields)))


# -- the typed form of values


def exact(value):
    """Give a value as text in which exactly equal values are equal: types, bits of floats, order of dicts."""
    if type(value) is float:
        return f"float {struct.pack('<d', value).hex()}"
    if type(value) in (tuple, list):
        return f"{type(value).__name__}({[exact(item) for item in value]})"
    if type(value) is dict:
        return f"dict({[(exact(k), exact(v)) for k, v in value.items()]})"
    return f"{type(value).__name__} {value!r}"


plain = (
    st.none() | st.booleans() | st.integers() | st.integers(-(2**300), 2**300) | st.floats() | st.text() | st.binary()
)
keys = st.none() | st.booleans() | st.integers() | st.text() | st.tuples(st.integers(), st.text())
values = st.recursive(
    plain,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(keys, inner),
    max_leaves=20,
)


@given(values)
def test_every_value_comes_back_exactly(value):
    assert exact(stored.decode(json.loads(json.dumps(stored.encode(value))))) == exact(value)


@pytest.mark.parametrize(
    "value",
    [1, True, 1.0, -0.0, 0.0, math.nan, -math.nan, math.inf, -math.inf, 10**4000, -(10**4000), "1", "", "\0", "ä\u2028",
     b"", (), [], {}, ((),), {(1, "a"): [None]}, {"int": "1"}, {"tuple": []}],
    ids=lambda value: f"{type(value).__name__}",
)  # fmt: skip
def test_value_comes_back_exactly(value):
    assert exact(stored.decode(json.loads(json.dumps(stored.encode(value))))) == exact(value)


class Color(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize(
    "value",
    [object(), {1}, 1j, np.float32(1), np.int64(1), Color.RED, collections.namedtuple("point", "x")(1), "\ud800",
     collections.OrderedDict(), type("Text", (str,), {})("a"), (1, [object()]), {"a": {1}}, {"\udfff": 1}],
    ids=lambda value: f"{type(value).__name__}",
)  # fmt: skip
def test_value_that_cannot_be_written_down_is_not_stored(folder, value):
    with pytest.raises((TypeError, ValueError)):
        stored.encode(value)
    stored.keep(KEY, "add", toolchain.Binary(BINARY.asm, "cubin", KernelMetadata("add", fields={"x": value})))
    assert stored.find(KEY) is None


@pytest.mark.parametrize(
    "written", [1, 1.0, [], {}, {"int": "1", "float": "1"}, {"int": "g"}, {"module": "os"}, {"float": ""}]
)
def test_what_is_no_typed_value_is_refused(written):
    with pytest.raises((ValueError, struct.error)):
        stored.decode(written)


# -- entries


def test_binary_comes_back_whole():
    stored.keep(KEY, "add", BINARY)
    assert parts(stored.find(KEY)) == parts(BINARY)
    assert stored.find(Key((("source", typed("other")),))) is None


def test_known_kernels_are_told_with_their_facts():
    begin = time.time()
    other = Key((("source", typed("other")),))
    stored.keep(KEY, "add", BINARY)
    stored.keep(other, "add", BINARY)
    stored.keep(Key((("source", typed("third")),)), "multiply", BINARY)
    found = list(stored.known("add"))
    assert [Key(one.facts) for one in found] == [other, KEY]
    assert [one.digest for one in found] == [other.digest, KEY.digest]
    assert all(begin <= one.compiled <= time.time() for one in found)
    assert len(list(stored.all_stored())) == 3


def test_entry_of_other_facts_under_the_same_digest_is_a_miss():
    stored.keep(KEY, "add", BINARY)
    collides = Key((("source", typed("other")),))
    collides._digest = KEY.digest
    assert stored.find(collides) is None
    stored.keep(collides, "add", BINARY)
    assert stored.find(collides) is not None
    assert stored.find(KEY) is None


def test_facts_of_another_type_are_other_facts():
    one, other = Key((("n", ("int", 1)),)), Key((("n", ("int", True)),))
    assert one == other  # as Python compares
    stored.keep(one, "add", BINARY)
    other._digest = one.digest
    assert stored.find(other) is None


def test_every_bit_flip_and_every_length_of_an_entry_is_a_miss(folder):
    stored.keep(KEY, "add", BINARY)
    path = folder / KEY.digest
    raw = path.read_bytes()
    spoiled = [raw[:i] + bytes([raw[i] ^ 1 << i % 8]) + raw[i + 1 :] for i in range(len(raw))]
    spoiled += [raw[:i] for i in range(len(raw))]
    for content in spoiled:
        path.write_bytes(content)
        assert stored.find(KEY) is None
    stored.keep(KEY, "add", BINARY)
    assert parts(stored.find(KEY)) == parts(BINARY)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 8,
        b"\xff" * 8,
        b"\0" * 7,
        b"\0" * 7 + b"\2{}",
        b"\0" * 7 + b"\2[]",
        b"\0" * 7 + b"\x14" + b'{"facts": [1, 2, 3]}',
    ],
)
def test_whole_entry_of_another_form_is_a_miss(content):
    cache.write("kernels", KEY.digest, content)
    assert stored.find(KEY) is None
    assert list(stored.all_stored()) == []


def test_every_field_of_an_entry_that_is_missing_or_null_is_a_miss():
    content = stored.pack(KEY, "add", BINARY, 1.0)
    head, at = stored._parts(content)
    for field in ("facts", "kind", "metadata", "stages"):
        for changed in ({k: v for k, v in head.items() if k != field}, {**head, field: None}, {**head, field: "text"}):
            text = json.dumps(changed).encode()
            cache.write("kernels", KEY.digest, struct.pack(">Q", len(text)) + text + content[at:])
            found = stored.find(KEY)
            assert found is None or field == "kind", (field, changed)
    cache.write("kernels", KEY.digest, content + b"more")
    assert stored.find(KEY) is None


@pytest.mark.parametrize("value", ["1", "true", "ON"])
def test_entries_are_left_alone_where_everything_is_to_be_compiled(monkeypatch, folder, value):
    stored.keep(KEY, "add", BINARY)
    monkeypatch.setenv("TRITON_ALWAYS_COMPILE", value)
    assert stored.find(KEY) is None
    other = Key((("source", typed("other")),))
    stored.keep(other, "add", BINARY)
    monkeypatch.setenv("TRITON_ALWAYS_COMPILE", "0")
    assert stored.find(KEY) is not None
    assert stored.find(other) is None


def test_nothing_is_kept_where_it_is_off(monkeypatch):
    stored.keep(KEY, "add", BINARY)
    monkeypatch.setenv("GRIDPACT_KERNEL_CACHE", "off")
    assert stored.find(KEY) is None
    stored.keep(KEY, "add", BINARY)
    assert list(stored.all_stored()) == []


# -- what the toolchain compiles

CPU = {"name": "cpu", "sub_group_sizes": (16, 32), "has_fp64": True, "max_work_group_size": 8192}
CPU["max_num_sub_groups"] = 64
TARGETS = {
    "xpu": toolchain.Target("xpu", tuple(sorted(CPU.items())), 32, inlines_all=True),
    "cuda": toolchain.Target("cuda", 90, 32),
    "hip": toolchain.Target("hip", "gfx942", 64),
}


class Compiling:
    compiles = True


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.parametrize("name", TARGETS)
def test_every_field_of_a_compiled_kernel_comes_back(name):
    programs = pytest.importorskip("gridpact.contract.triton_programs", reason="no Triton is installed")
    if name == "xpu" and toolchain.installed().distribution != "triton-xpu":
        pytest.skip(f"{toolchain.installed().distribution} has no backend for xpu")
    kernel = gridpact.jit(programs.scaled)
    memory = np.zeros(64, "f4")
    arguments = classify(kernel.signature, kernel.signature.bind((memory, memory, 5, 64), {}))
    source, target = kernel.source(Compiling), TARGETS[name]
    binary = toolchain.compile_kernel(source, arguments, target, {}, links=False)
    key = Key((("source", typed(source.digest)), *arguments.facts, *toolchain.facts_of(target, {})))
    stored.keep(key, "scaled", binary)
    found = stored.find(key)
    assert parts(found) == parts(binary)
    assert exact(dict(found.metadata.fields)) == exact({**binary.metadata.fields}) or name == "xpu"
    assert found.metadata.target == binary.metadata.target
    (told,) = stored.known("scaled")
    assert told.facts == key.facts
    assert told.target == {"xpu": "xpu:cpu", "cuda": "cuda:90", "hip": "hip:gfx942"}[name]


def test_toolchain_that_was_changed_in_place_is_another_one(monkeypatch):
    before = toolchain.build()
    look = toolchain._size_and_time

    def changed(path):
        size, time = look(path)
        return (size, time + 10**18) if path.endswith("runtime/jit.py") else (size, time)

    monkeypatch.setattr(toolchain, "_size_and_time", changed)
    assert toolchain.build.__wrapped__() != before
    monkeypatch.undo()
    assert toolchain.build.__wrapped__() == before


def test_library_that_changes_and_keeps_its_name_is_another_key(tmp_path, monkeypatch):
    library = tmp_path / "own.bc"
    keys = []
    for content in (b"one", b"other", b"one"):
        library.write_bytes(content)
        monkeypatch.setattr(toolchain, "_facts", {})
        keys.append(dict(toolchain.facts_of(TARGETS["cuda"], {"extern_libs": {"own": str(library)}})))
    assert keys[0] == keys[2] != keys[1]


# -- launches

PROGRAM = """
import json, sys
import numpy as np
import gridpact
import triton.language as tl
from gridpact import toolchain

compiled = []
compile_kernel = toolchain.compile_kernel

def counted(*args, **options):
    compiled.append(1)
    if "never" in sys.argv:
        raise RuntimeError("it was to compile nothing")
    return compile_kernel(*args, **options)

toolchain.compile_kernel = counted

@gridpact.jit
def helper(x):
    return x * 3

@gridpact.jit
def write(seen, source, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(seen + i, helper(tl.load(source + i, mask=i < n)), mask=i < n)

seen, source = np.zeros(64, "i4"), np.arange(64, dtype="i4")
with gridpact.device("sycl:cpu"):
    made = write[(1,)](seen, source, 60, BLOCK=64)
print(json.dumps([len(compiled), bool((seen[:60] == source[:60] * 3).all() and not seen[60:].any()), made.hash]))
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return [sys.executable, str(path)]


def ended(process):
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert "Warning" not in errors
    return json.loads(out)


def start(command, **environment):
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )


def test_processes_race_on_a_cold_cache_and_a_later_one_compiles_nothing(sycl, folder, program):
    told = [ended(process) for process in [start(program) for _ in range(8)]]
    assert all(is_right for _, is_right, _ in told)
    (digest,) = {digest for *_, digest in told}
    assert [path.name for path in folder.iterdir()] == [digest]
    assert cache.content_of(folder / digest) is not None
    assert ended(start([*program, "never"], PYTHONHASHSEED="7")) == [0, True, digest]


def test_cache_that_cannot_be_used_costs_a_compile(sycl, tmp_path, folder, program):
    assert ended(start(program))[0] == 1
    for broken in ("/proc/nowhere", str(tmp_path / "program.py"), str(tmp_path / ("x" * 300))):
        process = start(program, GRIDPACT_KERNEL_CACHE=broken)
        out, errors = process.communicate(timeout=120)
        assert json.loads(out)[:2] == [1, True], errors
        assert errors.count("not used") == 1
    assert ended(start(program, GRIDPACT_KERNEL_CACHE="off"))[:2] == [1, True]
    (entry,) = folder.iterdir()
    entry.write_bytes(entry.read_bytes()[:-100])
    assert ended(start(program))[:2] == [1, True]
    assert ended(start(program))[:2] == [0, True]


def test_threads_read_an_entry_once(sycl, monkeypatch):
    programs = pytest.importorskip("gridpact.contract.triton_programs")
    with gridpact.device(sycl):
        gridpact.jit(programs.two_numbers)[(1,)](np.zeros(2, "i4"), 5, 7)
        finds = []
        find = stored.find
        monkeypatch.setattr(launch, "_binaries", {})  # what another kernel of this identity has in memory
        monkeypatch.setattr(stored, "find", lambda key: finds.append(key) or find(key))
        monkeypatch.setattr(toolchain, "compile_kernel", None)
        kernel = gridpact.jit(programs.two_numbers)
        memory = [np.zeros(2, "i4") for _ in range(8)]

        def launched(seen):
            with gridpact.device(sycl):
                kernel[(1,)](seen, 5, 7)

        threads = [threading.Thread(target=launched, args=[seen]) for seen in memory]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(finds) == 1
    assert all(seen.tolist() == [5, 7] for seen in memory)


def test_kernels_of_the_reference_are_not_stored(folder):
    programs = pytest.importorskip("gridpact.contract.reference_programs")
    with gridpact.device("reference"):
        gridpact.jit(programs.counted)[(1,)](np.zeros(1, "i4"))
    assert not folder.exists() or not list(folder.iterdir())
