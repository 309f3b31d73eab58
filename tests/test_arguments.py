"""Binding, classification and encoding of arguments, without a device."""

import collections
import ctypes
import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridpact.arguments import Signature, classify, decode, encode, pointer_of
from gridpact.errors import (
    ContractError,
    ContractOverflowError,
    ContractTypeError,
    ContractValueError,
    UnsupportedError,
)


def signature(function, **options):
    return Signature(function, options.get("unspecialized", ()), options.get("unaligned", ()))


def classified(function, *args, **kwargs):
    sig = signature(function)
    return classify(sig, sig.bind(args, kwargs))


def one(value, annotation=None, **options):
    """Classify one argument: type tree, constants, divisible paths, leaves."""

    def kernel(a):
        pass

    if annotation is not None:
        kernel.__annotations__["a"] = annotation
    sig = signature(kernel, **options)
    return classify(sig, {"a": value})


# -- binding


def test_binding_follows_python():
    def kernel(a, /, b, c=3, *, d, e=5):
        pass

    sig = signature(kernel)
    assert sig.bind((1, 2), {"d": 4}) == {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}
    assert sig.bind((1,), {"d": 4, "b": 2, "e": 6, "c": 0}) == {"a": 1, "b": 2, "c": 0, "d": 4, "e": 6}


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        ((1,), {}),
        ((1, 2), {}),
        ((1, 2, 3, 4), {"d": 1}),
        ((1,), {"a": 1, "b": 2, "d": 3}),
        ((1, 2), {"b": 2, "d": 1}),
    ],
)
def test_binding_error_is_the_one_of_python(args, kwargs):
    def kernel(a, /, b, c=3, *, d, e=5):
        pass

    with pytest.raises(TypeError) as python:
        kernel(*args, **kwargs)
    with pytest.raises(ContractTypeError) as ours:
        signature(kernel).bind(args, kwargs)
    assert str(ours.value) == f"{python.value} [ARG-1]"
    assert ours.value.clause == "ARG-1"


def test_kernel_without_parameters_binds():
    def kernel():
        pass

    assert signature(kernel).bind((), {}) == {}


def test_positional_only_kernel_binds():
    def kernel(a, b=2, /):
        pass

    assert signature(kernel).bind((1,), {}) == {"a": 1, "b": 2}


def test_variadic_parameters_are_refused():
    def kernel(a, *rest):
        pass

    with pytest.raises(UnsupportedError, match="'rest' of 'kernel'"):
        signature(kernel)


def test_misspelt_name_in_do_not_specialize_is_refused():
    def kernel(width, height):
        pass

    with pytest.raises(ContractValueError, match=r"Did you mean 'height'\?.*\[SPEC-2\]"):
        signature(kernel, unspecialized=["heigth"])
    with pytest.raises(ContractValueError):
        signature(kernel, unspecialized=[2])


# -- classes of numbers


@pytest.mark.parametrize(
    ("value", "kind", "is_divisible"),
    [
        (0, "i32", True),
        (2, "i32", False),
        (16, "i32", True),
        (-16, "i32", True),
        (2**31 - 1, "i32", False),
        (2**31, "i64", True),
        (-(2**31), "i32", True),
        (-(2**31) - 1, "i64", False),
        (2**63 - 1, "i64", False),
        (2**63, "u64", True),
        (2**64 - 1, "u64", False),
        (True, "i1", False),
        (1.0, "fp32", False),
        (np.int64(5), "i32", False),
        (np.float64(0.5), "fp32", False),
        (np.True_, "i1", False),
    ],
)
def test_number_chooses_its_type_and_class(value, kind, is_divisible):
    result = one(value)
    assert result.types == {"a": kind}
    assert result.divisible == ({(0,)} if is_divisible else set())
    assert result.constants == {}
    assert decode(kind, result.leaves[0].bits) == value


def test_one_is_compiled_in_unless_switched_off():
    assert one(1).constants == {(0,): 1}
    assert one(1).leaves == []
    switched_off = one(1, unspecialized=["a"])
    assert switched_off.types == {"a": "i32"}
    assert switched_off.constants == {}
    assert one(16, unspecialized=["a"]).divisible == set()
    assert one(16, unaligned=[0]).divisible == set()
    assert one(1, unaligned=[0]).constants == {(0,): 1}


@pytest.mark.parametrize("declared", ["tl.int64", "int64", "i64", "triton.language.int64"])
def test_declared_integer_keeps_its_type(declared):
    assert one(1, declared).types == {"a": "i64"}
    assert one(16, declared).divisible == {(0,)}


@pytest.mark.parametrize(
    ("declared", "value"),
    [("i8", 128), ("i8", -129), ("u8", 256), ("u8", -1), ("i32", 2**31), ("u64", 2**64), ("u64", -1), ("i1", 2)],
)
def test_integer_outside_its_declared_type_is_refused(declared, value):
    with pytest.raises(ContractOverflowError) as caught:
        one(value, declared)
    assert caught.value.clause == "ARG-2"
    assert caught.value.subject == "argument 'a' of 'kernel'"


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1])
def test_integer_that_no_type_holds_is_refused(value):
    with pytest.raises(ContractOverflowError):
        one(value)


def test_float_for_a_declared_integer_is_refused():
    with pytest.raises(ContractTypeError) as caught:
        one(1.0, "i32")
    assert caught.value.clause == "ARG-2"


# -- encoding


@given(st.floats(allow_nan=False, allow_infinity=False, width=64), st.sampled_from(["fp16", "bf16", "fp32", "fp64"]))
def test_float_is_rounded_once_to_nearest_even(value, kind):
    dtype = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16, "fp32": np.float32, "fp64": np.float64}[kind]
    due = nearest(value, dtype)
    if math.isinf(due):
        with pytest.raises(ContractOverflowError):
            encode("a", kind, value)
    else:
        seen = decode(kind, encode("a", kind, value))
        assert seen == due
        assert math.copysign(1, seen) == math.copysign(1, value)


def nearest(value, dtype):
    """Give the nearest number of a type by exact comparison with its neighbours, ties to the even one."""
    with np.errstate(over="ignore"):
        near = np.array(value).astype(dtype)  # may be one off (double rounding), never more
    size = near.dtype.itemsize
    bits = int(near.view(f"u{size}"))
    sign = 1 << (8 * size - 1)
    around = [b for b in (bits - 1, bits, bits + 1) if 0 <= b < 2 ** (8 * size) and (b ^ bits) & sign == 0]
    from fractions import Fraction

    largest = float(ml_dtypes.finfo(dtype).max)
    place = Fraction(largest) - Fraction(float(np.nextafter(np.array(largest, dtype), np.array(0, dtype))))
    if abs(Fraction(value)) >= Fraction(largest) + place / 2:
        return math.copysign(math.inf, value)
    numbers = [(float(np.array(b, f"u{size}").view(dtype)), b) for b in around]
    finite = [(number, b) for number, b in numbers if math.isfinite(number)]
    return min(finite, key=lambda pair: (abs(Fraction(pair[0]) - Fraction(value)), pair[1] & 1))[0]


@pytest.mark.parametrize("kind", ["fp16", "bf16", "fp32", "fp64"])
def test_special_floats_pass(kind):
    for value in (math.inf, -math.inf):
        assert decode(kind, encode("a", kind, value)) == value
    assert math.isnan(decode(kind, encode("a", kind, math.nan)))


@given(st.integers(-(2**70), 2**70), st.sampled_from(["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"]))
def test_integer_arrives_exactly_or_not_at_all(value, kind):
    info = np.iinfo(kind.replace("i", "int").replace("u", "uint"))
    if info.min <= value <= info.max:
        assert decode(kind, encode("a", kind, value)) == value
    else:
        with pytest.raises(ContractOverflowError):
            encode("a", kind, value)


# -- pointers


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        ("bool", "i1"), ("int8", "i8"), ("uint16", "u16"), ("int64", "i64"), ("float16", "fp16"), ("float64", "fp64"),
        (ml_dtypes.bfloat16, "bf16"), (ml_dtypes.float8_e5m2, "fp8e5"), (ml_dtypes.float8_e4m3fn, "fp8e4nv"),
    ],
)  # fmt: skip
def test_array_is_a_pointer_to_its_first_element(dtype, name):
    array = np.zeros((8, 8), dtype)[3:, 2:]
    pointer = pointer_of("a", array)
    assert pointer.dtype == name
    assert pointer.address == array.__array_interface__["data"][0]
    assert pointer.device == "host"
    assert pointer.tensor is array


def test_alignment_is_judged_by_the_address():
    whole = np.zeros(64, "f4")
    offset = (-whole.__array_interface__["data"][0] % 16) // 4
    assert one(whole[offset:]).divisible == {(0,)}
    assert one(whole[offset + 1 :]).divisible == set()
    assert one(whole[offset + 4 :]).divisible == {(0,)}


@pytest.mark.parametrize("dtype", [">f4", ">i8", "O", "c8", "M8[s]", "S4", [("x", "f4")]])
def test_foreign_element_type_is_refused(dtype):
    with pytest.raises(ContractTypeError) as caught:
        one(np.zeros(4, dtype))
    assert caught.value.clause == "ARG-3"
    assert caught.value.subject == "argument 'a' of 'kernel'"


def test_read_only_array_needs_a_parameter_declared_const():
    array = np.broadcast_to(np.zeros(4, "f4"), (4,))
    with pytest.raises(ContractValueError, match="read-only"):
        one(array)
    assert one(array, "tl.const").types == {"a": "*kfp32"}


def test_declared_pointer_type_is_checked():
    assert one(np.zeros(4, "f4"), "*fp32").types == {"a": "*fp32"}
    with pytest.raises(ContractTypeError, match=r"declared \*fp32"):
        one(np.zeros(4, "f8"), "*fp32")
    with pytest.raises(ContractTypeError, match="expected a tensor"):
        one(3, "*fp32")


class OnlyDLPack:
    """An array that shows nothing but DLPack, of an older or a newer producer."""

    def __init__(self, array, is_versioned=True):
        self.array = array
        self.is_versioned = is_versioned

    def __dlpack__(self, **kwargs):
        if kwargs and not self.is_versioned:
            raise TypeError("unexpected keyword")
        return self.array.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("is_versioned", [True, False])
def test_dlpack_array_is_taken_without_a_copy(is_versioned):
    array = np.arange(8, dtype="i2")
    pointer = pointer_of("a", OnlyDLPack(array[3:], is_versioned))
    assert pointer.address == array.__array_interface__["data"][0] + 6
    assert (pointer.dtype, pointer.device, pointer.is_read_only) == ("i16", "host", False)


def test_read_only_dlpack_array_is_known_as_such():
    array = np.broadcast_to(np.zeros(4, "f4"), (4,))
    assert pointer_of("a", OnlyDLPack(array)).is_read_only


def test_object_with_data_ptr_is_a_tensor():
    memory = (ctypes.c_float * 4)()

    class Tensor:
        dtype = "float32"

        def data_ptr(self):
            return ctypes.addressof(memory)

    pointer = pointer_of("a", Tensor())
    assert (pointer.address, pointer.device) == (ctypes.addressof(memory), "any")


# -- structure


def test_tuples_are_taken_apart():
    point = collections.namedtuple("point", "x y")
    array = np.zeros(4, "f4")
    result = one((array, point(1, 2.5), (None, 16)))
    assert result.types["a"] == ("*fp32", ("constexpr", "fp32"), ("constexpr", "i32"))
    assert type(result.types["a"][1]) is point
    assert result.constants == {(0, 1, 0): 1, (0, 2, 0): None}
    assert (0, 2, 1) in result.divisible
    assert [leaf.kind for leaf in result.leaves] == ["*fp32", "fp32", "i32"]


def test_item_of_a_tuple_is_named_in_an_error():
    with pytest.raises(ContractTypeError) as caught:
        one((1, (2, "text")))
    assert caught.value.subject == "item 1 of item 1 of argument 'a' of 'kernel'"


def test_constexpr_is_a_constant_of_the_binary():
    def kernel(a, B: "tl.constexpr", C: "tl.constexpr" = 5):  # noqa: F821
        pass

    result = classified(kernel, 7, B=np.int64(128))
    assert result.types == {"a": "i32", "B": "constexpr", "C": "constexpr"}
    assert result.constants == {(1,): 128, (2,): 5}
    assert type(result.constants[1,]) is int


@pytest.mark.parametrize("value", [object(), np.array([None]), iter([]), lambda: 1])
def test_constexpr_without_an_identity_is_refused(value):
    with pytest.raises(ContractTypeError) as caught:
        one(value, "tl.constexpr")
    assert caught.value.clause == "ARG-3"


@pytest.mark.parametrize("value", ["text", object(), [1], {"a": 1}, 1j, b"bytes", range(3)])
def test_value_that_is_no_argument_is_refused_by_name(value):
    with pytest.raises(ContractError) as caught:
        one(value)
    assert isinstance(caught.value, TypeError)
    assert caught.value.clause == "ARG-3"
    assert caught.value.subject == "argument 'a' of 'kernel'"


@given(st.integers(-(2**70), 2**70), st.sampled_from(["fp16", "bf16", "fp32", "fp64"]))
def test_integer_for_a_float_is_rounded_once(value, kind):
    from fractions import Fraction

    step = Fraction(2) ** max(0, abs(value).bit_length() - {"fp16": 11, "bf16": 8, "fp32": 24, "fp64": 53}[kind])
    due = int(round(Fraction(value) / step) * step)  # Python's round is to even
    if kind == "fp16" and abs(due) > 65504:
        with pytest.raises(ContractOverflowError):
            encode("a", kind, value)
    else:
        assert decode(kind, encode("a", kind, value)) == due
