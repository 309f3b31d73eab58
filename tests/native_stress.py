"""What is hard on the native path of a launch, on a driver that runs nothing: it has to end without a crash.

`make sanitize` runs it with the path built for AddressSanitizer and UndefinedBehaviorSanitizer, test_native_memory.py
as it is.
Words on the command line choose parts by name.
"""

import contextlib
import contextvars
import ctypes
import gc
import importlib.util
import itertools
import os
import random
import signal
import sys
import tempfile
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path

import numpy as np
import triton.language as tl

import gridpact
from gridpact import native
from gridpact.backends.ending import gate

SANITIZED = os.environ.get("GRIDPACT_SANITIZED", "")
if SANITIZED:
    native._FLAGS = (*native._FLAGS, "-fsanitize=address,undefined", "-fno-omit-frame-pointer", "-g", "-O1")
    assert native.path.__file__.startswith(SANITIZED), native.path.__file__

from gridpact.conformance.subjects.fake_driver import load  # noqa: E402  # after how it is built is known
from gridpact.conformance.subjects.gridpact_cuda import activate  # noqa: E402

PATH = native.path
PARTS = {}
FACTORS = (tl.constexpr(3), tl.constexpr(4))
FACTOR = FACTORS[0]  # that `scaled` captures


@gridpact.jit
def kernel(a, b, c, d: tl.float16, e, f: tl.int8, N: tl.constexpr):
    tl.store(a + N, b + c + d + e + f)


@gridpact.jit
def one(x):
    pass


@gridpact.jit
def scaled(a, n, N: tl.constexpr = 4, word: tl.constexpr = ("", (1, 2.0))):
    tl.store(a + N, n * FACTOR)


A = np.zeros(64, "f8")
ARGS = (A, 2**40, 5, 1.5, True, -3, 7)


def part(function):
    PARTS[function.__name__] = function
    return function


def refused(call, *args, **kwargs):
    """Whether a call raised; what it raises is said elsewhere."""
    try:
        call(*args, **kwargs)
    except (Exception, SystemExit):
        return True
    return False


def remembering(launch, change=lambda args: args):
    """Give what `remember` is told of a first launch; `change` may put other arguments in its way."""
    told, usual = [], PATH.remember

    def spy(*args):
        told.append(args)
        return usual(*change(args))

    PATH.remember = spy
    try:
        launch()
    finally:
        PATH.remember = usual
    return told


class Mute:
    """An object that knows no operation."""

    __hash__ = None
    __slots__ = ()


class Raising:
    def __getattribute__(self, name):
        raise ZeroDivisionError(name)


class Name(str):
    __slots__ = ()


class Duck:
    """A tensor by its attributes, which do something when they are read."""

    device = "cpu"

    def __init__(self, effect=lambda: None, dtype="float32"):
        self.effect, self.kind, self.array = effect, dtype, np.zeros(8, "f4")

    @property
    def dtype(self):
        self.effect()
        return self.kind

    def data_ptr(self):
        self.effect()
        return self.array.ctypes.data

    def numel(self):
        return 8


class Scalar(np.float32):
    """A number of NumPy that launches when it is read."""

    def item(self):
        kernel[(1,)](*ARGS)
        return float(self)


def values():
    """Values of each kind, right and wrong."""
    readonly = np.zeros(4, "i4")
    readonly.flags.writeable = False
    structured = np.zeros(2, [("x", "i4"), ("y", "f8")])
    kinds = "?bBhHiIlLefdFDSUOMmV"
    yield from (np.zeros(4, kind) for kind in kinds)
    yield from (np.ones((), kind)[()] for kind in "?bBhHiIlLefdgFD")
    yield from (readonly, A[1:], A[::2], A[:0], A.reshape(8, 8).T, structured, np.zeros(3, ">i4"), np.array(5))
    yield from (
        sign * 2**bits + off for bits in (0, 1, 7, 8, 15, 16, 31, 32, 63, 64, 80) for sign in (1, -1) for off in (-1, 0)
    )
    yield from (0.0, -0.0, 1e-320, 1e38, 1e39, 65519.0, 65520.0, 3.3895313892515355e38, 3.4e38, 1e308)
    yield from (float("inf"), -float("inf"), float("nan"))
    yield from (None, True, False, "", "text", b"bytes", (), (1,), (1, (2.0, "x")), [], {}, 1j, ..., NotImplemented)
    yield from (
        tl.float32,
        np.dtype("f4"),
        np.float32,
        int,
        A.dtype,
        kernel,
        one,
        memoryview(b"x"),
        Mute(),
        Raising(),
        Duck(),
    )
    yield from (Duck(dtype=None), Scalar(1.5), np.datetime64(1, "s"), np.str_("x"), np.bool_(True), len, object())


@part
def every_argument():
    counts = {False: 0, True: 0}
    for value in values():
        for _ in range(2):
            counts[refused(lambda value=value: one[(1,)](value))] += 1
            refused(lambda value=value: scaled[(1,)](A, 1, word=value))
            refused(lambda value=value: scaled[(1,)](A, 1, num_warps=value))
            refused(lambda value=value: scaled[(1,)](A, 1, stream=value))
    assert min(counts.values()) > 20, counts


@part
def every_declared_type():
    names = "int1 int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 bfloat16 float32 float64"
    names += " pointer_type(tl.float32)"
    lines = ["import triton.language as tl\n"]
    for i, name in enumerate(names.split()):
        lines.append(f"def k{i}(x: {'tl.' + name}):\n    pass\n\n")
    module = imported("".join(lines))
    for i in range(len(names.split())):
        declared = gridpact.jit(getattr(module, f"k{i}"))
        for value in values():
            for _ in range(2):
                refused(lambda value=value, declared=declared: declared[(1,)](value))


def imported(text):
    path = Path(tempfile.mkdtemp()) / "made.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(f"made{id(path)}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GRIDS = [
    1,
    (1,),
    (2, 3),
    (2, 3, 4),
    [1],
    [1, 2, 3],
    (0,),
    (1, 0, 1),
    0,
    -1,
    (-1,),
    (1, 2, 3, 4),
    (),
    [],
    (2**31,),
    (2**31 - 1,),
    (1, 65536),
    (1, 65535, 65535),
    (2**63, 2**63, 2**63),
    (2**64,),
    (2**70, 1),
    (1.0,),
    ("1",),
    None,
    "1",
    b"1",
    {},
    {1},
    True,
    (True,),
    np.int64(3),
    (np.int32(2), 1),
    np.array([1, 2]),
    Mute(),
    Raising(),
    range(3),
    iter([1]),
    type("T", (tuple,), {})((1,)),
]


@part
def grids():
    for grid in GRIDS:
        for _ in range(3):
            refused(lambda grid=grid: kernel[grid](*ARGS))
            refused(lambda grid=grid: kernel[lambda meta: grid](*ARGS))
            refused(lambda grid=grid: kernel[lambda meta: kernel[grid]](*ARGS))


@part
def grids_that_do_something():
    def launches(meta):
        kernel[(2,)](*ARGS)
        scaled[(2,)](A, 1)
        return (1,)

    def drops(meta):
        for word in "abcdefgh":  # other entries of the same site
            scaled[(1,)](A, 1, word=word)
        gc.collect()
        return [1]

    def changes(meta):
        meta.clear()
        os.environ["GRIDPACT_STRESS"] = str(random.random())
        return (1,)

    def recurs(meta):
        kernel[recurs](*ARGS)

    class Emptying:
        def __index__(self):
            axes.clear()
            return 1

    for grid in (launches, drops, changes, lambda meta: 1 / 0, lambda: 1, lambda meta: sys.exit(3)):
        for _ in range(3):
            refused(lambda grid=grid: kernel[grid](*ARGS))
            refused(lambda grid=grid: scaled[grid](A, 1, word=str(time.time_ns() % 3)))
    for _ in range(3):
        axes = [Emptying(), Emptying(), 1]
        refused(lambda axes=axes: kernel[axes](*ARGS))
    kernel[(1,)](*ARGS)
    told = []

    def recursion():  # the interpreter's limit comes before the end of a small stack
        try:
            kernel[recurs](*ARGS)
        except RecursionError as error:
            told.append(error)

    usual = threading.stack_size((32 if SANITIZED else 4) << 20)
    thread = threading.Thread(target=contextvars.copy_context().run, args=[recursion])
    thread.start()
    thread.join()
    threading.stack_size(usual)
    assert told


@part
def hooks():
    held = []

    def driver_call(metadata):  # the callable that makes the launch, from the frame of the one who holds it
        frame = sys._getframe()
        while "driver_call" not in frame.f_locals or frame.f_code.co_name != "launched_under":
            frame = frame.f_back
        held.append(frame.f_locals["driver_call"])

    def early(metadata):
        driver_call(metadata)
        held[-1]()

    def elsewhere(metadata):
        driver_call(metadata)
        answers = []
        thread = threading.Thread(target=lambda: answers.append(refused(held[-1])))
        thread.start()
        thread.join()
        assert answers == [True] or type(held[-1]).__name__ != "Pending"

    def removes(metadata):
        observer.remove()
        gc.collect()

    def launches(metadata):
        if len(depth) < 5:
            depth.append(0)
            kernel[(1,)](*ARGS)

    kernel[(1,)](*ARGS)
    for enter, exit in itertools.product(
        (None, driver_call, early, elsewhere, removes, launches, lambda m: 1 / 0, str), repeat=2
    ):
        depth = []
        with gridpact.hooks.observe(enter, exit) as observer:
            for _ in range(2):
                refused(lambda: kernel[(1,)](*ARGS))
                refused(lambda: kernel[(1,)](*ARGS, stream=StreamByProtocol()))
    pending = [call for call in held if type(call).__name__ == "Pending"]  # others are the definition's
    assert pending
    assert all(refused(call) and refused(call, 1, x=2) for call in pending)


class StreamByProtocol:
    def __cuda_stream__(self):
        return (0, 4096)


@part
def kernels_that_go():
    for _ in range(4):
        new = gridpact.jit(kernel.fn)
        new[(1,)](*ARGS)
        bound, prepared = new[(1,)], new.prepare(*ARGS, grid=(1,))
        gone = weakref.ref(new)
        del new
        for _ in range(3):
            bound(*ARGS)
            prepared(*ARGS)
        new = gone()

        def drops(meta):
            nonlocal new, bound, prepared
            del new, bound, prepared
            gc.collect()
            return (1,)

        new[drops](*ARGS)
        gc.collect()
        assert gone() is None
    new = gridpact.jit(kernel.fn)
    with gridpact.hooks.observe(lambda metadata: gc.collect()):
        gridpact.jit(kernel.fn)[(1,)](*ARGS)
        new[(1,)](*ARGS)
    new.me, new.grid, new.debug = new, new[new[(1,)]], None  # a ring
    gone = weakref.ref(new)
    del new
    gc.collect()
    assert gone() is None


@part
def many_entries_and_shapes():
    new = gridpact.jit(kernel.fn)
    for i in range(150):  # an entry for each class of stream: one binary
        cls = type(f"Stream{i}", (StreamByProtocol,), {})
        for _ in range(2):
            new[(1,)](*ARGS, stream=cls())
        del cls
        new[(1,)](*ARGS)
    names = "abcdefN"
    for order in itertools.islice(itertools.permutations(range(7)), 0, 5000, 200):
        for _ in range(2):
            new[(1,)](**{Name(names[i]) if i % 2 else names[i]: ARGS[i] for i in order})
            new[(1,)](ARGS[0], **{names[i]: ARGS[i] for i in order if i})


@part
def many_parameters():
    counts = (255, 256, 257, 300)
    text = "".join(f"def k{n}({', '.join(f'p{i}' for i in range(n))}):\n    pass\n\n" for n in counts)
    module = imported(text)
    for count in counts:
        new = gridpact.jit(getattr(module, f"k{count}"))
        args = (A, *range(2, count + 1))
        for _ in range(3):
            refused(lambda new=new, args=args: new[(1,)](*args))
            refused(lambda new=new, args=args: new[(1,)](*args, num_warps=8))
        refused(lambda new=new, args=args: new.prepare(*args, grid=(1,))(*args))
        named = {f"p{i}": i + 1 for i in range(1, count)}
        refused(lambda new=new, named=named: new.prepare(A, grid=(1,), **named)(A))


@part
def prepared_launches():
    for on_change in ("refuse", "prepare"):
        for grid in ((2,), [1, 2], lambda meta: (meta["N"],)):
            p = kernel.prepare(*ARGS[:5], grid=grid, f=-3, N=7, on_change=on_change)
            for value in values():
                refused(p, value, *ARGS[1:5])
                refused(p, A, value, *ARGS[2:5])
                refused(p, A, *ARGS[1:3], value, True)
            for wrong in ((), ARGS[:4], ARGS, (A,) * 300):
                refused(p, *wrong)
                refused(p[(1,)], *wrong)
            refused(p, *ARGS[:5], f=1)
            for other in GRIDS:
                refused(p[other], *ARGS[:5])
            p(*ARGS[:5])
            repr(p), p.kernel, p.grid, p.compiled
    global FACTOR
    p = scaled.prepare(A, 5, grid=(1,), on_change="prepare")

    def changes():
        global FACTOR
        FACTOR = FACTORS[FACTOR is FACTORS[0]]
        p[(1,)](A, 5)

    nested = one.prepare(Duck(), grid=(1,), on_change="prepare")
    for _ in range(6):
        p[lambda meta: changes() or (1,)](A, 5)
        p(A, 5)
        refused(nested, Duck(lambda: nested(Duck())))
        refused(nested, Duck(lambda: os.environ.update(GRIDPACT_STRESS=str(random.random())) or nested(Duck())))
    refused(p[p[p]], A, 5)
    FACTOR = FACTORS[0]


@part
def tensors_that_do_something():
    depth = []

    def again():
        if len(depth) < 30:
            depth.append(0)
            one[(1,)](Duck(again))
            kernel[(1,)](*ARGS)

    def error():
        raise ZeroDivisionError

    for effect in (
        again,
        error,
        gc.collect,
        lambda: sys.exit(1),
        lambda: PATH.register_reader(type("T", (), {}), 2, None, ()),
    ):
        for _ in range(3):
            depth.clear()
            refused(lambda effect=effect: one[(1,)](Duck(effect)))
            refused(lambda effect=effect: kernel[(1,)](*ARGS[:3], Scalar(1.5), *ARGS[4:]))


JUNK = [
    None,
    0,
    1,
    -1,
    2**31,
    2**64,
    -(2**70),
    1.5,
    "",
    "text",
    b"",
    (),
    (1,),
    (1, 2, 3),
    (None,) * 6,
    [],
    [1],
    [()],
    [(0,) * 6],
    {},
    {1: 2},
    {"x": 1},
    ...,
    int,
    object(),
    len,
    kernel,
    Mute(),
    A,
]


@part
def wrong_words():
    """No junk crashes what the Python part calls, nor the launches that follow."""
    rng = random.Random(7)
    shared = {
        "definition": gridpact.learned.missed,
        "numpy_generic": np.generic,
        "environment": os.environ._data,
        "stream_var": sys.modules["gridpact.stream"]._current,
        "device_var": gridpact.backends._current,
        "stream_type": gridpact.Stream,
        "observers": (),
        "tap": None,
    }
    for name, right in shared.items():
        for wrong in JUNK:
            with suppress(TypeError):
                PATH.use(name, wrong)
            refused(lambda: kernel[(1,)](*ARGS))
            refused(lambda: one[(1,)](np.float32(2)))
        PATH.use(name, right)
    for what in ("off", "forked", "shut"):
        PATH.turn(what, True)
        refused(lambda: kernel[(1,)](*ARGS))
        PATH.turn(what, False)
    assert refused(PATH.turn, "neither", True)
    assert refused(PATH.use, "neither", None)
    for name in (
        "again",
        "bare",
        "prepared",
        "remember",
        "register_known",
        "register_mark",
        "register_reader",
        "turn",
        "use",
    ):
        call = getattr(PATH, name)
        for count in range(11):
            for _ in range(40):
                args = [kernel if not i and rng.random() < 0.8 else rng.choice(JUNK) for i in range(count)]
                if name == "register_reader" and args and isinstance(args[0], type):
                    args[0] = type("Fresh", (), {})
                refused(call, *args)
    kernel[(1,)](*ARGS)


RAW = {"table", "context", "kernel", "stream", "hidden"}  # addresses, and how many pointers the binary takes: believed


@part
def wrong_entries():
    """What `remember` is told is held against what it can be."""
    told = remembering(lambda: gridpact.jit(scaled.fn)[(1,)](A, 5, N=6, word=("x", (1, 2.0))))
    (usual,) = [args for args in told if args[0].__name__ == "scaled"]
    assert PATH.remember(*usual)

    def told_as(index, value):
        new = gridpact.jit(scaled.fn)
        args = [new, *usual[1:]]
        args[index] = value
        refused(PATH.remember, *args)
        for _ in range(2):
            refused(PATH.again, new, (1,), (A, 5), {"N": 6, "word": ("x", (1, 2.0))})

    for index in range(1, 7):
        for wrong in JUNK:
            told_as(index, wrong)
    slots, info = usual[4], usual[6]
    for i, wrong in itertools.product(range(len(slots)), JUNK):
        told_as(4, [*slots[:i], wrong, *slots[i + 1 :]])
        for j in range(6):
            told_as(4, [*slots[:i], (*slots[i][:j], wrong, *slots[i][j + 1 :]), *slots[i + 1 :]])
    told_as(4, slots[::-1])
    told_as(4, slots * 100)
    for name in info:
        told_as(6, {key: value for key, value in info.items() if key != name})
        for wrong in JUNK:
            if not (isinstance(wrong, int) and name in RAW):
                told_as(6, {**info, name: wrong})
    for wrong in JUNK:
        told_as(6, {**info, "reads": [(globals(), wrong, 1, ...), (wrong, "FACTOR", FACTOR, ...)]})
        told_as(6, {**info, "reads": [(globals(), "FACTOR", FACTOR, wrong)]})
        told_as(6, {**info, "stream_reader": (wrong, 0)})


@part
def entries_that_change_under_a_launch():
    """Whoever is called in the middle of a launch may throw away what the launch stands on."""
    tapped = []

    def clears(told):
        info = told["info"]
        info.clear()
        tapped.append(told)
        PATH.use("tap", None)
        gc.collect()

    class Guard:
        """Asked before each launch: replaces the entry that asks it, and so drops itself."""

        def __init__(self):
            self.text = "alive"

        def __call__(self):
            if spied:
                new, args = spied.pop()
                info = {**args[6], "guard": None, "reads": list(args[6]["reads"])}
                assert PATH.remember(new, *args[1:6], info)
            gc.collect()
            return self.text == "alive"

    for _ in range(20):
        PATH.use("tap", clears)
        kernel[(1,)](*ARGS)
        PATH.use("tap", lambda told: 1 / 0)
        assert refused(lambda: kernel[(1,)](*ARGS))
        PATH.use("tap", None)
        spied, new = [], gridpact.jit(kernel.fn)

        def guarded(args):
            return (*args[:6], {**args[6], "guard": Guard()})

        told = remembering(lambda new=new: new[(1,)](*ARGS), guarded)
        spied += [(new, args) for args in told]
        new[(1,)](*ARGS)
        assert not spied
        told = remembering(lambda: gridpact.jit(kernel.fn)[(1,)](*ARGS))
        told[0][6]["reads"].clear()
        told[0][6].clear()
    assert tapped
    gc.collect()
    kernel[(1,)](*ARGS)


class _Launch(ctypes.Structure):
    """`gridpact_launch` of launch_abi.h, as far as it is written to."""

    _fields_ = (
        ("programs", ctypes.c_uint64 * 3),
        ("cluster", ctypes.c_uint32 * 3),
        ("words", ctypes.c_uint32 * 3),
        ("stream", ctypes.c_uint64),
        ("kernel", ctypes.c_uint64),
        ("sizes", ctypes.c_void_p),
        ("bits", ctypes.c_void_p),
        ("count", ctypes.c_uint32),
        ("hidden", ctypes.c_uint32),
        ("event", ctypes.c_void_p),
        ("is_captured", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    )


tables = []  # addresses of the drivers' tables


_Call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(_Launch))
_Repeat = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(_Launch), ctypes.c_uint64)
_OfEvent = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_Release = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Driver(ctypes.Structure):
    """`gridpact_driver` of launch_abi.h."""

    _fields_ = (
        ("version", ctypes.c_uint32),
        ("bytes", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("launch", _Call),
        ("repeat", _Repeat),
        ("wait", _OfEvent),
        ("is_complete", _OfEvent),
        ("release", _Release),
    )


def launches_through(launch, events=None, **info):
    """Give a kernel whose launches go to a Python function, as to a driver; `events` waits, tells and releases."""
    wait, is_complete, release = events or (lambda event: 0, lambda event: 1, lambda event: None)
    table = _Driver(
        1,
        ctypes.sizeof(_Driver),
        None,
        _Call(launch),
        _Repeat(lambda context, l, times: launch(context, l)),
        _OfEvent(wait),
        _OfEvent(is_complete),
        _Release(release),
    )
    assert PATH.layout()["driver"] == ctypes.sizeof(_Driver)
    new = gridpact.jit(kernel.fn)
    assert PATH.layout()["launch"] == ctypes.sizeof(_Launch)

    tables.append(ctypes.addressof(table))

    def change(args):
        return (*args[:6], {**args[6], "table": ctypes.addressof(table), "kept": table, **info})

    remembering(lambda: refused(lambda: new[(1,)](*ARGS)), change)
    return new


class _Driven:
    """A driver whose kernels are complete when the test says so."""

    def __init__(self):
        self.made, self.done, self.released, self.waited = 0, set(), [], []
        self.is_failing = False

    def launch(self, context, launch):
        self.made += 1
        launch[0].event = self.made
        return 0

    def wait(self, event):
        self.waited.append(event)
        self.done.add(event)
        return -3 if self.is_failing else 0

    def is_complete(self, event):
        return int(event in self.done)

    def kernel(self):
        return launches_through(self.launch, (self.wait, self.is_complete, self.released.append), flags=0)


@part
def flights():
    """What a launch uses lives until its event is complete, and no longer; events are released once each."""
    driven = _Driven()
    new = driven.kernel()
    table = tables[-1]
    kept = [ARGS[0].copy() for _ in range(50)]
    alive = [weakref.ref(array) for array in kept]
    for array in kept:
        new[(1,)](array, *ARGS[1:])
    made = driven.made
    del array
    kept.clear()
    gc.collect()
    assert sum(ref() is not None for ref in alive) >= 49
    assert PATH.in_flight(table) == made - len(driven.released)
    driven.done.update(range(1, 21))
    new[(1,)](*ARGS)
    assert driven.released == list(range(1, 21))
    driven.is_failing = True
    failed = []

    def fail(code):
        failed.append(code)
        raise ValueError(code)

    assert refused(PATH.land, table, None, fail)
    assert set(failed) == {-3}
    assert PATH.in_flight(table) == 0
    assert driven.released == list(range(1, driven.made + 1))
    assert not any(ref() for ref in alive)
    driven.is_failing = False

    class Relaunching:
        """Launches again as it goes."""

        def __del__(self):
            new[(1,)](*ARGS)

    for _ in range(20):
        array = ARGS[0].copy().view(_Owned)
        array.owner = Relaunching()
        new[(1,)](np.asarray(array), *ARGS[1:])
        del array
        driven.done.update(range(1, driven.made + 1))
    threads = [threading.Thread(target=PATH.land, args=(table, None, fail)) for _ in range(4)]
    threads += [
        threading.Thread(target=contextvars.copy_context().run, args=[lambda: [new[(1,)](*ARGS) for _ in range(200)]])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    PATH.land(table, None, fail)
    assert sorted(driven.released) == list(range(1, driven.made + 1))
    assert PATH.in_flight(table) == 0
    assert PATH.in_flight(0) == 0
    for wrong in ((), (table,), (table, "stream", fail), (table, -1, fail), ("table", None, fail)):
        assert refused(PATH.land, *wrong)
    assert refused(PATH.in_flight, "table")


class _Owned(np.ndarray):
    """An array that keeps something."""


@part
def drivers_that_fail():
    def captured(context, launch):
        launch[0].is_captured = 1
        return 0

    for code in (1, 201, 700, -5, 10**9):
        new = launches_through(lambda context, launch, code=code: code)
        assert all(refused(lambda new=new: new[(1,)](*ARGS)) for _ in range(20))
        assert refused(PATH.bare, new, (1,), ARGS, {}, 3)
    new = launches_through(captured)
    for _ in range(3):
        new[(1,)](*ARGS)
    for answer in (None, 5):
        new = launches_through(lambda context, launch: 1, **{"raise": lambda code, answer=answer: answer})
        assert refused(lambda new=new: new[(1,)](*ARGS))
    new = launches_through(lambda context, launch: 0, hold=lambda *args: 1 / 0, is_held=1, flags=0)
    assert refused(lambda: new[(1,)](*ARGS))

    def shut_meanwhile(context, launch):
        PATH.turn("shut", True)
        return 0

    def shut_out(*args):
        raise SystemExit

    new = launches_through(shut_meanwhile, hold=shut_out, is_held=1, flags=0)
    PATH.turn("shut", False)
    array = ARGS[0].copy()
    alive = weakref.ref(array)
    with contextlib.suppress(SystemExit):
        new[(1,)](array, *ARGS[1:])
    PATH.turn("shut", False)
    del array
    gc.collect()
    assert alive() is not None  # its kernel runs while the process ends
    new = launches_through(lambda context, launch: 0, flights={1: 2}, let_go=lambda: 1 / 0)
    assert refused(lambda: new[(1,)](*ARGS))
    for given in (None, (), (1, 2), (1, 2, None), ("x", 2, 3), 1 / 3):
        new = launches_through(lambda context, launch: 0, given=lambda stream, given=given: given)
        remembering(lambda new=new: refused(lambda: new[(1,)](*ARGS, stream=StreamByProtocol())))
        refused(lambda new=new: new[(1,)](*ARGS))
    for told in (None, "x", -1, 2**64, 5):
        new = launches_through(lambda context, launch: 0, stream_call=lambda told=told: told)
        refused(lambda new=new: new[(1,)](*ARGS))
        refused(PATH.bare, new, (1,), ARGS, {}, 3)

    def wide(args):
        return (*args[:6], {**args[6], "limits": (2**31 - 1, 2**31 - 1, 2**31 - 1)})

    new = gridpact.jit(kernel.fn)
    remembering(lambda: new[(1,)](*ARGS), wide)
    assert refused(lambda: new[(1, 70000)](*ARGS))  # by the driver itself
    assert PATH.bare(kernel, (1,), ARGS, {}, 10) >= 0
    assert all(refused(PATH.bare, kernel, grid, ARGS, {}, 1) for grid in ((), "x", (1.5,), (2**64,), (1, 1, 1, 1)))


@part
def threads():
    """Launches while others change what they stand on."""
    global FACTOR
    ending, errors = time.monotonic() + 1.5, []

    def launches():
        rng = random.Random()
        while time.monotonic() < ending:
            try:
                new = rng.choice(kernels)
                new[rng.choice([(1,), lambda meta: (2,), [1, 2]])](A, 5, word=rng.choice(["a", "b", ("x", 1)]))
                p(A, 5)
            except Exception as error:
                errors.append(error)

    def remembers():
        while time.monotonic() < ending:
            new = gridpact.jit(scaled.fn)
            new[(1,)](A, 5)
            kernels[0] = new
            gc.collect()

    def observes():
        while time.monotonic() < ending:
            with gridpact.hooks.observe(lambda metadata: None, gc.isenabled and (lambda metadata: time.sleep(0))):
                time.sleep(0.002)
            PATH.use("tap", lambda told: None)
            PATH.use("tap", None)
            os.environ["GRIDPACT_STRESS"] = str(random.random())

    def switches():
        while time.monotonic() < ending:
            for each in [*kernels]:
                each.pre_run_hooks = []
            time.sleep(0.001)

    kernels = [gridpact.jit(scaled.fn) for _ in range(2)]
    p = scaled.prepare(A, 5, grid=(1,), on_change="prepare")
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    work = [launches, launches, launches, remembers, observes, switches]
    running = [threading.Thread(target=contextvars.copy_context().run, args=[each]) for each in work]
    for thread in running:
        thread.start()
    while time.monotonic() < ending:
        FACTOR = FACTORS[FACTOR is FACTORS[0]]
        time.sleep(0.003)
    for thread in running:
        thread.join()
    sys.setswitchinterval(before)
    FACTOR = FACTORS[0]
    assert not errors, errors[:3]


@part
def forks():
    """A child says why it cannot launch, and ends, also when it was forked while a thread was in a driver call."""
    entered = threading.Event()

    def slow(context, launch):
        entered.set()
        time.sleep(0.3)
        return 0

    new = launches_through(slow)
    entered.clear()
    thread = threading.Thread(target=contextvars.copy_context().run, args=[lambda: new[(1,)](*ARGS)])
    thread.start()
    entered.wait()
    assert PATH.inside() == 1
    gate._inside.append(1)  # as a thread that is in a driver call by the definition
    child = os.fork()
    if not child:
        is_refused = refused(lambda: kernel[(1,)](*ARGS)) and refused(PATH.bare, kernel, 1, ARGS, {}, 1)
        os._exit(0 if is_refused and not PATH.inside() and not gate._inside else 1)
    gate._inside.remove(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    thread.join()
    kernel[(1,)](*ARGS)


@part
def interrupts():
    """No interrupt is lost, wherever it comes."""
    armed, caught = [], 0

    def interrupt(number, frame):  # at most once each time, so that it does not hit who catches it
        if armed:
            armed.clear()
            raise KeyboardInterrupt

    def guarded(args):
        return (*args[:6], {**args[6], "guard": lambda: True, "stream_call": lambda: 0})

    new = gridpact.jit(kernel.fn)
    remembering(lambda: new[(1,)](*ARGS), guarded)
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    for _ in range(20):
        once = [0]
        try:
            one[(1,)](Duck(lambda once=once: once and (once.pop(), signal.raise_signal(signal.SIGINT))))
        except KeyboardInterrupt:
            caught += 1
    assert caught == 20
    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0013)
    ending = time.monotonic() + 0.7
    while time.monotonic() < ending:
        try:
            armed.append(0)
            while time.monotonic() < ending:
                new[(1,)](*ARGS)
                kernel[lambda meta: (1,)](*ARGS)
            armed.clear()
        except KeyboardInterrupt:
            caught += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, usual)
    assert caught > 20


@part
def collections():
    """The collector runs at each allocation, and looks at whatever it finds."""
    gc.set_threshold(1)
    try:
        for i in range(300):
            kernel[(1,)](*ARGS)
            scaled[lambda meta: (1,)](A, 5)
            if i % 100 == 0:
                for found in gc.get_objects():
                    if type(found).__name__ in ("Kernel", "Entry", "Bound", "Prepared"):
                        gc.get_referents(found), repr(found)
    finally:
        gc.set_threshold(700, 10, 10)
    for kind in (type(kernel[1]), type(kernel.prepare(*ARGS, grid=1))):
        assert refused(kind)
        assert refused(object.__new__, kind)
    bare = PATH.Launchable()
    assert refused(lambda: bare[(1,)](1))
    del bare.debug
    for name in ("debug", "pre_run_hooks", "origin"):
        new = gridpact.jit(kernel.fn)
        for wrong in (None, *JUNK):
            setattr(new, name, wrong)
            refused(lambda new=new: new[(1,)](*ARGS))
        delattr(new, name)
        refused(lambda new=new: new[(1,)](*ARGS))


@part
def deep():
    """Chains and nests of any depth."""
    bound = prepared = (1,)
    for _ in range(200_000):
        bound = kernel[bound]
    del bound
    for _ in range(100_000):
        prepared = PATH.prepared(kernel, prepared, None, None, None, (), (), False, len)
    del prepared
    told = remembering(lambda: gridpact.jit(scaled.fn)[(1,)](A, 5, word=("x",)))
    deep, other = (), ()
    for _ in range(100_000):
        deep, other = (deep,), (other,)
    new = gridpact.jit(scaled.fn)
    for nest in (deep, other, deep):
        refused(PATH.remember, new, *told[0][1:3], (A, 5, nest), *told[0][4:])
        refused(PATH.again, new, (1,), (A, 5), {"word": nest})


@part
def endless_launches():
    """Threads that launch as the process ends."""

    def forever():
        while True:
            kernel[lambda meta: (1,)](*ARGS)
            kernel[(1,)](*ARGS)

    for _ in range(3):
        threading.Thread(target=contextvars.copy_context().run, args=[forever], daemon=True).start()
    time.sleep(0.05)


def main(chosen):
    assert PARTS.keys() >= {*chosen}, sorted(PARTS)
    activate()
    load().gridpact_keep(0)
    for launched, args in ((kernel, ARGS), (one, (Duck(),))):
        launched[(1,)](*args)
        assert PATH.again(launched, (1,), args, {}) is not None  # the native path is taken at all
    for name, work in PARTS.items():
        if not chosen or name in chosen:
            begin = time.monotonic()
            work()
            print(f"{name}: {time.monotonic() - begin:.1f} s", flush=True)
    print("through")


if __name__ == "__main__":
    main(sys.argv[1:])
