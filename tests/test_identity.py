"""Keys: told apart by type and value, the same in every process."""

import collections
import enum
import math
import os
import subprocess
import sys

import numpy as np
import pytest

from gridpact.identity import Key, typed

DIFFERENT = [
    None, 0, 1, True, False, 1.0, 0.0, -0.0, math.nan, math.inf, "", "1", "None", b"1", 1j, (), (1,), (True,), [1],
    ("1",), (1, 2), ((1,), 2),
    np.float32(1), np.int32(1), np.dtype("f4"), np.dtype(">f4"),
    {"a": 1}, {"a": True}, int, float,
]  # fmt: skip


def test_values_of_other_type_or_sign_are_told_apart():
    keys = [typed(value) for value in DIFFERENT]
    assert len(set(keys)) == len(DIFFERENT)
    assert len({repr(key) for key in keys}) == len(DIFFERENT)


def test_equal_values_are_one():
    assert typed(math.nan) == typed(-float("nan")) == typed(float("inf") - float("inf"))
    assert typed({"a": 1, "b": 2}) == typed({"b": 2, "a": 1})
    assert typed(int("1000000")) == typed(1000000)


def test_named_tuples_and_enums_are_told_apart_by_type():
    one, other = collections.namedtuple("one", "x"), collections.namedtuple("other", "x")
    color = enum.Enum("color", "RED GREEN")
    assert len({typed(one(1)), typed(other(1)), typed((1,)), typed(color.RED), typed(color.GREEN)}) == 5


@pytest.mark.parametrize("value", [object(), {1, 2}, np.zeros(3), lambda: 1])
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
