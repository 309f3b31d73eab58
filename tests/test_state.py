"""What a kernel reaches: names as Python means them, read by value and type."""

import copy
import dataclasses
import enum
import math
import textwrap
import types

import numpy as np
import pytest

import gridpact
from gridpact import state
from gridpact.errors import ContractError
from gridpact.state import source_of

SCALE = 3
shadowed = "global"
module = types.ModuleType("module")
module.WIDTH = 5
module.inner = types.ModuleType("inner")
module.inner.DEPTH = 7


@gridpact.jit
def helper(a):
    return a * SCALE


module.helper = helper


def captured(function):
    return {".".join(path): value for path, value in source_of(function).captured.items()}


def test_globals_closures_and_module_attributes_are_read():
    inner = 4

    def kernel(x, y=9):
        local = inner + SCALE
        return local + module.WIDTH + module.inner.DEPTH + x.something + undefined_name + len(y)  # noqa: F821

    assert captured(kernel) == {"inner": 4, "SCALE": 3, "module.WIDTH": 5, "module.inner.DEPTH": 7}


def test_closure_wins_over_a_global_of_the_same_name():
    shadowed = "closure"

    def kernel():
        return shadowed

    assert captured(kernel) == {"shadowed": "closure"}


def test_helpers_are_followed_also_through_modules():
    def kernel(x):
        return helper(x) + module.helper(x)

    source = source_of(kernel)
    assert [path for path in source.captured] == [("helper",), ("module", "helper")]
    assert source.captured["helper",].captured == {("SCALE",): 3}


def digest_with(value):
    def kernel(x):
        return x + value

    return source_of(kernel).digest


@pytest.mark.parametrize(
    ("one", "other"), [(1, True), (1, 1.0), (0.0, -0.0), ("1", 1), ((1, 2), (1, 3)), ((1,), (True,)), (None, 0)]
)
def test_digest_tells_captured_values_apart(one, other):
    assert digest_with(one) != digest_with(other)
    assert digest_with(one) == digest_with(one)


def test_nan_equals_itself():
    assert digest_with(math.nan) == digest_with(float("nan"))


def test_change_in_a_helper_changes_the_digest(monkeypatch):
    def kernel(x):
        return helper(x)

    before = source_of(kernel)
    assert before.is_current()
    monkeypatch.setitem(globals(), "SCALE", 4)
    assert not before.is_current()
    assert source_of(kernel).digest != before.digest


def test_change_of_type_alone_is_noticed(monkeypatch):
    def kernel(x):
        return x * SCALE

    before = source_of(kernel)
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert not before.is_current()
    assert source_of(kernel).digest != before.digest


def test_changed_element_of_a_mutable_value_is_noticed():
    values = [1, 2]

    def kernel(x):
        return x + values

    before = source_of(kernel)
    assert before.is_current()
    values[1] = 2.0
    assert not before.is_current()
    assert source_of(kernel).digest != before.digest
    values[1] = 2
    assert before.is_current()


class Held:
    """A plain object that cannot be compared."""

    def __init__(self, width):
        self.width = width

    def __eq__(self, other):
        raise RuntimeError("not comparable")

    __hash__ = None


@dataclasses.dataclass
class Tile:
    rows: int
    columns: list


@pytest.mark.parametrize(
    ("value", "change"),
    [
        (Held(3), lambda held: setattr(held, "width", 4)),
        (Tile(1, [2, 3]), lambda tile: tile.columns.append(4)),
        (Tile(1, [2, 3]), lambda tile: setattr(tile, "rows", True)),
        (np.arange(4), lambda array: array.__setitem__(0, -1)),
        ({"a": {"b": 0.0}}, lambda mapping: mapping["a"].__setitem__("b", -0.0)),
        ({1, 2}, lambda numbers: numbers.add(3)),
        (([1], 2), lambda pair: pair[0].append(2)),
    ],
    ids=["object", "dataclass", "type_in_a_dataclass", "array", "sign_of_zero", "set", "list_in_a_tuple"],
)
def test_what_is_in_a_mutable_value_is_looked_at(value, change):
    def kernel(x):
        return x + value

    before = source_of(kernel)
    assert before.is_current()
    copy_of_it = copy.deepcopy(value)
    change(value)
    assert not before.is_current()
    value = copy_of_it
    assert before.is_current()  # equal by value and type, another object


def test_equal_copy_is_no_change_and_is_identified_from_then_on():
    value = ("a", 1)

    def kernel(x):
        return x + value

    before = source_of(kernel)
    value = tuple(["a", 1])
    assert not before.reads[0].is_identical()
    assert before.is_current()
    assert before.reads[0].is_identical()


def test_unchanged_nan_is_no_change():
    value = math.nan

    def kernel(x):
        return x + value

    before = source_of(kernel)
    value = float("nan")
    assert before.is_current()


def test_value_of_a_constexpr_that_changes_is_noticed():
    tl = pytest.importorskip("triton.language")
    held = tl.constexpr([1, 2])

    def kernel(x):
        return x + held

    before = source_of(kernel)
    assert before.is_current()
    held.value[0] = 5
    assert not before.is_current()
    held.value = [1, 2]
    assert before.is_current()
    held.value = [1.0, 2]
    assert not before.is_current()


def test_immutable_values_are_proven_by_identity_alone(monkeypatch):
    values = (1, ("a", 2.5), None, np.float32(1), np.dtype("f4"))

    def kernel(x):
        return x + values

    before = source_of(kernel)
    monkeypatch.setattr(state, "typed", None)  # nothing is looked into
    assert before.is_current()


@pytest.mark.parametrize(
    "value",
    [list(range(1024)), {i: i for i in range(1100)}, np.zeros(1024), [[0] * 400] * 3],
    ids=["list", "dict", "array", "nested"],
)
def test_large_mutable_value_is_refused(value):
    def kernel(x):
        return x + value

    with pytest.raises(ContractError, match=r"'value' captured by .*at most 1024 values.*\[STATE-3\]"):
        source_of(kernel)


def test_value_that_holds_itself_is_refused():
    value = [1]
    value.append(value)

    def kernel(x):
        return x + value

    with pytest.raises(ContractError, match=r"\[STATE-3\]"):
        source_of(kernel)


def test_large_immutable_value_is_accepted():
    value = tuple(range(5000))

    def kernel(x):
        return x + value

    assert source_of(kernel).is_current()


def test_rebound_helper_of_the_same_name_is_noticed(monkeypatch):
    def make(number):
        @gridpact.jit
        def scaled(a):
            return a * number

        return scaled

    one, other, again = make(2), make(3), make(2)

    def kernel(x):
        return module.scaled(x)

    monkeypatch.setattr(module, "scaled", one, raising=False)
    before = source_of(kernel)
    monkeypatch.setattr(module, "scaled", other)
    assert not before.is_current()
    assert source_of(kernel).facts != before.facts
    monkeypatch.setattr(module, "scaled", again)
    assert source_of(kernel).facts == before.facts


def test_facts_say_what_is_what():
    inner = 4

    def kernel(x):
        return helper(x) + inner

    facts = dict(source_of(kernel).facts)
    assert list(facts) == ["source", "helper helper", "captured SCALE of helper", "captured inner"]
    assert facts["captured inner"] == ("int", 4)


def test_default_of_a_helper_is_part_of_its_identity():
    def make(default):
        def inner(a, b=default):
            return a + b

        return source_of(inner).digest

    assert make(1) != make(2)
    assert make(1) != make(True)
    assert make(1) == make(1)


def test_object_without_an_identity_is_refused():
    thing = object()

    def kernel(x):
        return x + thing

    with pytest.raises(ContractError) as caught:
        source_of(kernel)
    assert caught.value.clause == "STATE-1"
    assert "'thing'" in caught.value.subject


def test_kernel_without_source_text_is_refused():
    scope = {}
    exec("def kernel(x): return x", scope)
    with pytest.raises(ContractError, match=r"source text must be a def in a file.*\[KEY-1\]"):
        gridpact.jit(scope["kernel"])


def test_text_of_another_function_is_not_taken():
    # What linecache holds under "<string>" may be any other program's text.
    scope = {}
    exec(compile("def unrelated(a, b): return b", __file__, "exec"), scope)
    with pytest.raises(ContractError, match="KEY-1"):
        gridpact.jit(scope["unrelated"])


def doubled(number):
    return number * FACTOR


FACTOR = 2


class Shape:
    ROWS = 3

    def area(self):
        return self.ROWS


def test_plain_function_that_runs_at_compile_time_is_followed(monkeypatch):
    def kernel(x):
        return module.doubled(x)

    monkeypatch.setattr(module, "doubled", doubled, raising=False)
    before = source_of(kernel)
    assert [name for name, _ in before.facts] == [
        "source",
        "helper module.doubled",
        "captured FACTOR of module.doubled",
    ]
    monkeypatch.setitem(globals(), "FACTOR", 3)
    assert not before.is_current()
    assert source_of(kernel).digest != before.digest


def test_function_of_another_package_is_told_by_its_code():
    def kernel(x):
        return textwrap.dedent(x)

    ((name, fact),) = source_of(kernel).facts[1:]
    assert (name, fact[0]) == ("captured textwrap.dedent", "code")


def test_what_is_in_a_captured_class_is_part_of_the_identity(monkeypatch):
    def kernel(x):
        return Shape

    before = source_of(kernel).digest
    monkeypatch.setattr(Shape, "ROWS", 4)
    changed = source_of(kernel).digest
    assert changed != before
    monkeypatch.setattr(Shape, "area", lambda self: 5)
    assert source_of(kernel).digest != changed


# -- values whose content is easily overlooked


def reading(value):
    def kernel(x):
        return x + holder.value

    holder = types.ModuleType("holder")
    holder.value = value
    return source_of(kernel)


def class_of(block):
    class Config:
        BLOCK = block

    return Config


def property_of(block):
    class Config:
        @property
        def block(self):
            return function()

    def function():
        return block

    return Config()


def enum_of(value):
    class Mode(enum.Enum):
        FAST = value

    return Mode.FAST


@dataclasses.dataclass
class Made:
    width: int

    def __post_init__(self):
        self.made = self.width // 2


class Items(list):
    """A list that can have attributes."""


def with_attribute(thing, value):
    thing.made = value
    return thing


@pytest.mark.parametrize(
    "make",
    [
        enum_of,
        class_of,
        property_of,
        lambda value: (class_of(value),),
        lambda value: lambda x: x + value,
        lambda value: with_attribute(Made(3), value),
        lambda value: with_attribute(Items([1]), value),
        lambda value: np.dtype([(f"field {value}", "i4")]),
    ],
)
def test_content_is_told_apart(make):
    assert reading(make(4)).digest == reading(make(4)).digest
    assert reading(make(4)).digest != reading(make(8)).digest


class dtype:
    made = 0


class Pair(tuple):
    """A tuple that can have attributes."""


@pytest.mark.parametrize("value", [class_of(3), dtype(), Pair((1, 2)), Items([1]), Made(3)])
def test_what_can_have_attributes_is_looked_at_again(value):
    source = reading(value)
    assert source.is_current()
    value.BLOCK = 8
    assert not source.is_current()


def test_class_that_holds_an_object_of_its_own_has_one_digest_at_any_depth_of_the_stack():
    class Config:
        width = 3

    Config.default = Config()

    def deeper(depth):
        return deeper(depth - 1) if depth else reading(Config.default)

    assert deeper(0).digest == deeper(60).digest
    assert deeper(0).is_current()


def test_values_in_tuples_count_where_any_may_change():
    for value in (([1], *range(2000)), [tuple(range(2000))]):
        with pytest.raises(ContractError, match=r"at most 1024 values.*\[STATE-3\]"):
            reading(value)
    assert reading(tuple(range(2000))).is_current()
    assert reading(frozenset(range(2000))).is_current()


class Broken:
    def __getattr__(self, name):
        raise RuntimeError("broken")


class Disguised:
    @property
    def __class__(self):
        raise RuntimeError("broken")


@pytest.mark.parametrize("make", [Broken, Disguised, lambda: {1: 2}.get], ids=["getattr", "class", "bound"])
def test_values_that_cannot_be_read_are_refused_by_name(make):
    with pytest.raises(ContractError, match=r"^'holder\.value' captured by 'reading.*\[STATE-1\]$"):
        reading(make())


def test_default_of_a_helper_is_looked_at_again(monkeypatch):
    tl = pytest.importorskip("triton.language")
    base = tl.constexpr(4)

    @gridpact.jit
    def added(a, b=base, *, c=1):
        return a + b + c

    def kernel(x):
        return module.added(x)

    monkeypatch.setattr(module, "added", added, raising=False)
    before = source_of(kernel)
    assert before.is_current()
    base.value = 8
    assert not before.is_current()
    base.value = 4
    assert before.is_current()
    added.fn.__kwdefaults__ = {"c": 2}
    assert not before.is_current()


def test_name_of_a_comprehension_is_nobody_elses():
    i, wide = object(), 4  # noqa: F841

    def kernel(x):
        return [i + wide for i in range(3)], {j: k for j, k in x}, max(n for n in x)

    assert captured(kernel) == {"wide": 4}
