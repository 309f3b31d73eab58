"""Variants of a kernel, one for each class of its arguments, and which of them really differ in machine code.

A launch chooses its binary by which pointers and integers are divisible by 16, and by which integers are 1. Whether
that changes anything is for the compiler and the architecture to say: here each variant is compiled, and its code
compared, without names, places in the source and debug information.

- On CUDA it is `SASS`, the instructions of the cubin with their encoding, by `nvdisasm` of Triton's wheel; `PTX` where
  there is none.
- On AMD it is `AMDGCN`, the assembly before it is linked.
- On Intel it is `SPIR-V`, which is no machine code yet: the driver's compiler decides what becomes of an access.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from gridpact import spirv, toolchain
from gridpact.arguments import ALIGNMENT, Path, TypeTree, classify
from gridpact.asked import Asked, value_of
from gridpact.backends.protocol import Device
from gridpact.errors import LaunchError
from gridpact.plan import compile_asked, resolve_asked
from gridpact.spirv import Accesses

__all__ = ["ALIGNED", "UNALIGNED", "Code", "Variant", "Variants", "code_of", "list_variants", "record"]

ALIGNED: Final = "aligned"
UNALIGNED: Final = "unaligned"
_FEW: Final = 4  # so many integers are also changed one by one


# --------------------------------------------------------------------------------------------------------------- code


@dataclass(frozen=True)
class Code:
    """What a binary runs, without names and places in the source: equal if the device would do the same.

    Attributes
    ----------
    form
        `SASS`, `PTX`, `AMDGCN` or `SPIR-V`.
    text
        One instruction or label a line.
    size
        Bytes; None of PTX, which has no encoding.
    loads, stores
        Of global memory: bits of one access of a thread -> how many instructions there are, however often they run.
        Atomics, and what AMD loads into scalar registers, arguments of the kernel among them, are not counted.
    """

    form: str
    text: str = field(repr=False)
    size: int | None = field(compare=False)
    loads: Accesses = field(compare=False)
    stores: Accesses = field(compare=False)


def code_of(binary: toolchain.Binary) -> Code:
    """Read the code of a compiled kernel."""
    stages, name = binary.asm, binary.metadata.name
    if "spv" in stages:
        module = binary.code
        words = spirv.code_of(module)
        text = "\n".join(" ".join(map(str, instruction)) for instruction in words)
        return Code("SPIR-V", text, 4 * sum(map(len, words)), *spirv.accesses_of(module))
    if "amdgcn" in stages:
        assembly = str(stages["amdgcn"])
        size = sum(map(int, re.findall(r"^; codeLenInByte = (\d+)$", assembly, re.MULTILINE)))
        return _code("AMDGCN", list(_amdgcn_lines(assembly)), size, _amdgcn_access, name)
    lines = _sass_lines(binary.code) if binary.kind == "cubin" else []
    if lines:
        size = _SASS_BYTES * sum(not line.startswith(".") for line in lines)
        return _code("SASS", lines, size, _sass_access, name)
    return _code("PTX", list(_ptx_lines(str(stages["ptx"]))), None, _ptx_access, name)


_Access: TypeAlias = "tuple[bool, int] | None"  # whether it is a store, and its bits


def _code(form: str, lines: list[str], size: int | None, access_of: Callable[[str], _Access], name: str) -> Code:
    accesses = [access for line in lines if (access := access_of(line))]
    loads, stores = (Accesses(bits for is_store, bits in accesses if is_store == wanted) for wanted in (False, True))
    text = re.sub(rf"(?<!\w){re.escape(name)}(?=_param_\d|\W|$)", "KERNEL", "\n".join(lines))
    return Code(form, text, size, loads, stores)


_SASS_BYTES: Final = 16  # of an instruction, since compute capability 7.0


def _sass_lines(cubin: bytes) -> list[str]:
    """Disassemble a cubin; gives nothing where there is no disassembler that knows it."""
    tool = toolchain.disassembler()
    if tool is None:
        return []
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        ran = subprocess.run([tool, "-c", "-hex", file.name], capture_output=True, text=True, check=False)
    lines: list[str] = []
    for line in ran.stdout.splitlines() if ran.returncode == 0 else ():
        if line.startswith(".L_"):
            lines.append(line)
        elif match := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(.*)", line):
            lines.append(" ".join(match[1].split()))
        elif lines and (match := re.match(r"\s+(/\* 0x[0-9a-f]{16} \*/)$", line)):
            lines[-1] += f" {match[1]}"  # the second half of the encoding
    while lines and lines[-1].startswith(("NOP", ".L_")):  # fills up to a whole line of the instruction cache
        lines.pop()
    return lines


def _sass_access(line: str) -> _Access:
    match = re.search(r"\b(LDGSTS|LDG|STG)\b((?:\.\w+)*)", line)  # LDG.E.128.CONSTANT, LDGSTS.E.BYPASS.LTC128B.128
    if match is None:
        return None
    bits = re.search(r"\.[US]?(8|16|64|128|256)\b", match[2])
    return match[1] == "STG", int(bits[1]) if bits else 32


def _amdgcn_lines(assembly: str) -> Iterator[str]:
    for line in assembly.partition(".amdgpu_metadata")[0].splitlines():
        line = " ".join(line.partition(";")[0].split())
        if line.startswith(".LBB") or not line.startswith("."):  # other labels are of debug information
            yield from filter(None, [line])


def _amdgcn_access(line: str) -> _Access:
    match = re.match(r"(?:global|buffer|flat)_(load|store)_(?:lds_)?[us]?(dword|byte|short)(?:x(\d))?", line)
    if match is None:
        return None
    return match[1] == "store", {"dword": 32, "short": 16, "byte": 8}[match[2]] * int(match[3] or 1)


def _ptx_lines(assembly: str) -> Iterator[str]:
    for line in assembly.partition(".section")[0].splitlines():
        line = " ".join(line.partition("//")[0].split())
        if line and not line.startswith((".loc", ".file", "$L__tmp", "$L__func_")):
            yield line


def _ptx_access(line: str) -> _Access:
    if match := re.search(r"\bcp\.async\.c[ag]\.shared\.global\S* \[.*?\], \[.*?\], (\w+)", line):
        return False, 8 * int(match[1], 0)
    match = re.search(r"\b(ld|st)\.(?:[\w:]+\.)*global\b(?:\.[\w:]+)*?(?:\.v(\d))?\.[bsuf](\d+)\b", line)
    return (match[1] == "st", int(match[2] or 1) * int(match[3])) if match else None


# ----------------------------------------------------------------------------------------------------------- variants


@dataclass(frozen=True)
class Variant:
    """One class of arguments, and what was compiled for it.

    Attributes
    ----------
    name
        What differs from the first: `unaligned`, `x unaligned`, `indivisible`, `n indivisible`, `n = 1`, ...
    arguments
        Parameter -> its class, as a signature spells it.
    code
        None if it does not compile.
    error
        What the compiler said then.
    same_as
        Name of the first variant that has the same code; empty for that one itself.
    """

    name: str
    arguments: Mapping[str, str]
    code: Code | None
    error: str
    same_as: str


@dataclass(frozen=True)
class Variants:
    """Variants of a kernel on a target; in the first, `aligned`, every pointer and integer is divisible by 16.

    Attributes
    ----------
    target
        Name of a target or of a device.
    launched
        Name of the variant that the launch itself would run.
    pointers
        Names of those whose alignment chooses among binaries.
    """

    target: str
    variants: tuple[Variant, ...]
    launched: str
    pointers: tuple[str, ...]

    def __getitem__(self, name: str) -> Variant:
        return next(variant for variant in self.variants if variant.name == name)

    @property
    def form(self) -> str:
        """What was compared."""
        return next((variant.code.form for variant in self.variants if variant.code), "nothing")

    @property
    def answer(self) -> str:
        """Say in a line whether alignment changes the code."""
        if not self.pointers:
            return "no pointer chooses among binaries: one serves aligned and unaligned memory"
        before, after = self[ALIGNED], self[UNALIGNED]
        if before.code is None or after.code is None:
            return f"nothing to compare: {after.name if before.code else before.name} does not compile"
        if after.same_as == before.name:
            return f"same {self.form}: aligning {_listed(self.pointers)} is worth nothing here"
        same = {variant.name for variant in self.variants if variant.same_as == before.name}
        alone = [pointer for pointer in self.pointers if f"{pointer} {UNALIGNED}" in same]
        told = f"; aligning {_listed(alone)} beside the others is worth nothing" if alone else ""
        for what in ("loads", "stores"):
            widest, narrower = (max(getattr(code, what), default=0) // 8 for code in (before.code, after.code))
            if widest != narrower:
                return f"aligned and unaligned differ: {widest}-byte {what} become {narrower}-byte ones{told}"
        return f"aligned and unaligned differ, and their widest accesses are of the same size{told}"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def record(variants: Variants) -> dict[str, Any]:
    """Give what was found as JSON has it: widths in bits, sizes in bytes, without the code itself."""
    rows = []
    for variant in variants.variants:
        code = variant.code
        row = {"name": variant.name, "arguments": dict(variant.arguments), "same_as": variant.same_as}
        told = {"size": code.size, "loads": dict(code.loads), "stores": dict(code.stores)} if code else {}
        rows.append({**row, **told, **({"error": variant.error} if variant.error else {})})
    same = {"target": variants.target, "form": variants.form, "launched": variants.launched}
    return {**same, "answer": variants.answer, "variants": rows}


def list_variants(asked: Asked, device: Device, options: Mapping[str, Any] | None = None) -> Variants:
    """Compile the variants of a kernel, and say which of them have the same code. Nothing is launched.

    Parameters
    ----------
    asked
        The kernel and a launch of it, whose types, constants and options are taken.
    device
        What to compile for: an open device, or `plan.platform_of(target).device`.
    options
        Launch options by name, over those of the launch.

    Raises
    ------
    ContractError
        An option that the target has not (META-2, 3).
    UnsupportedError
        The installed Triton cannot compile for the target.
    """
    resolved = resolve_asked(asked, device, options or {})
    classes = dict(_classes(asked))
    same = [name for name, launch in classes.items() if launch.arguments.facts == asked.arguments.facts]
    launched = same[0] if same else "as launched"
    classes.setdefault(launched, asked)
    unaligned = classes.get(UNALIGNED, classes[ALIGNED])
    pointers = sorted(classes[ALIGNED].arguments.divisible - unaligned.arguments.divisible)
    seen: dict[Code, str] = {}
    variants = []
    for name, launch in classes.items():
        try:
            code, error = code_of(compile_asked(launch, device, resolved)), ""
        except LaunchError as failed:
            code, error = None, str(failed)
        first = seen.setdefault(code, name) if code else name
        variants.append(Variant(name, launch.spelled, code, error, "" if first == name else first))
    return Variants(device.name, tuple(variants), launched, tuple(_named(asked, path) for path in pointers))


def _classes(asked: Asked) -> Iterator[tuple[str, Asked]]:
    """Give each class of arguments with its name, as a launch that is of it.

    What can be specialized is told by the classification of launches itself, which heeds what parameters declare.
    """
    kinds = {path: kind for path, kind in _leaves(tuple(asked.arguments.types.values())) if _HAS_CLASSES.match(kind)}
    divisible = {path: value_of("", f"{kind}:{ALIGNMENT}") for path, kind in kinds.items()}
    aligned = _with(asked, divisible)
    yield ALIGNED, aligned

    def undivided(*paths: Path) -> Asked:
        return _with(aligned, {path: value_of("", kinds[path]) for path in paths})

    paths = [path for path in kinds if path in aligned.arguments.divisible]
    for kind, is_pointer, few in ((UNALIGNED, True, len(paths)), ("indivisible", False, _FEW)):
        changed = [path for path in paths if (kinds[path][0] == "*") == is_pointer]
        if changed:
            yield kind, undivided(*changed)
        for path in changed if 1 < len(changed) <= few else ():
            yield f"{_named(asked, path)} {kind}", undivided(path)
    for path, kind in kinds.items():
        one = None if kind[0] == "*" else _with(aligned, {path: 1})
        if one and path in one.arguments.constants:
            yield f"{_named(asked, path)} = 1", one
    for path, value in asked.arguments.constants.items():
        other = _with(aligned, {path: ALIGNMENT}) if type(value) is int and value == 1 else aligned
        if path not in other.arguments.constants:
            yield f"{_named(asked, path)} not 1", other


_HAS_CLASSES: Final = re.compile(r"\*|[iu](8|16|32|64)$")


def _leaves(tree: TypeTree, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """Give each type of a tree, spelled as in a signature, with its path."""
    if isinstance(tree, str):
        yield path, tree.replace("*k", "*")
    else:
        for i, item in enumerate(tree):
            yield from _leaves(item, (*path, i))


def _with(asked: Asked, values: Mapping[Path, object]) -> Asked:
    """Give the launch with other values at these paths."""

    def put(value: Any, path: Path) -> Any:
        if path in values:
            return values[path]
        if not isinstance(value, tuple):
            return value
        items = [put(item, (*path, i)) for i, item in enumerate(value)]
        return type(value)._make(items) if hasattr(value, "_make") else tuple(items)

    bound = {name: put(value, (i,)) for i, (name, value) in enumerate(asked.bound.items())}
    return replace(asked, bound=bound, arguments=classify(asked.kernel.signature, bound))


def _named(asked: Asked, path: Path) -> str:
    return asked.kernel.signature.names[path[0]] + "".join(f"[{i}]" for i in path[1:])
