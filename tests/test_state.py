"""What a kernel reaches: names as Python means them, read by value and type."""

import math
import types

import pytest

import gridpact
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


def test_mutable_value_is_read_again():
    values = [1, 2]

    def kernel(x):
        return x + values

    before = source_of(kernel)
    assert not before.is_current()  # identity says nothing about a list
    assert source_of(kernel).digest == before.digest
    values[1] = 3
    assert source_of(kernel).digest != before.digest


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
