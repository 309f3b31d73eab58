"""Keys: told apart by type and value, the same in every process."""

import collections
import copy
import enum
import math
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridpact.compiles import nearest
from gridpact.identity import Change, Key, differences, typed

DIFFERENT = [
    None, 0, 1, 2**64, -(2**64), True, False, 1.0, 0.0, -0.0, math.nan, math.inf, "", "1", "None", b"1", 1j,
    (), (1,), (True,), [1], ("1",), (1, 2), ((1,), 2),
    np.float32(1), np.int32(1), np.dtype("f4"), np.dtype(">f4"),
    {"a": 1}, {"a": True}, int, float,
]  # fmt: skip


def test_values_of_other_type_or_sign_are_told_apart():
    keys = [typed(value) for value in DIFFERENT]
    assert len(set(keys)) == len(DIFFERENT)
    assert len({repr(key) for key in keys}) == len(DIFFERENT)


def test_number_of_any_length_has_an_identity():
    assert Key((("constexpr N", typed(10**5000)),)).digest != Key((("constexpr N", typed(10**5000 + 1)),)).digest


def test_equal_values_are_one():
    assert typed(math.nan) == typed(-float("nan")) == typed(float("inf") - float("inf"))
    assert typed({"a": 1, "b": 2}) == typed({"b": 2, "a": 1})
    assert typed(int("1000000")) == typed(1000000)


def test_named_tuples_and_enums_are_told_apart_by_type():
    one, other = collections.namedtuple("one", "x"), collections.namedtuple("other", "x")
    color = enum.Enum("color", "RED GREEN")
    assert len({typed(one(1)), typed(other(1)), typed((1,)), typed(color.RED), typed(color.GREEN)}) == 5


@pytest.mark.parametrize("value", [object(), np.array([None]), lambda: 1, iter([]), open])
def test_value_without_an_identity_is_refused(value):
    with pytest.raises(TypeError):
        typed(value)


def test_constexprs_that_share_a_binary_elsewhere_are_told_apart():
    # ("a-b", "c") and ("a", "b-c") share a hash on Triton's disk, 1/True/1.0 one in its memory.
    assert typed(("a-b", "c")) != typed(("a", "b-c"))
    assert len({typed(1), typed(True), typed(1.0), typed("1")}) == 4


def test_key_names_the_facts_that_differ():
    one = Key((("argument n", typed(("i32", True))), ("option num_warps", typed(4))))
    other = Key((("argument n", typed(("i32", False))), ("option num_warps", typed(4))))
    same = Key((("argument n", typed(("i32", True))), ("option num_warps", typed(4))))
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert one.difference(other) == ["argument n"]
    assert one.digest == same.digest != other.digest


def test_digest_is_the_same_in_another_process():
    program = (
        "from gridpact.identity import Key, typed\n"
        "print(Key((('a', typed({'x': 1.5, 'y': ('t', None, True)})), ('b', typed('s')))).digest)"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    here = Key((("a", typed({"y": ("t", None, True), "x": 1.5})), ("b", typed("s")))).digest
    assert digests == {here + "\n"}


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (("argument n", ("i32", True)), ("argument n", ("i32", False)), "argument n: not divisible by 16"),
        (("argument n", ("i32", False)), ("argument n", ("i32", True)), "argument n: divisible by 16 (was not)"),
        (("argument n", ("i32", False)), ("argument n", ("i64", False)), "argument n: i32 -> i64"),
        (
            ("argument n", ("i32", True)),
            ("argument n", ("constexpr", typed(1))),
            "argument n: i32 divisible by 16 -> equal to 1",
        ),
        (
            ("argument x", ("*fp32", True)),
            ("argument x", ("constexpr", typed(None))),
            "argument x: *fp32 divisible by 16 -> None",
        ),
        (
            ("constexpr BLOCK", ("constexpr", typed(128))),
            ("constexpr BLOCK", ("constexpr", typed(128.0))),
            "constexpr BLOCK: 128 -> 128.0 (int -> float)",
        ),
        (("option num_stages", typed(2)), ("option num_stages", typed(3)), "option num_stages: 2 -> 3"),
        (("captured K", typed(0.0)), ("captured K", typed(-0.0)), "captured K: 0.0 -> -0.0"),
        (("captured K", typed([1, 2])), ("captured K", typed([1, "2"])), "captured K: [1, 2] -> [1, '2']"),
        (("captured K", typed(1)), ("captured K", typed(2**64)), "captured K: 1 -> 0x10000000000000000"),
        (("helper f", ("text", "f", "a", False)), ("helper f", ("text", "f", "b", False)), "helper f edited"),
        (("environment", (("A", "1"),)), ("environment", ()), "environment A: 1 -> unset"),
    ],
)
def test_change_is_told(before, after, told):
    (change,) = differences([before], [after])
    assert str(change) == told


def test_change_of_a_fact_that_is_not_there_is_told():
    assert str(*differences([], [("captured K", typed(1))])) == "captured K: absent -> 1"
    assert str(*differences([("helper f", ("text",))], [])) == "helper f no longer reached"


def test_nearest_is_the_key_with_the_fewest_changes():
    def key(**facts):
        return Key(tuple((f"constexpr {name}", ("constexpr", typed(value))) for name, value in facts.items()))

    known = [key(A=1, B=2, C=3), key(A=1, B=5, C=6), key(A=9, B=9, C=9)]
    assert [str(change) for change in nearest(key(A=1, B=5, C=7), known)] == ["constexpr C: 6 -> 7"]
    assert nearest(key(A=1, B=5, C=7), []) == ()


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
        lambda inner: (
            st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner, max_size=3)
        ),
        max_leaves=20,
    )
)
def test_any_value_is_told_and_is_itself(value):
    fact = typed(value)
    assert fact == typed(copy.deepcopy(value))
    assert hash(fact) == hash(typed(copy.deepcopy(value)))
    assert eval(repr(fact)) == fact  # nothing but literals is in it
    assert str(*differences([("captured K", fact)], [("captured K", ("other", 0))]))


@pytest.mark.parametrize("value", [np.str_(""), np.bytes_(b""), np.void(b""), (), [], {}, b"", 1 << 200])
def test_empty_and_large_values_can_be_told(value):
    assert str(Change("captured K", None, typed(value))).startswith("captured K: absent -> ")
