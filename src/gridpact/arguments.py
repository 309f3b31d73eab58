"""Arguments of a launch: bound by Python's rules, then classified by type and specialization class, then encoded.

Each leaf of an argument (tuples are taken apart) is a constant of the binary, or a value with a type and the 64 bits
in which a launcher finds it, or a pointer. A number that does not fit its type is refused here, before anything is
compiled.

Type names are Triton's: `i1 i8 ... u64 fp16 bf16 fp32 fp64`, `*T` for a pointer, `*kT` for a pointer to constants.
"""

from __future__ import annotations

import ctypes
import inspect
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any, Final, TypeAlias

import numpy as np

from gridpact.errors import (
    ContractOverflowError,
    ContractTypeError,
    ContractValueError,
    UnsupportedError,
)
from gridpact.identity import Typed, typed
from gridpact.state import is_constexpr, jitted_function, source_of
from gridpact.stream import Exported, TorchCurrent

__all__ = [
    "CLASSES",
    "SIZES",
    "Classified",
    "Leaf",
    "Parameter",
    "Path",
    "Pointer",
    "Signature",
    "TypeTree",
    "check_writable",
    "classes_of",
    "classify",
    "decode",
    "encode",
    "number_of",
    "read_by",
    "short_dtype",
    "stand_ins",
]

Path: TypeAlias = tuple[int, ...]
TypeTree: TypeAlias = Any  # a type name, or a (named) tuple of type trees

ALIGNMENT: Final = 16  # bytes, and the divisor of integers, of the one alignment class that Triton has

SIZES: Final[dict[str, int]] = {
    "i1": 1, "i8": 1, "u8": 1, "i16": 2, "u16": 2, "i32": 4, "u32": 4, "i64": 8, "u64": 8,
    "fp16": 2, "bf16": 2, "fp32": 4, "fp64": 8,
}  # fmt: skip
"""Scalar type -> size in bytes, as kernels take it."""

# Names of element types, in NumPy, ml_dtypes, torch and Triton -> Triton's short name.
_DTYPES: Final[dict[str, str]] = {
    "bool": "i1", "int1": "i1", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64",
    "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
    "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64",
    "float8_e5m2": "fp8e5", "float8_e4m3fn": "fp8e4nv", "float8_e4m3b11fnuz": "fp8e4b15",
    "float8_e5m2fnuz": "fp8e5b16", "float8_e4m3fnuz": "fp8e4b8",
    **{name: name for name in (*SIZES, "fp8e5", "fp8e4nv", "fp8e4b15", "fp8e5b16", "fp8e4b8")},
}  # fmt: skip


# ---------------------------------------------------------------------------------------------------- parameters


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel, as its signature declares it.

    Attributes
    ----------
    is_constexpr
        Its value is a constant of the binary.
    is_const
        What it points to is not written.
    declared
        Type name that its annotation gives, or "".
    is_specialized, is_alignment_specialized
        Whether its value may choose among binaries (equal to 1, divisible by 16).
    """

    name: str
    is_constexpr: bool = False
    is_const: bool = False
    declared: str = ""
    is_specialized: bool = True
    is_alignment_specialized: bool = True


CLASSES: Final[Mapping[str, str]] = {
    "each value": "the value itself: it is compiled in",
    "None": "that there is none: `is None` holds while it is compiled",
    "equal to 1": "the value 1: it is compiled in, for strides above all",
    "divisible by 16": "an address, or a number, that 16 divides: wide loads and stores, less arithmetic",
    "any": "nothing but its type",
}
"""Specialization class of an argument -> what a binary may assume of it. All backends have the same: Triton's one
alignment fact is 16 bytes; whether it changes the machine code is each backend's own affair (`gridpact.variants`)."""


def classes_of(parameter: Parameter) -> tuple[str, ...]:
    """Give the classes of a parameter: each type of an argument has a binary for each of these (SPEC-2).

    A type is `*T` by its elements; for integers `i32`, or `i64` and `u64` where the number is too large for it; `fp32`
    or `i1`; or the declared one.
    """
    if parameter.is_constexpr:
        return ("each value",)
    classes = ["any"]
    if parameter.is_specialized and parameter.is_alignment_specialized and parameter.declared[:2] not in ("fp", "bf"):
        classes.insert(0, "divisible by 16")
    if parameter.is_specialized and not parameter.declared:
        classes.insert(0, "equal to 1")
    if not parameter.declared or parameter.declared.startswith("*"):
        classes.insert(0, "None")
    return tuple(classes)


def stand_ins(parameter: Parameter, value: object) -> list[object]:
    """Give a value of each class that arguments of this one's type may be in; itself, where there is one class.

    Parameters
    ----------
    value
        A tensor, or a number; its type and width, owner and device stay.
    """
    pointer = pointer_of(f"argument {parameter.name!r}", value)
    classes = classes_of(parameter)
    if pointer is not None:
        aligned = pointer.address - pointer.address % ALIGNMENT
        return [
            replace(pointer, address=aligned + beyond)
            for name, beyond in (("divisible by 16", 0), ("any", ALIGNMENT // 2))
            if name in classes
        ]
    if isinstance(value, np.integer):
        value = value.item()
    if not isinstance(value, int) or isinstance(value, bool) or parameter.is_constexpr:
        return [value]
    kind = parameter.declared or _integer_kind(value)
    numbers = {"equal to 1": 1, "divisible by 16": number_of(kind, True), "any": number_of(kind, False)}
    return [number for name, number in numbers.items() if name in classes]


def number_of(kind: str, is_divisible: bool) -> int:
    """Give a number of an integer type that is told from narrower ones by its size, and is divisible by 16 or not."""
    return {"i64": 2**32, "u64": 2**63}.get(kind, 0) + (ALIGNMENT if is_divisible else 2)


def _integer_kind(value: int) -> str:
    return "i32" if -(2**31) <= value < 2**31 else "u64" if 2**63 <= value < 2**64 else "i64"


def _declared_type(annotation: str) -> str:
    text = annotation.replace("triton.language.", "").replace("tl.", "").replace("const ", "").strip("'\" ")
    stars = ""
    while text.startswith("*") or (text.startswith(("pointer<", "pointer_type(")) and text.endswith((">", ")"))):
        text = text[1:] if text[0] == "*" else text[text.index("<" if "<" in text else "(") + 1 : -1]
        stars += "*"
    if stars and text.startswith("k") and text[1:] in _DTYPES:
        text = text[1:]
    known = _DTYPES.get(text, "")
    return stars + known if known and (stars or known in SIZES) else ""


def _annotation_text(annotation: object) -> str:
    if annotation is inspect.Parameter.empty:
        return ""
    if isinstance(annotation, type):
        return annotation.__name__
    return annotation if isinstance(annotation, str) else str(annotation)


class Signature:
    """A kernel's parameters, and the binding of arguments to them by Python's own rules (ARG-1)."""

    def __init__(
        self,
        function: FunctionType,
        do_not_specialize: Iterable[str | int],
        not_on_alignment: Iterable[str | int],
    ) -> None:
        self.kernel = function.__name__
        parameters = list(inspect.signature(function).parameters.values())
        names = [p.name for p in parameters]
        self.names = names
        self.positional = sum(p.kind is not p.KEYWORD_ONLY for p in parameters)  # how many may be given by position
        free = self.named("do_not_specialize", do_not_specialize)
        unaligned = self.named("do_not_specialize_on_alignment", not_on_alignment)
        self.parameters: list[Parameter] = []
        for p in parameters:
            if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                raise UnsupportedError(
                    f"parameter {p.name!r} of {self.kernel!r}",
                    "a kernel's parameters are named one by one",
                    str(p),
                    clause="ARG-1",
                    capability="variadic_parameters",
                )
            text = _annotation_text(p.annotation)
            is_constexpr = "constexpr" in text
            is_const = ("const" in text and not is_constexpr) or text.strip("'\" ").startswith("*k")
            if is_constexpr and p.name in free | unaligned:
                rule = "a constexpr has a binary for each of its values, which cannot be switched off"
                remedy = "Leave it out, or pass it as a number."
                raise ContractValueError(f"do_not_specialize of {self.kernel!r}", rule, p.name, remedy, "SPEC-2")
            self.parameters.append(
                Parameter(
                    p.name,
                    is_constexpr,
                    is_const,
                    "" if is_constexpr else _declared_type(text),
                    p.name not in free,
                    p.name not in unaligned,
                )
            )
        self._bind = _binder(function, parameters)

    def named(self, switch: str, given: Iterable[str | int]) -> set[str]:
        """Turn names and positions of parameters into names; a misspelt one is refused (SPEC-2)."""
        found = set()
        for entry in given:
            if isinstance(entry, int) and not isinstance(entry, bool) and 0 <= entry < len(self.names):
                found.add(self.names[entry])
            elif isinstance(entry, str) and entry in self.names:
                found.add(entry)
            else:
                from gridpact.metadata import nearest_name

                raise ContractValueError(
                    f"{switch} of {self.kernel!r}",
                    "expected names or positions of parameters",
                    entry,
                    nearest_name(str(entry), self.names),
                    "SPEC-2",
                )
        return found

    def bind(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, object]:
        """Give each parameter its value, defaults included.

        Raises
        ------
        ContractTypeError
            ARG-1, in Python's own words.
        """
        try:
            values = self._bind(*args, **kwargs)
        except TypeError as error:
            wrong = ContractTypeError(f"kernel {self.kernel!r}", "arguments must fit its signature", clause="ARG-1")
            wrong.args = (f"{error} [ARG-1]",)
            raise wrong from None
        return dict(zip(self.names, values, strict=True))


def _binder(function: FunctionType, parameters: list[inspect.Parameter]) -> Callable[..., tuple[object, ...]]:
    """Make a function of the same signature that returns its arguments, so that Python itself binds and complains."""
    scope: dict[str, Any] = {}
    listed: list[str] = []
    kinds = inspect.Parameter
    for i, p in enumerate(parameters):
        before = parameters[i - 1].kind if i else None
        if p.kind is kinds.KEYWORD_ONLY and before is not kinds.KEYWORD_ONLY:
            listed.append("*")
        if p.kind is not kinds.POSITIONAL_ONLY and before is kinds.POSITIONAL_ONLY:
            listed.insert(len(listed) - (listed[-1:] == ["*"]), "/")
        scope[f"default_{i}"] = p.default
        listed.append(p.name if p.default is kinds.empty else f"{p.name}=default_{i}")
    if parameters and parameters[-1].kind is kinds.POSITIONAL_ONLY:
        listed.append("/")
    names = "".join(f"{p.name}, " for p in parameters)
    exec(f"def {function.__name__}({', '.join(listed)}): return ({names})", scope)
    bind: Callable[..., tuple[object, ...]] = scope[function.__name__]
    bind.__qualname__ = function.__qualname__
    return bind


# ------------------------------------------------------------------------------------------------------ pointers


@dataclass(frozen=True)
class Pointer:
    """A tensor as a launch sees it.

    Attributes
    ----------
    dtype
        Element type.
    address
        Of the first element, bytes.
    device
        Who owns the memory: `host`, `cuda:0`, `cuda` or `sycl` where only the backend can tell which device, or `any`
        where the object does not say.
    is_read_only
        Writing to it would be an error.
    tensor
        The object that was passed; it keeps the memory alive and is held until the kernel is complete.
    stream
        What says which stream its library would use; None for other memory.
    export
        What else keeps the memory alive: a DLPack capsule.
    """

    dtype: str
    address: int
    device: str
    is_read_only: bool
    tensor: object
    stream: object = None
    export: object = None


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    ]


class _DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    ]


# DLPack 1.1, dlpack.h: DLDataTypeCode with bits, DLDeviceType, DLPACK_FLAG_BITMASK_READ_ONLY.
_DL_DTYPES: Final = {
    (0, 8): "i8", (0, 16): "i16", (0, 32): "i32", (0, 64): "i64",
    (1, 8): "u8", (1, 16): "u16", (1, 32): "u32", (1, 64): "u64",
    (2, 16): "fp16", (2, 32): "fp32", (2, 64): "fp64", (4, 16): "bf16", (6, 8): "i1",
    (9, 8): "fp8e4b15", (10, 8): "fp8e4nv", (11, 8): "fp8e4b8", (12, 8): "fp8e5", (13, 8): "fp8e5b16",
}  # fmt: skip
_DL_DEVICES: Final = {1: "host", 2: "cuda:{}", 3: "host", 13: "cuda:{}", 14: "oneapi:{}"}
_DL_READ_ONLY: Final = 1


def short_dtype(subject: str, name: object) -> str:
    """Give Triton's short name of an element type, or refuse a type that kernels do not have."""
    short = _DTYPES.get(str(name))
    if short is None:
        raise ContractTypeError(subject, "expected an element type that kernels have", name, clause="ARG-3")
    return short


def _from_numpy(subject: str, array: Any) -> Pointer:
    dtype = array.dtype
    name = short_dtype(subject, dtype.name)
    if not dtype.isnative:
        raise ContractTypeError(
            subject,
            "expected native byte order",
            dtype.str,
            "Convert it with array.astype(array.dtype.newbyteorder('=')).",
            "ARG-3",
        )
    return Pointer(name, array.ctypes.data, "host", not array.flags.writeable, array)


def _from_tensor(subject: str, tensor: Any) -> Pointer:
    """Torch tensors and whatever else has Triton's own duck type, `data_ptr()` and `dtype`."""
    if not hasattr(tensor, "dtype"):
        raise ContractTypeError(subject, "expected a tensor with an element type", tensor, clause="ARG-3")
    name = short_dtype(subject, str(tensor.dtype).rpartition(".")[2])
    if getattr(tensor, "is_conj", bool)() or getattr(tensor, "is_neg", bool)():
        raise ContractValueError(
            subject, "expected stored values, not a lazy view", tensor, "Call .resolve_neg() on it.", "ARG-3"
        )
    device = getattr(tensor, "device", None)
    if device is None:
        kind, owner = "", "any"
    else:
        kind = getattr(device, "type", str(device))
        index = getattr(device, "index", None) or 0
        owner = {"cpu": "host", "xpu": "sycl"}.get(kind) or f"{kind}:{index}"
    try:
        address = tensor.data_ptr()
    except RuntimeError as error:  # sparse and fake tensors have no storage
        raise ContractTypeError(subject, "expected a tensor with storage", tensor, clause="ARG-3") from error
    # Freed storage, a fake or a nested tensor; a meta tensor is refused for its device.
    if not address and not owner.startswith("meta") and getattr(tensor, "numel", int)():
        _refuse_null(subject, tensor)
    stream = TorchCurrent(kind, index) if kind in ("cuda", "xpu") else None
    return Pointer(name, address, owner, False, tensor, stream)


def _refuse_null(subject: str, tensor: object) -> None:
    """Refuse a tensor that has elements and no memory: a kernel would follow the null pointer."""
    kind = type(tensor).__name__
    raise ContractValueError(subject, f"expected memory behind its elements, its address is 0 ({kind})", clause="ARG-3")


def _from_usm(subject: str, memory: Any) -> Pointer:
    interface = memory.__sycl_usm_array_interface__
    address, is_writable = interface["data"]  # dpctl 0.22 says True for writable memory, unlike the NumPy interface
    dtype = np.dtype(interface["typestr"])
    name = short_dtype(subject, dtype.name)
    address += interface.get("offset", 0) * dtype.itemsize
    return Pointer(name, address, "sycl", not is_writable, memory, interface.get("syclobj"))


def _from_cuda_array(subject: str, array: Any) -> Pointer:
    interface = array.__cuda_array_interface__
    address, is_read_only = interface["data"]
    dtype = np.dtype(interface["typestr"])
    name = short_dtype(subject, dtype.name)
    stream = interface.get("stream")  # version 3: None says that there is nothing to wait for
    exported = None if stream is None else Exported(stream, array)
    return Pointer(name, address, "cuda", bool(is_read_only), array, exported)


def _from_dlpack(subject: str, array: Any) -> Pointer:
    try:
        capsule = array.__dlpack__(max_version=(1, 0))
    except TypeError:  # a producer from before DLPack 1.0
        capsule = array.__dlpack__()
    read = ctypes.pythonapi.PyCapsule_GetPointer
    read.restype, read.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    is_read_only = False
    if '"dltensor_versioned"' in repr(capsule):
        managed = _DLManagedTensorVersioned.from_address(read(capsule, b"dltensor_versioned"))
        tensor, is_read_only = managed.tensor, bool(managed.flags & _DL_READ_ONLY)
    else:
        tensor = _DLTensor.from_address(read(capsule, b"dltensor"))
    name = _DL_DTYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if name is None:
        got = f"DLPack type code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes"
        raise ContractTypeError(subject, "expected an element type that kernels have", got, clause="ARG-3")
    device = _DL_DEVICES.get(tensor.device_type, f"DLPack device {tensor.device_type}")
    shape = (ctypes.c_int64 * tensor.ndim).from_address(tensor.shape) if tensor.ndim else ()
    if not tensor.data and math.prod(shape):
        _refuse_null(subject, array)
    address = (tensor.data or 0) + tensor.byte_offset
    # The capsule was not consumed: its destructor gives the tensor back once the launch lets go of it.
    return Pointer(name, address, device.format(tensor.device_id), is_read_only, array, None, capsule)


def _reader(kind: type) -> Callable[[str, Any], Pointer] | None:
    """Choose how tensors of a type are read; decided once per type."""
    if issubclass(kind, np.ndarray):
        return _from_numpy
    if hasattr(kind, "__sycl_usm_array_interface__"):
        return _from_usm
    if hasattr(kind, "data_ptr"):
        return _from_tensor
    if hasattr(kind, "__cuda_array_interface__"):
        return _from_cuda_array
    if hasattr(kind, "__dlpack__"):
        return _from_dlpack
    return None


def read_by(kind: type) -> str:
    """Name the way in which tensors of a type are read: `numpy`, `tensor` for Triton's own duck type, or another."""
    read = _reader(kind)
    return "" if read is None else read.__name__.removeprefix("_from_")


_readers: dict[type, Callable[[str, Any], Pointer] | None] = {}


def pointer_of(subject: str, value: object) -> Pointer | None:
    """Read a tensor without a copy; None if the value is no tensor of a known kind.

    Raises
    ------
    ContractError
        ARG-3: a tensor that no kernel can take (element type, byte order, lazy view).
    """
    kind = type(value)
    if kind is Pointer:  # a stand-in of warmup
        return value  # type: ignore[return-value]
    try:
        read = _readers[kind]
    except KeyError:
        read = _readers[kind] = _reader(kind)
    return None if read is None else read(subject, value)


# ------------------------------------------------------------------------------------------------------- scalars


def _integer_range(kind: str) -> tuple[int, int]:
    bits = int(kind[1:])
    return (0, 2**bits - 1) if kind[0] == "u" or bits == 1 else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


_RANGES: Final = {kind: _integer_range(kind) for kind in SIZES if kind[0] in "iu"}
# Significand bits with the hidden one, and the exponent of the last place of subnormals.
_FLOATS: Final = {"fp16": (11, -24, 65504.0), "bf16": (8, -133, 3.3895313892515355e38)}
_SIGNIFICANDS: Final = {"fp16": 11, "bf16": 8, "fp32": 24, "fp64": 53}  # bits, with the hidden one
_FLOAT_FORMATS: Final = {"fp16": "<e", "fp32": "<f", "fp64": "<d"}


def encode(subject: str, kind: str, value: Any) -> int:
    """Give the bits of a scalar in its type, in the low bytes of an unsigned 64-bit integer.

    Raises
    ------
    ContractOverflowError
        ARG-2: an integer outside its type, or a finite float that would become infinite.
    ContractTypeError
        ARG-2: not a number of that kind.
    """
    if kind in _RANGES:
        if not isinstance(value, int):
            raise ContractTypeError(subject, f"declared {kind}, expected an int", value, clause="ARG-2")
        low, high = _RANGES[kind]
        if not low <= value <= high:
            raise ContractOverflowError(subject, f"declared {kind}, from {low} to {high}", value, clause="ARG-2")
        return int(value) & ((1 << 8 * SIZES[kind]) - 1)
    if not isinstance(value, (int, float)):
        raise ContractTypeError(subject, f"declared {kind}, expected a float", value, clause="ARG-2")
    try:
        return _encode_float(kind, _float_of(kind, value))
    except OverflowError:
        raise ContractOverflowError(subject, f"declared {kind}, and too large for it", value, clause="ARG-2") from None


def _float_of(kind: str, value: int | float) -> float:
    """Give an int as a float of no more bits than its type holds, so that no second rounding follows."""
    excess = abs(value).bit_length() - _SIGNIFICANDS[kind] if isinstance(value, int) else 0
    if excess <= 0:
        return float(value)
    whole, rest, half = abs(int(value)) >> excess, abs(int(value)) & ((1 << excess) - 1), 1 << (excess - 1)
    whole += rest > half or (rest == half and whole & 1)
    return math.copysign(math.ldexp(float(whole), excess), value)


def _encode_float(kind: str, value: float) -> int:
    """Round once, to nearest even; OverflowError if a finite value would become infinite."""
    if kind == "bf16":
        if math.isfinite(value):
            bits, last, largest = _FLOATS["bf16"]
            place = max(math.frexp(value)[1] - bits, last)
            rounded = math.ldexp(round(math.ldexp(value, -place)), place)
            if abs(rounded) > largest:
                raise OverflowError
            value = math.copysign(rounded, value)
        return int.from_bytes(struct.pack("<f", value)[2:], "little")
    packed = struct.pack(_FLOAT_FORMATS[kind], value)  # rounds to nearest even, raises OverflowError
    return int.from_bytes(packed, "little")


def decode(kind: str, bits: int) -> int | float | bool:
    """Give the value that bits made by `encode` stand for."""
    if kind == "i1":
        return bool(bits & 1)
    size = SIZES[kind]
    raw = bits.to_bytes(8, "little")[:size]
    if kind in _RANGES:
        return int.from_bytes(raw, "little", signed=kind[0] == "i")
    if kind == "bf16":
        return float(struct.unpack("<f", b"\0\0" + raw)[0])
    return float(struct.unpack(_FLOAT_FORMATS[kind], raw)[0])


# ------------------------------------------------------------------------------------------------ classification


@dataclass
class Leaf:
    """One value that a kernel takes: its type, the bits of a scalar or the address of a pointer, and the tensor."""

    subject: str
    kind: str
    bits: int
    pointer: Pointer | None = None


@dataclass
class Classified:
    """The arguments of one launch, as identity, compiler and launcher need them.

    Attributes
    ----------
    types
        Parameter -> type tree; `constexpr` for constants.
    constants
        Path -> value compiled in. A path is the parameter's index, then indices into tuples.
    divisible
        Paths of pointers and integers divisible by 16.
    leaves
        What the kernel takes at run time, in its order.
    facts
        The part of the key that arguments make: parameter -> typed class.
    has_descriptors
        Tensor descriptors are among them, whose leaves are their tensors: nothing here packs them (`triton.hand_over`).
    """

    types: dict[str, TypeTree] = field(default_factory=dict)
    constants: dict[Path, Any] = field(default_factory=dict)
    divisible: set[Path] = field(default_factory=set)
    leaves: list[Leaf] = field(default_factory=list)
    facts: list[tuple[str, Typed]] = field(default_factory=list)
    has_descriptors: bool = False

    def pointers(self) -> Iterator[tuple[str, Pointer]]:
        """Give each pointer with the subject that errors call it."""
        for leaf in self.leaves:
            if leaf.pointer is not None:
                yield leaf.subject, leaf.pointer


def classify(signature: Signature, bound: Mapping[str, object]) -> Classified:
    """Sort the arguments of a launch into constants and typed values.

    Raises
    ------
    ContractError
        ARG-2 a number that does not fit; ARG-3 a value that is no argument, a read-only tensor for a parameter that
        is not declared `tl.const`.
    """
    result = Classified()
    for index, parameter in enumerate(signature.parameters):
        subject = f"argument {parameter.name!r} of {signature.kernel!r}"
        tree, fact = _classify(result, subject, parameter, (index,), bound[parameter.name])
        result.types[parameter.name] = tree
        result.facts.append((f"{'constexpr' if parameter.is_constexpr else 'argument'} {parameter.name}", fact))
    return result


def _classify(into: Classified, subject: str, parameter: Parameter, path: Path, value: Any) -> tuple[TypeTree, Typed]:
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        value = value.item()
    if parameter.is_constexpr or value is None:
        return _constant(into, subject, path, value)
    if isinstance(value, (bool, int, float)):
        return _scalar(into, subject, parameter, path, value)
    if type(value).__name__ == "TensorDescriptor" and type(value).__module__.startswith("triton."):
        into.has_descriptors = True
        value = value.base
    pointer = pointer_of(subject, value)
    if pointer is not None:
        return _pointer(into, subject, parameter, path, pointer)
    if isinstance(value, tuple):
        item = Parameter(parameter.name)  # a declared type is for the whole parameter, not for a tuple's items
        parts = [_classify(into, f"item {i} of {subject}", item, (*path, i), v) for i, v in enumerate(value)]
        make: Callable[..., Any] = type(value)._make if hasattr(value, "_make") else tuple
        fields = getattr(value, "_fields", None)  # a kernel reads items by them
        name = "tuple" if fields is None else f"{type(value).__qualname__}({', '.join(fields)})"
        return make([tree for tree, _ in parts]), (name, *(fact for _, fact in parts))
    if jitted_function(value) is not None or type(value).__module__.startswith("triton.language"):
        return _constant(into, subject, path, value)
    raise ContractTypeError(
        subject,
        "expected a tensor, a number, a bool, None, a tuple of these, a dtype or a jitted function",
        value,
        "Annotate the parameter as tl.constexpr to compile the value in." if _has_identity(value) else "",
        "ARG-3",
    )


def _has_identity(value: object) -> bool:
    try:
        typed(value)
    except TypeError:
        return False
    return True


def _constant(into: Classified, subject: str, path: Path, value: Any) -> tuple[TypeTree, Typed]:
    function = jitted_function(value)
    if is_constexpr(value):
        value = value.value
    if function is not None:
        value = source_of(value)
    try:
        fact = typed(value)
    except TypeError:
        raise ContractTypeError(
            subject,
            "a constexpr is a jitted function, or a number, string, dtype, None or container or plain object of these",
            value,
            clause="ARG-3",
        ) from None
    into.constants[path] = value
    return "constexpr", ("constexpr", fact)


def _scalar(
    into: Classified, subject: str, parameter: Parameter, path: Path, value: bool | int | float
) -> tuple[TypeTree, Typed]:
    kind = parameter.declared
    if kind.startswith("*"):
        raise ContractTypeError(subject, f"declared {kind}, expected a tensor", value, clause="ARG-3")
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if not kind:
        if is_integer:
            if value == 1 and parameter.is_specialized:
                return _constant(into, subject, path, 1)
            if not -(2**63) <= value < 2**64:
                raise ContractOverflowError(
                    subject, "expected an int of 64 bits, from -2**63 to 2**64 - 1", value, clause="ARG-2"
                )
            kind = _integer_kind(int(value))
        else:
            kind = "i1" if isinstance(value, bool) else "fp32"
    into.leaves.append(Leaf(subject, kind, encode(subject, kind, value)))
    is_divisible = (
        is_integer
        and kind in _RANGES
        and parameter.is_specialized
        and parameter.is_alignment_specialized
        and value % ALIGNMENT == 0
    )
    if is_divisible:
        into.divisible.add(path)
    return kind, (kind, is_divisible)


def check_writable(subject: str, pointer: Pointer, *, is_const: bool) -> None:
    """Refuse read-only memory for a parameter that the kernel may write through."""
    if pointer.is_read_only and not is_const:
        raise ContractValueError(
            subject,
            "expected memory that may be written, got a read-only tensor",
            remedy="Copy it, or annotate the parameter as tl.const if the kernel only reads it.",
            clause="ARG-3",
        )


def _pointer(
    into: Classified, subject: str, parameter: Parameter, path: Path, pointer: Pointer
) -> tuple[TypeTree, Typed]:
    if parameter.declared and parameter.declared != f"*{pointer.dtype}":
        rule = f"declared {parameter.declared}, expected its elements"
        raise ContractTypeError(subject, rule, f"*{pointer.dtype}", clause="ARG-3")
    check_writable(subject, pointer, is_const=parameter.is_const)
    kind = f"*k{pointer.dtype}" if parameter.is_const else f"*{pointer.dtype}"
    into.leaves.append(Leaf(subject, kind, pointer.address, pointer))
    is_divisible = parameter.is_specialized and parameter.is_alignment_specialized and pointer.address % ALIGNMENT == 0
    if is_divisible:
        into.divisible.add(path)
    return kind, (kind, is_divisible)
