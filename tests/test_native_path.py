"""The native path of a launch and the Python definition mean the same.

Each call is made by the definition and natively, on a device that runs kernels and on a CUDA driver that runs nothing,
and what reached the driver, what observers saw, what came back and what memory then holds are compared.
"""

import contextlib
import ctypes
import enum
import gc
import hashlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import types
import weakref
from collections import namedtuple
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gridpact
from gridpact import launch as definition
from gridpact import learned, native
from gridpact.arguments import Pointer
from gridpact.conformance.subjects.gridpact_device import recording
from gridpact.stream import TorchCurrent

tl = pytest.importorskip("triton.language") if __name__ != "__main__" else __import__("triton").language

if native.path is None:
    if __name__ == "__main__":
        sys.exit(f"no native path: {native.MISSING}")
    pytest.skip(f"no native path: {native.MISSING}", allow_module_level=True)


# Calls of all kinds to a few kernels are a storm.
pytestmark = pytest.mark.filterwarnings("ignore::gridpact.compiles.RecompileWarning")


# -------------------------------------------------------------------------------------------------------------- kernels


def stored(out, value):
    if value is not None:
        tl.store(out, value)


def ignoring(out, value):
    tl.store(out, 1)


def reading(out, value: tl.const):
    tl.store(out, 1)


def constant(out, C: tl.constexpr, free=None, D: tl.constexpr = 5):
    tl.store(out, 1)


def bound(out, a, b=3, *, c: tl.constexpr = 3, d=None):
    tl.store(out, a + b + c)


def stateful(out, n):
    tl.store(out, HELPER(n) * FACTOR + MODULE.SCALE)


@gridpact.jit
def once(n):
    return n


@gridpact.jit
def twice(n):
    return n + n


HELPER, FACTOR, MODULE = once, tl.constexpr(3), types.ModuleType("module")
MODULE.SCALE = tl.constexpr(1)


def closure():
    """Make a kernel's function with a cell, and what sets the cell."""
    offset = tl.constexpr(1)

    def closed(out, n):
        tl.store(out, n + offset)

    def put(value):
        nonlocal offset
        offset = value

    return closed, put


closed, put_cell = closure()


# --------------------------------------------------------------------------------------------------------------- values

_BACKING = np.zeros(1 << 16, np.uint8)
MEMORY = _BACKING[-_BACKING.ctypes.data % 64 :][: 1 << 15]


def view(dtype, offset=0, shape=(8,)):
    """Give part of the memory that all arrays here lie in, so that no kernel writes elsewhere."""
    dtype = np.dtype(dtype)
    return np.ndarray(shape, dtype, MEMORY, offset)


def read_only(array):
    array.flags.writeable = False
    return array


class Sub(np.ndarray):
    """An array of another type."""


class Duck:
    """A tensor of Triton's own duck type."""

    def __init__(self, dtype="float32", address=None, **further):
        self.dtype, self.address = dtype, MEMORY.ctypes.data if address is None else address
        for name, value in further.items():
            setattr(self, name, value)

    def __repr__(self):
        return f"{type(self).__name__}({self.__dict__})"

    def data_ptr(self):
        if isinstance(self.address, Exception):
            raise self.address
        return self.address


class Lazy(Duck):
    """One that may be a lazy view."""

    is_lazy = False

    def is_neg(self):
        return self.is_lazy


class Wrapped(Duck):
    """One that has all else from what it wraps."""

    def __getattr__(self, name):
        if name in ("is_neg", "is_conj"):
            return lambda: self.dtype == "float32" and self.address % 32 == 0
        raise AttributeError(name)


DTYPES = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", ml_dtypes.bfloat16]
ARRAYS = [
    *(view(dtype, 256 * i) for i, dtype in enumerate(DTYPES)),
    *(view(dtype, 256 * i + np.dtype(dtype).itemsize) for i, dtype in enumerate(DTYPES)),
    view("f4", 4096, (4, 4)),
    view("f4", 4096, (4, 4)).T,
    view("f4", 4096, ()),
    view("f4", 4096, (0,)),
    view("f4", 4096, (0, 3)),
    view("f4", 4096)[::-1],
    view("f4", 4096)[::2],
    view("f4", 4098),
    view("f4", 4096).view(Sub),
    read_only(view("f4", 4096)),
    read_only(view("f4", 4100)),
    read_only(view("i8", 4096)),
]
ODD_ARRAYS = [
    view(">f4", 4096),
    view(">i2", 4096),
    view("c8", 4096),
    view("S4", 4096),
    view("M8[s]", 4096),
    view([("a", "i4")], 4096),
    np.array([None]),
    np.ma.masked_array(view("f4", 4096)),
]
DUCKS = [
    Duck(device="cpu"),
    Duck(device="cpu", address=MEMORY.ctypes.data + 4),
    Duck("float16", device="cpu"),
    Duck("torch.int32", device="cpu"),
    Duck(),
    Duck(device="nowhere:0"),
    Duck(device="cuda:7"),
    Duck("complex64", device="cpu"),
    Duck(device="cpu", address=0, numel=lambda: 3),
    Duck(device="cpu", address=RuntimeError("no storage")),
    Duck(device="cpu", address=ValueError("no address")),
    Lazy(device="cpu"),
    Duck(device="cpu", is_neg=lambda: True),
    Duck(device="cpu", is_conj=lambda: [1]),
    Duck(device="cpu", is_neg=lambda: None),
    Wrapped(device="cpu", address=MEMORY.ctypes.data + 16),
    Wrapped(device="cpu"),
    Lazy(device="cpu", is_lazy=True),
]

UNWRITTEN = [np.empty(0, "f4"), Duck(device="cpu", address=0), np.zeros(4), view("f4", 4096)[:0]]  # nowhere to write to

POWERS = [2**bits + by for bits in (7, 8, 15, 16, 31, 32, 53, 63, 64, 65) for by in (-1, 0, 1)]
EDGES = [0, 1, 2, 5, 15, 16, 32, *POWERS, *(-power for power in POWERS)]
INTEGERS = [*EDGES, -1, -16, 65504, 65519, 65520, 2**53 + 2**20, 2**127, 2**128, 10**40, -(10**400)]
FLOATS = [
    0.0, -0.0, 1.0, 0.1, -2.5, 16.0, float("nan"), -float("nan"), float("inf"), -float("inf"), 1e39, -1e39, 1e308,
    3.4028235677973366e38, 3.4028235677973362e38, 3.3895313892515355e38, 3.3961775292304e38, 65504.0, 65519.99, 65520.0,
    5e-324, 1e-45, 7e-46, 1e-40, 9.2e-41, 4.6e-41, 6e-8, 2.98e-8, 2.9802322387695312e-8, 1.00390625, 1.01171875,
    1.001953125,
]  # fmt: skip
SCALARS = [
    *(np.dtype(kind).type(value) for kind in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8") for value in (0, 1, 16,
    100)),
    np.int64(-(2**63)), np.uint64(2**64 - 1), np.int32(-1), np.uint64(2**63), np.int64(2**31),
    *(np.dtype(kind).type(value) for kind in ("f2", "f4", "f8") for value in (0.1, -0.0, np.nan, np.inf)),
    np.float64(1e39), np.longdouble(1.5), np.bool_(True), np.bool_(False), np.complex64(1), np.complex128(1j),
    np.str_("a"), np.bytes_(b"a"), np.datetime64(1, "s"), ml_dtypes.bfloat16(1.5),
]  # fmt: skip


class Colour(enum.Enum):
    """Constants by identity."""

    RED = 1


class Number(enum.IntEnum):
    """Ints that are no ints."""

    ONE = 1
    TWO = 2


class Int(int):
    """An int of another type."""


class Float(float):
    """A float of another type."""


Point = namedtuple("Point", "x y")
ODD_VALUES = [
    None, True, False, "text", "", b"bytes", 1j, [1], [], (), (1, 2), (1, (2.5, None)), Point(1, 2), {}, {"a": 1},
    object(),
    Number.ONE, Number.TWO, Colour.RED, Int(1), Int(5), Float(1.5), tl.float32, tl.pointer_type(tl.float32), once,
    twice, int,
    np.dtype("f4"), range(3), len, Ellipsis, tl.constexpr(3),
]  # fmt: skip
HELD = tl.constexpr(3)
CONSTANTS = [
    0, 1, -1, 5, 2**31, 2**63, -(2**70), True, False, 0.0, -0.0, 1.0, float("nan"), -float("nan"), float("inf"), "",
    "a", "b",
    "".join(["a", "bc"]), "abc", None, (), (1,), (1, 2), tuple([1, 2]), (True, 2), (1.0, 2), (0.0,), (-0.0,),
    (float("nan"),),
    (float("nan"), 1), ((1,), 2), ((1, (None, "a")), 2), (2**70,), (np.int64(1), 2), ([1],), (tl.float32,), (once,),
    [1, 2], [],
    Point(1, 2), Point(1.0, 2), tl.float32, tl.float64, tl.pointer_type(tl.float32), HELD, tl.constexpr(3), once, twice,
    np.int64(5), np.uint8(5), np.float32(1), np.float64(-0.0), np.bool_(True), np.str_("a"), np.complex64(1),
    np.longdouble(1), Colour.RED, Number.ONE, int, Point, {}, {"a": 1}, object(), np.dtype("f4"), b"a", 1j,
    view("f4"), len,
    Int(5), Float(1.0),
]  # fmt: skip


# ------------------------------------------------------------------------------------------------------ calls, as drawn


@dataclass
class Call:
    """One launch, and what is so while it is made."""

    grid: Any = 1
    args: tuple = ()
    kwargs: dict = field(default_factory=dict)
    change: str = ""  # to what kernels capture and to the environment, before it
    stream: Any = ...  # of a `with` block; ... for none
    hooks: tuple = ()
    before: tuple = ()  # pre-run hooks, by what they do


class Asked:
    """A callable grid, which notes what it is given."""

    def __init__(self, answer, deed=""):
        self.answer, self.deed, self.seen = answer, deed, []

    def __repr__(self):
        return f"Asked({self.answer!r}, {self.deed!r})"

    def __call__(self, meta):
        self.seen.append((type(meta).__name__, [(name, seen_as(value)) for name, value in meta.items()]))
        if self.deed == "raise":
            raise KeyError("of the grid")
        if self.deed == "exit":
            raise SystemExit(3)
        if self.deed == "change meta":
            meta.clear()
            meta["num_warps"] = 32
        elif self.deed == "read meta":
            return (meta["num_warps"], 1 if meta["value"] is None else 2)
        elif self.deed == "read other":
            return meta["nothing of that name"]
        elif self.deed:
            STATES[self.deed]()
        return self.answer


class Unlike(tuple):
    """A tuple that iterates over other items."""

    def __iter__(self):
        return iter((2, 3))

    def __repr__(self):
        return "Unlike"


class Unlikely(list):
    """A list that does so."""

    def __iter__(self):
        return iter((3, 2))

    def __repr__(self):
        return "Unlikely"


class Counts(tuple):
    """A tuple that can be called."""

    def __call__(self, meta):
        return 4


LIMIT = 2**31 - 1
AXES = [
    -1, LIMIT + 1, 2**32, 2**63 - 1, 2**63, 2**64, 2**64 + 1, -(2**63), -(2**64), 10**30, True, False, np.True_, 1.0,
    2.5,
    float("nan"), None, "1", b"1", 1j, (1,), Number.TWO, Int(2), np.int64(2), np.uint8(3), np.int32(0), np.int8(-1),
    np.uint64(2**64 - 1), np.float32(1), np.array(2),
]  # fmt: skip
ODD_GRIDS = [
    (), [], (1,) * 4, [1] * 5, (LIMIT,) * 3, [LIMIT, LIMIT, LIMIT], (LIMIT, 0, LIMIT), (LIMIT + 1, 1), (1, -1, LIMIT),
    (1, 65536, 0), (0, 1, 65536), "1", "", {}, {1}, range(1, 3), np.array([1, 2]), np.array(2), Point(2, 3),
    Unlike((1, 1)),
    Unlikely([1, 1]), Unlike((0,)), Counts((1, 2)), Int(2), object(), 1.0, None, np.zeros(0),
]  # fmt: skip
axes = st.one_of(st.integers(0, 3), st.sampled_from(AXES))
usual_axes = st.integers(0, 3)
plain_grids = st.one_of(
    usual_axes,
    st.lists(usual_axes, min_size=1, max_size=3).map(tuple),
    st.lists(usual_axes, min_size=1, max_size=3),
    axes,
    st.lists(axes, max_size=4).map(tuple),
    st.lists(axes, max_size=4),
    st.sampled_from(ODD_GRIDS),
    st.sampled_from([(LIMIT, LIMIT, LIMIT), (LIMIT, LIMIT, 0)]),
)
CALLABLES = [len, int, dict, list, Colour, Duck]
DEEDS = ["", "", "raise", "exit", "change meta", "read meta", "read other"]
grids = st.one_of(
    plain_grids,
    st.builds(Asked, plain_grids, st.sampled_from(DEEDS)),
    st.builds(Asked, st.builds(Asked, plain_grids)),
    st.sampled_from(CALLABLES),
)
few_grids = st.one_of(
    st.sampled_from([1, (2,), [1, 2], (1, 2, 1), 0, np.int64(2), (1, -1), None]), st.builds(Asked, usual_axes)
)


class Observer:
    """A pair of hooks that note what they are told."""

    def __init__(self, enters=True, leaves=True, raises=(), own=False, is_slow=False):
        self.enters, self.leaves, self.raises, self.own = enters, leaves, raises, own

    def __repr__(self):
        return f"Observer({self.enters}, {self.leaves}, {self.raises}, own={self.own})"

    def watching(self, kernel, told):
        def hook(side):
            def noted(metadata):
                told.append((side, self.own, [(name, seen_as(value)) for name, value in metadata.items()]))
                if side in self.raises:
                    raise ValueError(f"of {side}")

            noted.__qualname__ = side
            return noted

        sides = [hook(side) if wanted else None for side, wanted in (("enter", self.enters), ("exit", self.leaves))]
        return gridpact.hooks.observe(*sides, kernel=kernel if self.own else None)


def describes(grid, metadata, arguments):
    """Describe a launch, for observers."""
    return {"of the kernel": (grid, metadata.name, sorted(arguments)), "shared": -1}


def pre_run_hook(deed, told):
    def hook(*args, **kwargs):
        told.append(("before", [seen_as(value) for value in args], seen_as(kwargs)))
        if deed == "raise":
            raise ValueError("of a pre-run hook")
        STATES[deed]()

    return hook


observers = st.one_of(
    st.just(()),
    st.just(()),
    st.just(()),
    st.lists(
        st.builds(
            Observer, st.booleans(), st.booleans(), st.sampled_from([(), (), ("enter",), ("exit",), ("enter",
            "exit")]), st.booleans()
        ),
        max_size=2,
    ).map(tuple),
)  # fmt: skip


def seen_as(value):
    """Give what tells a value from another: the driver's kernels by their handles, arrays by what does not change."""
    if isinstance(value, dict):
        return [(name, seen_as(inner)) for name, inner in value.items()]
    if isinstance(value, np.ndarray):
        return id(value)
    handle = None if isinstance(value, gridpact.Stream) else getattr(value, "handle", None)
    return (type(value).__name__, handle if isinstance(handle, int) else repr(value))


# ---------------------------------------------------------------------------------------------- what changes in between


def put(name, value):
    globals()[name] = value


STATES = {
    "": lambda: None,
    "factor is 2": lambda: put("FACTOR", TWO),
    "factor is another 3": lambda: put("FACTOR", tl.constexpr(3)),
    "factor holds 4": lambda: setattr(ORIGINAL["FACTOR"], "value", 4),
    "factor holds 3.0": lambda: setattr(ORIGINAL["FACTOR"], "value", 3.0),
    "factor is gone": lambda: globals().pop("FACTOR", None),
    "scale is 2": lambda: setattr(MODULE, "SCALE", TWO),
    "scale holds 5": lambda: setattr(MODULE.SCALE, "value", 5),
    "module is another": lambda: put("MODULE", OTHER),
    "helper is twice": lambda: put("HELPER", twice),
    "cell is 2": lambda: put_cell(TWO),
    "cell holds 7": lambda: setattr(CELL, "value", 7),
    "argument holds 4": lambda: setattr(HELD, "value", 4),
    "environment": lambda: os.environ.__setitem__("GRIDPACT_TEST_OF_PATHS", "1"),
    "switch": lambda: os.environ.__setitem__("TRITON_GRIDPACT_TEST_OF_PATHS", "1"),
    "switch is another": lambda: os.environ.__setitem__("TRITON_GRIDPACT_TEST_OF_PATHS", "2"),
}
TWO, CELL, OTHER = tl.constexpr(2), tl.constexpr(1), types.ModuleType("other")
OTHER.SCALE = tl.constexpr(9)
ORIGINAL = {"HELPER": once, "FACTOR": FACTOR, "MODULE": MODULE, "SCALE": MODULE.SCALE}


class State:
    """All that `STATES` change, as it is now."""

    def __init__(self):
        self.names = {name: globals().get(name) for name in ("HELPER", "FACTOR", "MODULE")}
        self.scales = MODULE.SCALE, ORIGINAL["MODULE"].SCALE
        self.cell = closed.__closure__[0].cell_contents
        constexprs = (ORIGINAL["FACTOR"], self.names["FACTOR"], ORIGINAL["SCALE"], TWO, CELL, HELD)
        self.held = [(one, one.value) for one in constexprs if one is not None]
        self.switches = {name: os.environ.get(name) for name in SWITCHES}

    def restore(self):
        for name, value in self.names.items():
            put(name, value)
        if self.names["FACTOR"] is None:
            del globals()["FACTOR"]
        ORIGINAL["MODULE"].SCALE = self.scales[1]
        put_cell(self.cell)
        for one, value in self.held:
            one.value = value
        for name, value in self.switches.items():
            if os.environ.get(name) != value:
                os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


SWITCHES = ("GRIDPACT_TEST_OF_PATHS", "TRITON_GRIDPACT_TEST_OF_PATHS")
put_cell(CELL)
BEGIN = State()


# -------------------------------------------------------------------------------------------------------- the two paths


class Shared(dict):
    """The compiled kernels of one kernel; binaries are compiled once for all kernels of one function."""

    binaries: dict = {}  # noqa: RUF012

    def __init__(self, kernel):
        self.kernel = kernel

    def get(self, key):
        found = super().get(key)
        shared = self.binaries.get((self.kernel.fn, key))
        if found is None and shared is not None:
            binary, device = shared
            found = self[key] = self.kernel.make_compiled(key, binary, device)
        return found

    def __setitem__(self, key, compiled):
        self.binaries.setdefault((self.kernel.fn, key), (compiled.binary, compiled.device))
        super().__setitem__(key, compiled)


def kernel_of(function, **options):
    kernel = gridpact.jit(function, **options)
    kernel.compiled = Shared(kernel)
    return kernel


class Bench:
    """Makes calls by both paths on one device, compares them, and counts which path made the launches."""

    def __init__(self, name, driver_calls=None):
        self.device, self.driver_calls = gridpact.open_device(name), driver_calls
        self.valid = self.native = self.recognised = self.calls = self.runs = self.misses = 0

    def counts(self):
        return {"calls": self.calls, "valid": self.valid, "native": self.native, "recognised": self.recognised}

    @cache  # noqa: B019
    def stream(self, name):
        if name == "closed":
            closed = gridpact.Stream(self.device.name)
            closed.close()
            return closed
        return gridpact.Stream(self.device.name)

    def given(self, value):
        """Streams are drawn by name, since each device has its own."""
        return self.stream(value.name) if isinstance(value, OwnStream) else value

    def same(self, function, calls, **options):
        """Make the calls one after another, each by the definition and natively twice: remembered, and recognised."""
        BEGIN.restore()
        by_definition, by_nature = kernel_of(function, **options), kernel_of(function, **options)
        for call in calls:
            STATES[call.change]()
            state = State()
            self.calls += 1
            kwargs = {name: self.given(value) for name, value in call.kwargs.items()}
            native.turn("off", True)
            try:
                expected = self.outcome(call, state, by_definition, kwargs, is_native=False)
            finally:
                native.turn("off", False)
            is_valid = expected["result"][0] == "returned" and len(expected["records"]) == 1
            for attempt in range(2):
                found = self.outcome(call, state, by_nature, kwargs, is_native=True)
                differs = {part: (found[part], expected[part]) for part in expected if found[part] != expected[part]}
                assert not differs, f"{call}, launch {attempt} of it natively: {differs}"
                is_native = bool(found["records"]) and not self.runs
                self.native += is_native
            self.valid += is_valid
            self.recognised += is_valid and is_native and not self.misses
            state.restore()
        assert by_definition.compiled.keys() == by_nature.compiled.keys()
        BEGIN.restore()

    def outcome(self, call, state, kernel, kwargs, is_native):
        state.restore()
        MEMORY[:] = 0xA5
        if self.driver_calls:
            self.driver_calls()
        if isinstance(call.grid, Asked):
            if call.grid.deed and call.grid.deed in STATES:
                self.remember(call, kernel, kwargs)  # what the grid changes was not so when the launch began
            call.grid.seen.clear()
        records, told, self.runs, self.misses = [], [], 0, 0
        kernel.pre_run_hooks[:] = [pre_run_hook(deed, told) for deed in call.before]
        with contextlib.ExitStack() as stack:
            stack.enter_context(recording(self.device, records))
            stack.enter_context(self.counting())
            for observer in call.hooks:
                stack.enter_context(observer.watching(kernel, told))
            try:
                if call.stream is not ...:
                    stack.enter_context(gridpact.stream(self.given(call.stream)))
                if is_native:
                    made = kernel[call.grid](*call.args, **kwargs)
                else:
                    made = definition.launch(kernel, call.grid, call.args, kwargs)
                result = "returned", type(made).__name__, made.key.facts, made.fn is kernel
            except (Exception, SystemExit) as error:
                result = "raised", said(error), said(error.__cause__)
        self.device.synchronize()
        return {
            "result": result,
            "records": records,
            "told": told,
            "asked": list(call.grid.seen) if isinstance(call.grid, Asked) else [],
            "driver": self.driver_calls() if self.driver_calls else [],
            "memory": hashlib.sha256(MEMORY).hexdigest(),
        }

    def remember(self, call, kernel, kwargs):
        kernel.pre_run_hooks.clear()
        with contextlib.suppress(Exception):
            kernel[1](*call.args, **kwargs)
        self.device.synchronize()
        MEMORY[:] = 0xA5
        if self.driver_calls:
            self.driver_calls()

    @contextlib.contextmanager
    def counting(self):
        """Count launches that take the Python path to the driver, and those that the native path does not know."""
        run = definition.run

        def counted(*args):
            self.runs += 1
            return run(*args)

        def missed(*args):
            self.misses += 1
            return learned.missed(*args)

        definition.run = counted
        native.use("definition", missed)
        try:
            yield
        finally:
            definition.run = run
            native.use("definition", learned.missed)


def said(error):
    return None if error is None else (type(error).__name__, str(error), getattr(error, "clause", ""))


@dataclass(frozen=True)
class OwnStream:
    """One of the bench's streams."""

    name: str


streams = st.sampled_from([OwnStream("one"), OwnStream("two"), OwnStream("closed"), None, 0, 7, "s", True, object()])
good_streams = st.sampled_from([OwnStream("one"), OwnStream("two"), None])
often = st.sampled_from([False, False, False, True])

ON: Bench  # where the properties are checked
usual = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)


@st.composite
def around(draw, calls, usual=None):
    """Give calls, often after a usual one; some are watched, some on a stream."""
    drawn = draw(st.lists(calls, min_size=1, max_size=3))
    if usual is not None and draw(st.booleans()):
        drawn.insert(0, draw(usual))
    how = draw(st.sampled_from(["", "", "named", "with"]))
    for i, call in enumerate(drawn):
        call.hooks = draw(observers)
        if draw(often) and draw(often):
            call.before = tuple(
                draw(st.lists(st.sampled_from(["", "raise", "factor is 2", "argument holds 4"]), max_size=2))
            )
        stream = draw(st.one_of(good_streams, good_streams, streams) if i else good_streams) if how else None
        if how == "named" and not (stream is None and draw(st.booleans())):
            call.kwargs = {**call.kwargs, "stream": stream}
        elif how == "with":
            call.stream = stream
    return drawn


def each_grid():
    """Launch over each grid after a usual launch, on each kind of stream."""
    every = [*AXES, *((1, axis) for axis in AXES), *([axis] for axis in AXES), *ODD_GRIDS]
    for stream in (..., OwnStream("one"), OwnStream("closed")):
        first = Call(2, (ARRAYS[7], 3), stream=... if stream is ... else OwnStream("one"))
        asked = [Asked(grid) for grid in every] + [Asked(1, deed) for deed in DEEDS] + [Asked(len), Asked(Asked(1))]
        ON.same(stored, [first, *(Call(grid, (ARRAYS[7], 3), stream=stream) for grid in [*every, *asked, *CALLABLES])])


@settings(usual, max_examples=350)
@given(
    around(st.builds(Call, grids, st.just((ARRAYS[7], 3))), st.just((ARRAYS[7], 3)).map(lambda args: Call(2, args))),
    st.sampled_from([None, None, describes]),
)
def grids_are_judged_alike(calls, launch_metadata):
    ON.same(stored, calls, launch_metadata=launch_metadata)


SPECIALIZED = [
    {},
    {"do_not_specialize": ["value"]},
    {"do_not_specialize_on_alignment": ["value"]},
    {"do_not_specialize": ["out"], "do_not_specialize_on_alignment": ["value"]},
]
tensors = st.one_of(
    st.sampled_from(ARRAYS), st.sampled_from(ARRAYS), st.sampled_from(ODD_ARRAYS), st.sampled_from(DUCKS)
)
read_tensors = st.one_of(tensors, tensors, st.sampled_from(UNWRITTEN))


def each_tensor():
    every = [*ARRAYS, *ODD_ARRAYS, *DUCKS]
    ON.same(ignoring, [Call(1, (tensor, 3)) for _ in range(2) for tensor in every])
    ON.same(reading, [Call(1, (ARRAYS[7], tensor)) for _ in range(2) for tensor in (*every, *UNWRITTEN)])


@settings(usual, max_examples=110)
@given(
    st.sampled_from([ignoring, reading]),
    around(
        st.builds(Call, few_grids, st.one_of(tensors.map(lambda x: (x, 3)), read_tensors.map(lambda x: (ARRAYS[7], x))))
    ),
    st.sampled_from(SPECIALIZED),
)
def tensors_are_read_alike(function, calls, options):
    ON.same(function, calls, **options)


KINDS = ("", "i1", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "fp16", "bf16", "fp32", "fp64", "*fp32")


@cache
def declared(kind):
    """Give a function like `stored` whose parameter is declared."""
    function = types.FunctionType(stored.__code__, globals(), "stored")
    function.__annotations__ = {"value": kind} if kind else {}
    function.__module__ = __name__
    return function


numbers = st.one_of(
    st.sampled_from(INTEGERS),
    st.sampled_from(FLOATS),
    st.sampled_from(SCALARS),
    st.integers(-(2**66), 2**66),
    st.integers(-300, 300),
    st.floats(),
    st.floats(width=16),
    st.sampled_from(ODD_VALUES),
)


def each_number():
    every = [Call(1, (ARRAYS[11], value)) for value in (*INTEGERS, *FLOATS, *SCALARS, *ODD_VALUES)]
    for kind in KINDS:
        ON.same(declared(kind) if kind else ignoring, every)
    for options in SPECIALIZED:
        ON.same(ignoring, every[:60], **options)


@settings(usual, max_examples=180)
@given(
    st.sampled_from(KINDS),
    around(st.builds(lambda grid, value: Call(grid, (ARRAYS[11], value)), st.sampled_from([1, (2, 1)]), numbers)),
    st.sampled_from([{}, {}, *SPECIALIZED]),
)
def numbers_are_encoded_alike(kind, calls, options):
    if not kind:
        ON.same(ignoring, calls, **options)
    elif not any(isinstance(call.args[1], np.ndarray) for call in calls):
        ON.same(declared(kind), calls, **options)


def constants(values):
    positional = st.builds(lambda C: Call(1, (ARRAYS[7], C)), values)
    by_name = st.builds(lambda C, D: Call(2, (ARRAYS[7],), {"D": D, "C": C}), st.just(5), values)
    free = st.builds(lambda value: Call(1, (ARRAYS[7], 5, value)), st.sampled_from([*ODD_VALUES, *SCALARS[:4], 7, 7.0]))
    held = st.builds(
        lambda change: Call(1, (ARRAYS[7], HELD), change=change), st.sampled_from(["", "argument holds 4"])
    )
    return st.one_of(positional, positional, positional, by_name, by_name, free, held)


def each_constant():
    ON.same(constant, [Call(1, (ARRAYS[7], value)) for _ in range(2) for value in CONSTANTS])
    ON.same(constant, [Call(1, (ARRAYS[7], HELD)), Call(1, (ARRAYS[7], HELD), change="argument holds 4")])


@settings(usual, max_examples=120)
@given(around(constants(st.sampled_from(CONSTANTS))))
def constants_are_told_apart_alike(calls):
    ON.same(constant, calls)


OPTION_LISTS = {
    "num_warps": [1, 2, 4, 4, 8, 3, 0, -4, True, "4", 4.0, np.int64(4), np.int32(2), None, Number.TWO],
    "num_stages": [1, 2, 2, 0, True, np.int32(2), 2.0, None],
    "debug": [True, False, None, 0, 1, np.True_, np.False_, "yes"],
    "enable_fp_fusion": [True, True, np.True_, 1, False],
    "num_ctas": [1, 1, np.int64(1), 2, True],
    "device": [None, "own", "own", "other", "cuad", "reference:1", "", 0, b"own"],
    "num_warp": [4],
    "grid": [(1,)],
    "warmup": [False],
}
OPTION_VALUES = {name: st.sampled_from(values) for name, values in OPTION_LISTS.items()}
OPTIONS = st.fixed_dictionaries({}, optional=OPTION_VALUES)


@st.composite
def bindings(draw):
    value = st.sampled_from([3, 3, 5, 5, 7, 2.5])
    args = (ARRAYS[7], *draw(st.lists(value, max_size=draw(st.sampled_from([1, 2, 2, 2, 3])))))
    names = draw(st.lists(st.sampled_from(["a", "b", "c", "d", "out", "e", "C"]), unique=True, max_size=3))
    kwargs = {name: ARRAYS[7] if name == "out" else draw(st.sampled_from([3, 3, 5])) for name in names}
    if draw(often):
        args = args[1:]
    if draw(st.booleans()):
        kwargs = {**kwargs, **draw(OPTIONS)}
    return Call(draw(few_grids), args, kwargs)


@st.composite
def right_bindings(draw):
    values = {"out": ARRAYS[7], "a": draw(st.sampled_from([3, 5])), "b": 3, "c": draw(st.sampled_from([3, 5])), "d": 5}
    positional = draw(st.integers(0, 3))
    args = tuple(list(values.values())[:positional])
    left = [*(name for name in ("out", "a") if list(values).index(name) >= positional)]
    further = [name for name in ("b", "c", "d") if list(values).index(name) >= positional]
    left += draw(st.lists(st.sampled_from(further), unique=True))
    kwargs = {name: values[name] for name in draw(st.permutations(left))}
    return Call(draw(few_grids), args, {**kwargs, **draw(OPTIONS)} if draw(often) else kwargs)


@st.composite
def variants(draw):
    """Give a right call, and others that differ from it in one value."""
    call = draw(right_bindings())
    options = {
        "num_warps": 4,
        "num_stages": 2,
        "debug": False,
        "enable_fp_fusion": True,
        "num_ctas": 1,
        "device": "own",
    }
    call.kwargs |= {name: options[name] for name in draw(st.lists(st.sampled_from(sorted(options)), max_size=2))}
    calls = [call]
    for _ in range(draw(st.integers(1, 3))):
        kwargs, args = dict(call.kwargs), list(call.args)
        name = draw(st.sampled_from(sorted(kwargs) or [""]))
        if name in options:
            kwargs[name] = draw(OPTION_VALUES[name])
        elif name and name != "out":
            kwargs[name] = draw(st.sampled_from(ALIKE))
        elif args[1:]:
            args[draw(st.integers(1, len(args) - 1))] = draw(st.sampled_from(ALIKE))
        calls.append(Call(draw(few_grids), tuple(args), kwargs))
    return calls


def each_option():
    """Give each value of each option after a usual one."""
    options = {"num_warps": 4, "num_stages": 2, "debug": False, "enable_fp_fusion": True, "num_ctas": 1}
    for name, value in options.items():
        every = (value, *OPTION_LISTS[name], value)
        ON.same(bound, [Call(1, (ARRAYS[7], 3), {name: given}) for given in every])
    ON.same(bound, [Call(1, (ARRAYS[7], value), {"c": 3}) for value in ALIKE])
    ON.same(bound, [Call(1, (ARRAYS[7], 3), {"c": value}) for value in ALIKE])


ALIKE = [3, 3, 5, True, np.int64(3), np.int64(5), 3.0, 5.0, np.float32(3), Int(3), Number.TWO]


@settings(usual, max_examples=250)
@given(
    st.one_of(around(st.one_of(right_bindings(), bindings())), variants(), variants()),
    st.sampled_from([None, None, None, True, False]),
)
def calls_are_bound_alike(calls, debug):
    for call in calls:
        given = call.kwargs.get("device")
        told = {"own": ON.device.name, b"own": ON.device.name.encode(), "other": "cuda:9"}
        if given in told:
            call.kwargs["device"] = type(given)(told[given])
    ON.same(bound, calls, debug=debug)


def each_change():
    for function in (stateful, closed):
        ON.same(function, [Call(1, (ARRAYS[7], 3), change=change) for change in ("", *STATES, "")])
        ON.same(function, [Call(1, (ARRAYS[7], 3)), *(Call(Asked(1, deed), (ARRAYS[7], 3)) for deed in STATES)])


state_grids = st.one_of(st.sampled_from([1, (2,)]), st.builds(Asked, st.just(1), st.sampled_from(sorted(STATES))))


@settings(usual, max_examples=180)
@given(
    st.sampled_from([stateful, closed]),
    st.lists(st.builds(Call, state_grids, st.just((ARRAYS[7], 3)), change=st.sampled_from(sorted(STATES))),
    min_size=2, max_size=5),
)  # fmt: skip
def captured_values_are_looked_at_alike(function, calls):
    ON.same(function, calls)


PROPERTIES = {
    check.__name__: (each, check, share)
    for each, check, share in (
        (each_grid, grids_are_judged_alike, 0.9),
        (each_tensor, tensors_are_read_alike, 0.7),
        (each_number, numbers_are_encoded_alike, 0.8),
        (each_constant, constants_are_told_apart_alike, 0.6),
        (each_option, calls_are_bound_alike, 0.9),
        (each_change, captured_values_are_looked_at_alike, 0.5),
    )
}
"""What both paths have to agree on, and the share of valid launches that the native path has to have recognised."""


def checked(name, device, driver_calls=None):
    """Check one of them on a device; give the counts of launches."""
    global ON
    ON = Bench(device, driver_calls)
    with gridpact.device(device):
        each, check, _ = PROPERTIES[name]
        each()
        check()
    return ON.counts()


def assert_was_native(name, counts):
    assert counts["valid"] >= 100, counts
    assert counts["recognised"] >= PROPERTIES[name][2] * counts["valid"], counts


@pytest.mark.parametrize("name", PROPERTIES)
def test_both_paths_mean_the_same_where_kernels_run(sycl, name):
    assert_was_native(name, checked(name, sycl))


@pytest.mark.parametrize("name", PROPERTIES)
def test_both_paths_call_a_driver_of_cuda_alike(name):
    """In a process of its own: the driver that runs nothing takes libcuda's place there."""
    pytest.importorskip("cuda.bindings.driver")
    ran = subprocess.run([sys.executable, __file__, name], capture_output=True, text=True, timeout=200, check=False)
    assert ran.returncode == 0, ran.stderr[-8000:]
    assert_was_native(name, json.loads(ran.stdout.splitlines()[-1]))


# ---------------------------------------------------------------------------------------------------------- the struct


def test_what_drivers_are_built_against_does_not_move():
    assert native.path.layout() == {
        "version": 1,
        "launch": 104,
        "driver": 56,
        "launch_fields": {
            "programs": 0,
            "cluster": 24,
            "threads": 36,
            "shared_bytes": 40,
            "flags": 44,
            "stream": 48,
            "kernel": 56,
            "sizes": 64,
            "bits": 72,
            "count": 80,
            "hidden": 84,
            "event": 88,
            "is_captured": 96,
        },
        "driver_fields": {
            "version": 0,
            "bytes": 4,
            "context": 8,
            "launch": 16,
            "repeat": 24,
            "wait": 32,
            "is_complete": 40,
            "release": 48,
        },
    }


# ---------------------------------------------------------------------------------------------------- prepared launches


def storing(value, out, *, grid=1, **named):
    """Prepare `stored`; give the kernel and the prepared launch."""
    kernel = gridpact.jit(stored)
    return kernel, kernel.prepare(out, value, grid=grid, **named)


@pytest.fixture
def out():
    MEMORY[:] = 0
    return view("i8")


@pytest.fixture
def launches(sycl):
    """Note what reaches the device."""
    records = []
    with recording(gridpact.open_device(sycl), records):
        yield records


def test_a_prepared_launch_does_what_the_kernel_does(out, launches):
    kernel, prepared = storing(3, out)
    assert out[0] == 0
    assert not launches
    compiled = kernel[1](out, 5)
    assert prepared(out, 7) is compiled is prepared.compiled
    assert out[0] == 7
    other = view("i8", 1024)
    prepared(other, -9)
    assert (out[0], other[0]) == (7, -9)
    assert [{**record, "arguments": record["arguments"][1:]} for record in launches] == [
        {**launches[0], "arguments": [("i32", value)]} for value in (5, 7, 2**32 - 9)
    ]
    assert len(kernel.compiled) == 1


def test_a_prepared_launch_takes_another_grid_and_asks_a_callable_one_each_time(out, launches):
    _, prepared = storing(3, out, grid=(2, 1))
    asked = []

    def grid(meta):
        asked.append((meta["value"], meta["num_warps"]))
        return (meta["value"], 2)

    prepared(out, 3)
    prepared[4](out, 3)
    prepared[[1, 3]](out, 3)
    prepared[grid](out, 5)
    _, by_callable = storing(3, out, grid=grid)
    by_callable(out, 6)
    by_callable(out, 7)
    assert [record["grid"] for record in launches] == [(2, 1, 1), (4, 1, 1), (1, 3, 1), (5, 2, 1), (6, 2, 1), (7, 2, 1)]
    assert [value for value, _ in asked] == [5, 3, 6, 7]
    assert prepared.grid == (2, 1)


@pytest.mark.parametrize("grid", [-1, (1,) * 4, True, 1.0, (2**31, 1), None, lambda meta: "1"])
def test_a_prepared_launch_refuses_the_grids_that_a_kernel_refuses(out, launches, grid):
    kernel, prepared = storing(3, out)
    errors = []
    for launch in (kernel[grid], prepared[grid], lambda *args: kernel.prepare(*args, grid=grid)):
        with pytest.raises(gridpact.ContractError) as caught:
            launch(out, 3)
        errors.append(said(caught.value))
    assert errors[0] == errors[1] == errors[2]
    assert launches == []


def test_a_prepared_launch_over_an_empty_grid_runs_nothing(out, launches):
    _, prepared = storing(3, out, grid=(2, 0))
    assert prepared(out, 3) is prepared.compiled
    assert prepared[lambda meta: 0](out, 3) is prepared.compiled
    assert launches == []
    prepared[1](out, 3)
    assert out[0] == 3


def changed(out):
    return {
        "alignment": (view("i8", 8), 3),
        "equal to 1": (out, 1),
        "divisible by 16": (out, 16),
        "width of an integer": (out, 2**31),
        "sign of a wide one": (out, 2**63),
        "kind of a number": (out, 3.0),
        "a bool": (out, True),
        "None": (out, None),
        "type of the elements": (view("i4"), 3),
    }


@pytest.mark.parametrize("fact", changed(None))
def test_a_prepared_launch_refuses_what_needs_another_binary(out, launches, fact):
    kernel, prepared = storing(3, out)
    prepared(out, 3)
    args = changed(out)[fact]
    before = MEMORY.copy()
    for _ in range(2):
        with pytest.raises(gridpact.ContractError) as caught:
            prepared(*args)
        assert caught.value.clause == "SPEC-1"
        assert len(kernel.compiled) == len(launches) == 1
        assert np.array_equal(MEMORY, before)
    kernel[1](*args)  # and when the other binary is there
    with pytest.raises(gridpact.ContractError, match="SPEC-1"):
        prepared(*args)
    assert len(launches) == 2
    prepared(out, 5)
    assert out[0] == 5


@pytest.mark.parametrize("fact", changed(None))
def test_a_prepared_launch_finds_the_other_binary_where_it_may(out, launches, fact):
    kernel, prepared = storing(3, out, on_change="prepare")
    args = changed(out)[fact]
    found = [prepared(*args) for _ in range(3)]
    assert found == [kernel[1](*args)] * 3
    assert found[0] is not prepared.compiled
    assert prepared(out, 3) is prepared.compiled
    assert len(kernel.compiled) == 2
    assert len(launches) == 5


def test_a_prepared_launch_sees_that_a_captured_value_has_changed(out, launches):
    kernel = gridpact.jit(stateful)
    try:
        refuses, prepares = (kernel.prepare(out, 3, grid=1, on_change=how) for how in ("refuse", "prepare"))
        refuses(out, 3)
        assert out[0] == 3 * 3 + 1
        for change in ("factor is 2", "scale holds 5", "helper is twice"):
            STATES[change]()
            compiled, made = len(kernel.compiled), len(launches)
            with pytest.raises(gridpact.ContractError, match="SPEC-1"):
                refuses(out, 3)
            assert (len(kernel.compiled), len(launches)) == (compiled, made)
            assert prepares(out, 3) is not prepares.compiled
            assert (
                out[0] == {"factor is 2": 3 * 2 + 1, "scale holds 5": 3 * 2 + 5, "helper is twice": 6 * 2 + 5}[change]
            )
    finally:
        BEGIN.restore()
    assert refuses(out, 3) is refuses.compiled
    assert out[0] == 3 * 3 + 1


def test_a_prepared_launch_keeps_what_was_given_by_name_and_takes_no_names(out, launches):
    kernel = gridpact.jit(bound)
    prepared = kernel.prepare(out, 3, grid=1, c=5, b=7, num_warps=2)
    prepared(out, 9)
    assert out[0] == 9 + 7 + 5
    assert launches[0]["threads"] == 2 * kernel[1](out, 3).metadata.threads_per_warp
    for named in ({"a": 3}, {"c": 5}, {"num_warps": 2}, {"stream": None}, {"nothing": 1}):
        with pytest.raises(gridpact.ContractError) as caught:
            prepared(out, **named)
        assert caught.value.clause == "ARG-1"
    for args in ((), (out,), (out, 3, 3), (out, 3, 3, 3, 3, 3)):
        with pytest.raises(gridpact.ContractError) as caught:
            prepared(*args)
        assert caught.value.clause == "ARG-1"
    assert len(launches) == 2


def test_hooks_that_come_later_see_prepared_launches(out, launches):
    kernel, prepared = storing(3, out)
    prepared(out, 3)
    told = []
    with gridpact.hooks.observe(lambda m: told.append(m.get()), kernel=kernel):
        prepared[2](out, 5)
    prepared(out, 7)
    assert [(one["grid"], one["arguments"]["value"], one["hash"]) for one in told] == [
        ((2, 1, 1), 5, prepared.compiled.hash)
    ]
    kernel.add_pre_run_hook(lambda *args, **kwargs: told.append(args[1]))
    prepared(out, 9)
    assert told[1:] == [9]
    assert len(launches) == 4


def test_hooks_are_told_of_the_kernel_of_the_context_that_it_is_launched_in(sycl, out, launches):
    dpctl = pytest.importorskip("dpctl")
    device = dpctl.SyclDevice("opencl:cpu")
    queue = dpctl.SyclQueue(dpctl.SyclContext([device]), device, property="in_order")
    stream = gridpact.Stream.from_handle(queue.addressof_ref(), sycl, queue)
    kernel, told = gridpact.jit(stored), []
    for _ in range(2):
        kernel[1](out, 3)
        kernel[1](out, 5, stream=stream)
    with gridpact.hooks.observe(lambda metadata: told.append(metadata["function"].handle)):
        kernel[1](out, 3)
        kernel[1](out, 5, stream=stream)
    gridpact.synchronize(stream)
    assert told == [record["kernel"] for record in launches[4:]]
    assert told[0] != told[1]


def test_prepared_launches_go_to_the_current_stream(sycl, out, launches):
    _, prepared = storing(3, out)
    streams = [gridpact.Stream(sycl), gridpact.Stream(sycl)]
    prepared(out, 3)
    for stream in streams:
        with gridpact.stream(stream):
            prepared(out, 5)
    prepared(out, 3)
    default = launches[0]["stream"]
    assert [one["stream"] for one in launches] == [default, *(stream.handle for stream in streams), default]
    assert [one["is_waited_for"] for one in launches] == [True, False, False, True]
    streams[0].close()
    with gridpact.stream(streams[0]), pytest.raises(gridpact.ContractError, match="STREAM-5"):
        prepared(out, 3)
    gridpact.synchronize(sycl)
    assert len(launches) == 4


def test_the_environment_may_change_between_launches(out, launches, monkeypatch):
    kernel, prepared = storing(3, out)
    _, prepares = storing(3, out, on_change="prepare")
    first = prepared(out, 3)
    monkeypatch.setenv("GRIDPACT_TEST_OF_PATHS", "1")
    assert kernel[1](out, 5) is first is prepared(out, 5)
    assert out[0] == 5
    monkeypatch.setenv("TRITON_GRIDPACT_TEST_OF_PATHS", "1")
    made = len(launches)
    with pytest.raises(gridpact.ContractError, match="SPEC-1"):
        prepared(out, 7)
    assert len(launches) == made
    assert len(kernel.compiled) == 1
    second = kernel[1](out, 7)
    assert second is not first
    assert kernel[1](out, 7) is second
    assert prepares(out, 9) is prepares(out, 9) is not prepares.compiled
    monkeypatch.delenv("TRITON_GRIDPACT_TEST_OF_PATHS")
    assert prepared(out, 3) is kernel[1](out, 3) is first
    assert prepares(out, 3) is prepares.compiled


def test_a_launch_may_be_prepared_for_what_no_entry_holds(out, launches):
    """Tuples and pre-run hooks take the Python path; a prepared launch of them does, too."""
    kernel = gridpact.jit(ignoring)
    prepared = kernel.prepare(out, (1, (2.5, None)), grid=2)
    assert prepared(out, (1, (2.5, None))) is prepared.compiled
    with pytest.raises(gridpact.ContractError, match="SPEC-1"):
        prepared(out, (1, (2, None)))
    assert [one["grid"] for one in launches] == [(2, 1, 1)]


def test_a_stream_may_be_given_to_prepare_by_name(sycl, out, launches):
    stream = gridpact.Stream(sycl)
    _, prepared = storing(3, out, stream=stream)
    prepared(out, 3)
    with gridpact.stream(gridpact.Stream(sycl)):
        prepared(out, 5)
    stream.synchronize()
    assert out[0] == 5
    assert [one["stream"] for one in launches] == [stream.handle] * 2
    stream.close()
    with pytest.raises(gridpact.ContractError, match="STREAM-5"):
        prepared(out, 7)
    assert len(launches) == 2


def test_what_becomes_of_a_change_is_one_of_two(out):
    with pytest.raises(gridpact.ContractError, match="SPEC-1"):
        storing(3, out, on_change="ignore")


# ------------------------------------------------------------------------------------------------------ what is let go


def test_a_kernel_is_freed_with_its_prepared_launches(sycl, out):
    def grid(meta):
        return 1

    kernel = gridpact.jit(stored)
    prepared = grid.prepared = kernel.prepare(out, 3, grid=grid)  # a grid that refers to it
    kernel[grid](out, 5)
    prepared(out, 5)
    dead = weakref.ref(kernel)
    del kernel
    gc.collect()
    assert dead() is not None
    assert prepared(out, 7) is prepared.compiled
    del prepared, grid
    gc.collect()
    assert dead() is None


def test_more_shapes_of_calls_than_are_remembered_are_right(out, launches):
    kernel, names = gridpact.jit(bound), {"a": 5, "b": 7, "c": 3, "d": 9}
    for _ in range(2):
        for order in itertools.permutations(names):
            out[0] = 0
            kernel[1](out, **{name: names[name] for name in order})
            assert out[0] == 15
    assert len(launches) == 48
    assert len(kernel.compiled) == 1


def test_more_constants_than_are_remembered_are_right(out, launches):
    kernel = gridpact.jit(constant)
    texts = [np.str_("a") for _ in range(150)]  # equal, and told apart by identity
    prepared = kernel.prepare(out, texts[0], grid=1)
    for _ in range(2):
        assert {kernel[1](out, text) for text in texts} == {prepared.compiled}
    assert prepared(out, texts[0]) is prepared.compiled
    assert len(launches) == 301
    assert kernel[1](out, np.str_("b")) is not prepared.compiled


def test_the_current_device_and_the_debug_switch_are_looked_at(sycl, out, launches):
    kernel = gridpact.jit(stored)
    first = kernel[1](out, 3)
    assert kernel[1](out, 3) is first
    with gridpact.device(sycl):
        assert kernel[1](out, 3) is first is kernel[1](out, 3)
    with gridpact.device("reference"):
        found = kernel.warmup(out, 3)
        assert found.device.name == "reference"
        with contextlib.suppress(Exception):
            kernel[1](out, 3)
    kernel.debug = True
    assert kernel[1](out, 3) is not first
    kernel.debug = None
    assert kernel[1](out, 3) is first
    assert len(launches) == 6


@pytest.mark.parametrize(("what", "error"), [("shut", SystemExit), ("forked", RuntimeError)])
def test_a_launch_is_not_made_after_all_if_its_hook_saw_the_process_end_or_fork(out, launches, what, error):
    kernel = gridpact.jit(stored)
    kernel[1](out, 3)
    left = []
    try:
        with (
            gridpact.hooks.observe(lambda metadata: native.turn(what, True), left.append),
            pytest.raises(error),
        ):
            kernel[1](out, 5)
    finally:
        native.turn(what, False)
    assert (len(launches), len(left), out[0]) == (1, 1, 3)


def test_pre_run_hooks_of_any_kind_are_called(out, launches):
    kernel, seen = gridpact.jit(stored), []
    kernel[1](out, 3)
    kernel.pre_run_hooks = (lambda out, value: seen.append(value),)
    kernel[1](out, 5)
    assert seen == [5]


def test_a_list_counts_as_it_was_when_a_launch_was_prepared(out, launches):
    grid = [1, 2]
    _, prepared = storing(3, out, grid=grid)
    grid[0] = 5
    prepared(out, 3)
    prepared[grid](out, 3)
    assert [record["grid"] for record in launches] == [(1, 2, 1), (5, 2, 1)]


def test_a_stream_of_torch_is_asked_for_where_its_exchange_api_is_of_another_version():
    table = (ctypes.c_uint64 * 16)(2)  # a major version that the path does not know
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    capsule = new(ctypes.addressof(table), b"dlpack_exchange_api", None)
    kind = type("Tensor", (), {"__module__": "torch", "__dlpack_c_exchange_api__": capsule, "is_neg": bool})
    pointer = Pointer("fp32", 64, "cuda:0", False, kind(), TorchCurrent("cuda", 0))
    told = learned._streams([pointer], types.SimpleNamespace(ordinal=0))
    assert told["stream_reader"] == (-1, -1)
    assert callable(told["stream_call"])


def test_a_launch_inside_a_hook_and_inside_a_grid_is_made(out, launches):
    kernel = gridpact.jit(stored)
    kernel[1](out, 3)
    by_grid, by_hook = view("i8", 1024), view("i8", 2048)
    entered = []

    def enter(metadata):
        entered.append(metadata["grid"][0])
        if entered[-1] == 4:
            kernel[2](by_hook, 5)

    with gridpact.hooks.observe(enter):
        kernel[lambda meta: kernel[3](by_grid, 7) and 4](out, 9)
    assert entered == [3, 4, 2]
    assert [one["grid"][0] for one in launches] == [1, 3, 2, 4]
    assert (out[0], by_grid[0], by_hook[0]) == (9, 7, 5)


FAILURES = {
    "a grid": lambda kernel, prepared, out: kernel[(1, -1)](out, 3),
    "a long grid": lambda kernel, prepared, out: kernel[GRIDS["long"]](out, 3),
    "a grid of another type": lambda kernel, prepared, out: kernel[GRIDS["other"]](out, 3),
    "a callable grid": lambda kernel, prepared, out: kernel[GRIDS["raises"]](out, 3),
    "what a callable grid gives": lambda kernel, prepared, out: kernel[GRIDS["gives"]](out, 3),
    "an argument": lambda kernel, prepared, out: kernel[1](out, VALUES["text"]),
    "a number": lambda kernel, prepared, out: kernel[1](out, VALUES["huge"]),
    "no argument": lambda kernel, prepared, out: kernel[1](out),
    "a name": lambda kernel, prepared, out: kernel[1](out, 3, nothing=VALUES["huge"]),
    "an option": lambda kernel, prepared, out: kernel[1](out, 3, num_warps=3),
    "a stream": lambda kernel, prepared, out: kernel[1](out, 3, stream=VALUES["text"]),
    "a prepared launch": lambda kernel, prepared, out: prepared(out, 16),
    "a grid of it": lambda kernel, prepared, out: prepared[GRIDS["long"]](out, 3),
    "a name for it": lambda kernel, prepared, out: prepared(out, value=3),
}
GRIDS = {
    "long": (2**31 - 1,) * 3,
    "other": {1: 2},
    "raises": Asked(1, "raise"),
    "gives": Asked(("a", 1)),
    "list": [2, 1],
    "tuple": (2, 1),
    "asked": Asked((1, 1)),
}
VALUES = {"text": "a text of its own", "huge": 2**70, "float": 2.75}


class Counted:
    """What references are counted of: all that the launches of a test touch."""

    def __init__(self, *objects):
        self.objects = [*objects, *GRIDS.values(), *VALUES.values(), once, None, True, False, (), 0, 1, 3, np.ndarray]

    def now(self):
        gridpact.synchronize("sycl:cpu")
        gc.collect()
        for grid in GRIDS.values():
            if isinstance(grid, Asked):
                grid.seen.clear()
        return [sys.getrefcount(one) for one in self.objects]

    def assert_steady(self, launch, times=300):
        for _ in range(5):
            launch()
        before = self.now()
        for _ in range(times):
            launch()
        after = self.now()
        grown = [
            (one, was, now)
            for one, was, now in zip(self.objects, before, after, strict=True)
            if now - was > times // 10
        ]
        assert grown == []


@pytest.mark.parametrize("is_watched", [False, True])
@pytest.mark.parametrize("is_streamed", [False, True])
def test_launches_leave_no_references_behind(sycl, out, is_watched, is_streamed):
    kernel, fixed = gridpact.jit(constant), gridpact.jit(stored)
    prepared = fixed.prepare(out, 3, grid=GRIDS["tuple"])
    named, key = {"C": (1, VALUES["text"]), "num_warps": 2}, VALUES["text"]
    scalar, stream = np.int64(5), gridpact.Stream(sycl)

    def launch():
        kernel[GRIDS["tuple"]](out, key)
        kernel[GRIDS["list"]](out, **named)
        kernel[GRIDS["asked"]](out, once, VALUES["float"])
        kernel[0](out, key)
        kernel[1](out, C=scalar, stream=stream)
        fixed[1](out, scalar)
        fixed[np.int64(1)](out, VALUES["float"])
        prepared(out, 3)
        prepared[GRIDS["asked"]](out, 5)
        kernel[1](out, (1, 2))

    counted = Counted(out, kernel, fixed, prepared, named, scalar, stream, kernel.signature, kernel.pre_run_hooks)
    with contextlib.ExitStack() as stack:
        if is_watched:
            stack.enter_context(gridpact.hooks.observe(lambda m: m.get(), lambda m: None))
        if is_streamed:
            stack.enter_context(gridpact.stream(stream))
        counted.assert_steady(launch)


@pytest.mark.parametrize("failure", FAILURES)
def test_refused_launches_leave_no_references_behind(sycl, out, failure):
    kernel, prepared = storing(3, out)
    kernel[1](out, 3)

    def launch():
        with pytest.raises((gridpact.LaunchError, KeyError)):
            FAILURES[failure](kernel, prepared, out)

    Counted(out, kernel, prepared, kernel.signature).assert_steady(launch)


@pytest.mark.parametrize("side", ["enter", "exit", "driver", "hooked driver"])
def test_failed_launches_leave_no_references_behind(sycl, out, side):
    kernel, prepared = storing(3, out)
    kernel[1](out, 3)

    def fails(told):
        raise ValueError("no")

    def launch():
        for one in (lambda: kernel[GRIDS["asked"]](out, 3), lambda: prepared(out, 3)):
            with pytest.raises((ValueError, gridpact.HookError)):
                one()

    counted = Counted(out, kernel, prepared, kernel.signature, fails)
    with contextlib.ExitStack() as stack:
        if side in ("enter", "exit"):
            stack.enter_context(gridpact.hooks.observe(**{side: fails}))
        else:
            native.use("tap", fails)
            stack.callback(native.use, "tap", None)
        if side == "hooked driver":
            stack.enter_context(gridpact.hooks.observe(lambda m: m.get()))
        counted.assert_steady(launch)
    kernel[1](out, 5)
    assert out[0] == 5


# ------------------------------------------------------------------------------------------------ without the extension

PROGRAM = """
import sys
{before}
import numpy as np
import gridpact
import triton.language as tl
from gridpact import native

@gridpact.jit
def kernel(out, n, C: tl.constexpr = 2):
    tl.store(out, n + C)

@gridpact.jit
def alone(n):
    pass

alone[1](np.int64(5))  # before any tensor
out = np.zeros(16, "i8")
print(native.path, native.MISSING)
print(kernel[1](out, 5).name, out[0])
prepared = kernel.prepare(out, 5, grid=1)
print(prepared(out, 7) is prepared.compiled, out[0], prepared[lambda meta: (1, 1)](out, 9) is prepared.compiled, out[0])
for wrong in (lambda: prepared(out, 1), lambda: prepared(out, n=5), lambda: kernel[-1](out, 5)):
    try:
        wrong()
    except gridpact.ContractError as error:
        print(error.clause)
if __name__ == "__main__":
    import runpy

    sys.argv = ["gridpact", "devices"]
    runpy.run_module("gridpact", run_name="__main__")
"""


def told_by(tmp_path, before, **env):
    """Run the program; give what it printed of its launches, and the line of `gridpact devices` on the launch path."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(before=before))
    ran = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **env}
    )
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[1:6] == ["kernel 7", "True 9 True 11", "SPEC-1", "ARG-1", "GRID-6"]
    return lines[0], {line.partition("launch path")[2].strip() for line in lines if "launch path" in line}


def test_with_the_extension_launches_are_native(sycl, tmp_path):
    first, paths = told_by(tmp_path, "")
    assert "path" in first
    assert paths == {"native"}


def test_without_the_extension_launches_take_the_python_path(sycl, tmp_path):
    first, paths = told_by(tmp_path, 'sys.modules["gridpact.native.path"] = None')
    assert first.startswith("None it was not built")
    (path,) = paths
    assert path.startswith("Python (it was not built")
    assert path.endswith("install a C compiler and gridpact again)")


def test_an_extension_that_was_built_of_other_sources_is_not_used(sycl, tmp_path):
    package = tmp_path / "gridpact"
    shutil.copytree(Path(gridpact.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    source = package / "native" / "path.c"
    source.write_text(source.read_text().replace("// The native path", "// The  native path", 1))
    first, paths = told_by(tmp_path, "", PYTHONPATH=str(tmp_path))
    reason = "it was built of other sources: install gridpact again"
    assert first == f"None {reason}"
    assert paths == {f"Python ({reason})"}


def main():
    from gridpact.conformance.subjects.fake_driver import driver_calls
    from gridpact.conformance.subjects.gridpact_cuda import activate

    activate()
    print(json.dumps(checked(sys.argv[1], "cuda:0", driver_calls)))


if __name__ == "__main__":
    main()
