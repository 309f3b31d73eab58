"""SPIR-V words: what a module declares and what is dropped for the CPU, on modules made here word by word."""

import struct

import pytest

from gridpact.errors import BackendError
from gridpact.spirv import entry_of, for_cpu

HEADER = [0x07230203, 0x00010400, 0, 100, 0]


def instruction(opcode, *operands):
    return [(len(operands) + 1) << 16 | opcode, *operands]


def string(text):
    raw = text.encode() + b"\0"
    raw += b"\0" * (-len(raw) % 4)
    return struct.unpack(f"<{len(raw) // 4}I", raw)


def module(*instructions):
    words = [*HEADER, *(word for each in instructions for word in each)]
    return struct.pack(f"<{len(words)}I", *words)


ENTRY = instruction(15, 6, 10, *string("kernel"))  # OpEntryPoint Kernel %10
TYPES = [
    instruction(19, 1),  # void
    instruction(21, 2, 32, 0),  # i32
    instruction(21, 3, 8, 0),  # i8
    instruction(22, 4, 64),  # f64
    instruction(32, 5, 5, 3),  # global i8*
    instruction(32, 6, 4, 3),  # local i8*
    instruction(20, 7),  # bool
]


def kernel(*types):
    return module(
        instruction(17, 6), ENTRY, *TYPES, instruction(33, 8, 1, *types), instruction(54, 1, 10, 0, 8), instruction(56)
    )


def test_parameters_are_read_from_the_module():
    entry = entry_of(kernel(5, 2, 3, 4, 7, 6))
    assert entry.name == "kernel"
    assert entry.parameters == (0, 4, 1, 8, 1, 0)
    assert entry.has_local
    assert not entry.has_inline_assembly


def test_kernel_without_local_memory_has_none():
    assert not entry_of(kernel(5, 2)).has_local
    assert entry_of(kernel()).parameters == ()


def test_inline_assembly_is_seen():
    asm = module(
        instruction(17, 5606), ENTRY, *TYPES, instruction(33, 8, 1), instruction(54, 1, 10, 0, 8), instruction(56)
    )
    assert entry_of(asm).has_inline_assembly


def test_only_calls_of_functions_that_stay_are_seen():
    def calling(control):
        helper = [instruction(54, 1, 12, control, 8), instruction(248, 23), instruction(56)]
        body = [instruction(54, 1, 10, 0, 8), instruction(248, 20), instruction(57, 1, 24, 12), instruction(56)]
        return module(ENTRY, *TYPES, instruction(33, 8, 1), *helper, *body)

    assert not entry_of(calling(0)).has_calls  # a function of the device's library
    assert not entry_of(calling(1)).has_calls
    assert entry_of(calling(2)).has_calls  # DontInline


def test_only_what_the_cpu_refuses_is_dropped():
    kept = [instruction(17, 6), instruction(17, 5619), ENTRY, instruction(16, 10, 35, 32)]
    dropped = [instruction(17, 5892), instruction(16, 10, 5893, 128, 1, 1)]
    assert for_cpu(module(kept[0], dropped[0], *kept[1:], dropped[1])) == module(*kept)
    assert for_cpu(module(*kept)) == module(*kept)


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"abc",
        b"\0" * 64,
        module(ENTRY)[:-4],
        module([0 << 16 | 17, 6]),
        module([9 << 16 | 17, 6]),
        module(instruction(17, 6)),
    ],
)
def test_what_is_no_module_is_refused(damaged):
    with pytest.raises(BackendError):
        entry_of(damaged)
