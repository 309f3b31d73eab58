"""SPIR-V at the level of its words: what a module declares, the module without what a CPU runtime refuses, its code.

Numbers are those of the SPIR-V specification 1.6 (sections 3.31 Capability, 3.6 Execution Mode, 3.49 Instructions)
and of the registered extensions of Intel.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gridpact.errors import BackendError

__all__ = ["Accesses", "Entry", "accesses_of", "code_of", "entry_of", "for_cpu"]

_MAGIC: Final = 0x07230203
_HEADER_WORDS: Final = 5

# Instructions, by opcode.
_EXTENDED_IMPORT, _EXTENDED, _ENTRY_POINT, _EXECUTION_MODE, _CAPABILITY = 11, 12, 15, 16, 17
_TYPE_BOOL, _TYPE_INT, _TYPE_FLOAT, _TYPE_VECTOR, _TYPE_POINTER, _TYPE_FUNCTION = 20, 21, 22, 23, 32, 33
_FUNCTION, _FUNCTION_CALL, _LOAD, _STORE, _DECORATE = 54, 57, 61, 62, 71
# OpSourceContinued, OpSource, OpSourceExtension, OpName, OpMemberName, OpString, OpLine, OpNoLine, OpModuleProcessed.
_DEBUG: Final = frozenset({2, 3, 4, 5, 6, 7, 8, 317, 330})

_ASM_INTEL: Final = 5606
_DONT_INLINE: Final = 2  # function control
# Intel's KernelAttributesINTEL and its MaxWorkgroupSizeINTEL: the CPU runtime refuses modules that declare them.
# Nothing then checks the work-group size, so the launcher has to.
_CPU_REFUSES_CAPABILITY: Final = 5892
_CPU_REFUSES_MODE: Final = 5893
_WORKGROUP, _CROSS_WORKGROUP = 4, 5  # storage classes: local memory, global memory
_LINKAGE: Final = 41  # decoration: a name that other modules know


@dataclass(frozen=True)
class Entry:
    """The kernel of a module.

    Attributes
    ----------
    name
        As `clCreateKernel` wants it.
    parameters
        One entry a parameter, in order: 0 for a pointer, else the size of the scalar in bytes.
    has_local
        Whether the last parameter is a pointer to local memory.
    has_inline_assembly
        Whether the module carries assembly text.
    has_calls
        Whether it calls functions that are declared not to be inlined.
    """

    name: str
    parameters: tuple[int, ...]
    has_local: bool
    has_inline_assembly: bool
    has_calls: bool


def _words(module: bytes) -> array[int]:
    words = array("I")
    if len(module) % 4 or len(module) < 4 * _HEADER_WORDS:
        raise BackendError("SPIR-V", "reading its words", f"{len(module)} bytes are no module")
    words.frombytes(module)
    if words[0] != _MAGIC:
        raise BackendError("SPIR-V", "reading its words", f"it begins with {words[0]:#x}")
    return words


def _instructions(words: array[int]) -> Iterator[tuple[int, int, int]]:
    """Give opcode, index of the first word, index after the last."""
    at = _HEADER_WORDS
    while at < len(words):
        count = words[at] >> 16
        if not count or at + count > len(words):
            raise BackendError("SPIR-V", "reading its words", f"instruction at word {at} is cut off")
        yield words[at] & 0xFFFF, at, at + count
        at += count


def for_cpu(module: bytes) -> bytes:
    """Give a module without the declarations that the CPU runtime refuses; the rest is unchanged."""
    words = _words(module)
    kept = words[:_HEADER_WORDS]
    for opcode, begin, end in _instructions(words):
        if opcode == _CAPABILITY and words[begin + 1] == _CPU_REFUSES_CAPABILITY:
            continue
        if opcode == _EXECUTION_MODE and words[begin + 2] == _CPU_REFUSES_MODE:
            continue
        kept.extend(words[begin:end])
    return kept.tobytes()


def entry_of(module: bytes) -> Entry:
    """Read the module's kernel: its parameters as the module itself declares them, and what it is made of."""
    words = _words(module)
    sizes: dict[int, int] = {}  # type -> bytes, 0 for a pointer
    is_local: set[int] = set()
    signatures: dict[int, list[int]] = {}  # function type -> types of its parameters
    types: list[int] | None = None
    is_kept: set[int] = set()  # functions that must not be inlined
    called: set[int] = set()
    entry, name, has_asm = -1, "", False
    for opcode, begin, end in _instructions(words):
        first = words[begin + 1] if end > begin + 1 else 0
        if opcode == _CAPABILITY:
            has_asm |= first == _ASM_INTEL
        elif opcode == _ENTRY_POINT:
            entry = words[begin + 2]
            name = words[begin + 3 : end].tobytes().split(b"\0", 1)[0].decode()
        elif opcode == _TYPE_BOOL:
            sizes[first] = 1
        elif opcode in (_TYPE_INT, _TYPE_FLOAT):
            sizes[first] = words[begin + 2] // 8
        elif opcode == _TYPE_POINTER:
            sizes[first] = 0
            if words[begin + 2] == _WORKGROUP:
                is_local.add(first)
        elif opcode == _TYPE_FUNCTION:
            signatures[first] = list(words[begin + 3 : end])
        elif opcode == _FUNCTION:
            if words[begin + 3] & _DONT_INLINE:
                is_kept.add(words[begin + 2])
            if words[begin + 2] == entry:
                types = signatures.get(words[begin + 4])
        elif opcode == _FUNCTION_CALL:
            called.add(words[begin + 3])
    if types is None:
        raise BackendError("SPIR-V", "reading its entry point", "there is none")
    if any(kind not in sizes for kind in types):
        raise BackendError("SPIR-V", "reading its parameters", f"{name!r} has one of no known type")
    is_last_local = bool(types) and types[-1] in is_local
    return Entry(name, tuple(sizes[kind] for kind in types), is_last_local, has_asm, bool(called & is_kept))


def code_of(module: bytes) -> list[tuple[int, ...]]:
    """Give each instruction, as opcode and operands, without what only names things or tells where they come from."""
    words = _words(module)
    code, debug, entry = [], -1, b""
    for opcode, begin, end in _instructions(words):
        if opcode == _EXTENDED_IMPORT and b"DebugInfo" in _text(words[begin + 2 : end]):
            debug = words[begin + 1]
        elif opcode == _ENTRY_POINT:
            entry = _text(words[begin + 3 : end])
            skipped = len(entry) // 4 + 1  # words of the name, which ends with a zero
            code.append((opcode, *words[begin + 1 : begin + 3], *words[begin + 3 + skipped : end]))
        elif opcode == _DECORATE and words[begin + 2] == _LINKAGE and _text(words[begin + 3 : end]) == entry:
            continue
        elif opcode not in _DEBUG and not (opcode == _EXTENDED and words[begin + 3] == debug):
            code.append((opcode, *words[begin + 1 : end]))
    return code


def _text(words: array[int]) -> bytes:
    """Give a string of a module, which ends with a zero."""
    return words.tobytes().split(b"\0", 1)[0]


Accesses = Counter[int]
"""Bits that one access moves -> how many instructions do."""


def accesses_of(module: bytes) -> tuple[Accesses, Accesses]:
    """Count loads from and stores to global memory by the bits of one access of a work-item."""
    words = _words(module)
    bits: dict[int, int] = {}  # type -> size
    pointees: dict[int, int] = {}  # type of pointers to global memory -> bits of what they point to
    pointers: dict[int, int] = {}  # such a pointer -> the same
    loads, stores = Accesses(), Accesses()
    for opcode, begin, end in _instructions(words):
        first, second, third = (*words[begin + 1 : end], -1, -1, -1)[:3]
        if opcode in (_TYPE_INT, _TYPE_FLOAT):
            bits[first] = second
        elif opcode == _TYPE_VECTOR:
            bits[first] = bits.get(second, 0) * third
        elif opcode == _TYPE_POINTER:
            bits[first] = 64
            if second == _CROSS_WORKGROUP:
                pointees[first] = bits.get(third, 0)
        elif opcode == _STORE:
            if first in pointers:
                stores[pointers[first]] += 1
        elif first in pointees and opcode >= _FUNCTION:  # what has a result: its type, then the result
            pointers[second] = pointees[first]
        if opcode == _LOAD and third in pointers:
            loads[pointers[third]] += 1
    return loads, stores
