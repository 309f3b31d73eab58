"""SPIR-V at the level of its words: what a module declares, and the module without what a CPU runtime refuses.

Numbers are those of the SPIR-V specification 1.6 (sections 3.31 Capability, 3.6 Execution Mode, 3.49 Instructions)
and of the registered extensions of Intel.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gridpact.errors import BackendError

__all__ = ["Entry", "entry_of", "for_cpu"]

_MAGIC: Final = 0x07230203
_HEADER_WORDS: Final = 5

# Instructions, by opcode.
_ENTRY_POINT, _EXECUTION_MODE, _CAPABILITY = 15, 16, 17
_TYPE_BOOL, _TYPE_INT, _TYPE_FLOAT, _TYPE_POINTER, _TYPE_FUNCTION = 20, 21, 22, 32, 33
_FUNCTION, _FUNCTION_CALL = 54, 57

_ASM_INTEL: Final = 5606
_DONT_INLINE: Final = 2  # function control
# Intel's KernelAttributesINTEL and its MaxWorkgroupSizeINTEL: the CPU runtime refuses modules that declare them.
# Nothing then checks the work-group size, so the launcher has to.
_CPU_REFUSES_CAPABILITY: Final = 5892
_CPU_REFUSES_MODE: Final = 5893
_WORKGROUP: Final = 4  # storage class of local memory


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
