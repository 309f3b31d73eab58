"""The installed Triton, 3.3 to 3.9, as a compiler without a live driver.

Triton's stages are run one after another by a loop of our own: no driver is asked, none of Triton's caches is used,
nothing is patched. What differs between Triton's versions lives in this file and nowhere else. A kernel is compiled
from its `Source`, so that names mean what Python means by them (Triton 3.3 alone ignores closures).
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

from gridpact.arguments import ALIGNMENT, Classified, TypeTree
from gridpact.errors import BackendError, ContractTypeError, ResourceError, UnsupportedError
from gridpact.identity import Typed, typed
from gridpact.metadata import KernelMetadata
from gridpact.state import Source

__all__ = [
    "Binary",
    "Target",
    "build",
    "chosen_name",
    "compile_kernel",
    "disassembler",
    "environment",
    "facts_of",
    "function_of_triton",
    "hidden_pointers",
    "installed",
    "is_library_function",
    "kernel_metadata",
    "option_defaults",
    "out_of_resources",
    "resolved_options",
]

# Distributions that all install the one top-level package `triton`.
_DISTRIBUTIONS: Final = ("triton", "triton-xpu", "pytorch-triton", "pytorch-triton-xpu", "pytorch-triton-rocm")
# Where Triton keeps its own caches, which are not used here.
_CACHE_SWITCHES: Final = {
    "TRITON_CACHE_DIR",
    "TRITON_HOME",
    "TRITON_DUMP_DIR",
    "TRITON_OVERRIDE_DIR",
    "TRITON_CACHE_MANAGER",
}
# C functions that the device's library has: C99's <math.h> (also with `f`), and what was found by trying.
_LIBRARY_FUNCTION: Final = re.compile(
    "(acosh?|asinh?|atan[2h]?|cbrt|ceil|copysign|cosh?|erfc?|exp2?|expm1|fabs|fdim|floor|fma|fmax|fmin|fmod|frexp|hypot"
    "|ilogb|ldexp|lgamma|log|log10|log1p|log2|logb|lrint|lround|modf|nearbyint|nextafter|pow|remainder|remquo|rint|round"
    "|scalbn|sinh?|sqrt|tanh?|tgamma|trunc)f?|l?l?abs|memcpy|memmove|memset|printf|s?rand"
)
# MLIR contexts and LLVM's global options make no promise about parallel pipelines of one process.
_compiling: Final = threading.RLock()


@dataclass(frozen=True)
class Installed:
    """The one Triton of this environment."""

    distribution: str
    version: tuple[int, int]
    full_version: str


@lru_cache(maxsize=1)
def installed() -> Installed:
    """Find the installed Triton, without importing it.

    Raises
    ------
    UnsupportedError
        No Triton, or two distributions whose files overlay each other.
    """
    found: dict[str, str] = {}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    if not found:
        raise UnsupportedError(
            "toolchain",
            "no Triton is installed",
            remedy="Install gridpact[sycl] for the CPU, or triton for NVIDIA GPUs.",
            capability="triton",
        )
    if len(found) > 1:
        both = " and ".join(f"{name} {version}" for name, version in found.items())
        raise UnsupportedError(
            "toolchain",
            f"{both} overlay each other's files in this environment",
            remedy="Keep one of them per environment: uninstall both, then install the one you want.",
            capability="one_triton",
        )
    ((name, version),) = found.items()
    major, minor = version.split(".")[:2]
    return Installed(name, (int(major), int(minor)), version)


@lru_cache(maxsize=1)
def build() -> str:
    """Give a digest of what compiles: the installed Triton's files, and our own that lead it; a version tells less.

    A file of Triton is told by the checksum that its installer wrote down; one that has none, or was changed since, by
    its size and time.
    """
    found = importlib.metadata.distribution(installed().distribution)
    listed = {str(file.locate()): file for file in found.files or ()}
    record = next((path for path in listed if path.endswith("RECORD")), "")
    _, written = _size_and_time(record)
    spec = importlib.util.find_spec("triton")
    facts: list[object] = []
    for place in spec.submodule_search_locations or () if spec else ():
        for folder, folders, names in os.walk(place, followlinks=True):  # one built in place links its backends
            folders[:] = sorted(name for name in folders if name != "__pycache__")
            for path in (os.path.join(folder, name) for name in sorted(names)):
                changed, file = _size_and_time(path), listed.get(path)
                checksum = file.hash.value if file and file.hash and changed[1] <= written else None
                facts.append((os.path.relpath(path, place), checksum or changed))
    facts += [(own.name, own.read_bytes()) for own in sorted(Path(__file__).parent.glob("*.py"))]
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _size_and_time(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError:  # a link to nowhere
        return 0, 0
    return status.st_size, status.st_mtime_ns


@dataclass(frozen=True)
class Target:
    """What a binary is made for.

    Attributes
    ----------
    backend
        `xpu` (SPIR-V), `cuda` (cubin) or `hip` (hsaco).
    arch
        CUDA: compute capability as an int, 90 for sm_90. HIP: `gfx942`. XPU: device properties as sorted pairs.
    threads_per_warp
        Lanes of one warp (sub-group).
    inlines_all
        Compile `noinline` helpers inline: the CPU's vectoriser aborts the process on calls (sycl-cpu notes).
    """

    backend: str
    arch: int | str | tuple[tuple[str, Any], ...]
    threads_per_warp: int
    inlines_all: bool = False

    def fact(self) -> Typed:
        """Give the part of a key that the target makes."""
        return typed((self.backend, self.arch, self.threads_per_warp, self.inlines_all))


@dataclass(frozen=True, eq=False)
class Binary:
    """A compiled kernel before any driver has seen it.

    Attributes
    ----------
    asm
        Stage name -> text or bytes: `ttir`, `ttgir`, `llir`, ... and the binary.
    kind
        Name of the stage that is the binary: `spv`, `cubin`, `hsaco`; `amdgcn` where it was not to be linked.
    """

    asm: Mapping[str, str | bytes] = field(repr=False)
    kind: str
    metadata: KernelMetadata

    @property
    def code(self) -> bytes:
        """The binary itself."""
        code = self.asm[self.kind]
        return code if isinstance(code, bytes) else code.encode()


def _gpu_target(target: Target) -> Any:
    from triton.backends.compiler import GPUTarget

    arch = dict(target.arch) if isinstance(target.arch, tuple) else target.arch
    return GPUTarget(target.backend, arch, target.threads_per_warp)


@cache
def _backend(target: Target) -> Any:
    """Give Triton's own compiler backend for a target, made without a device."""
    installed()
    from triton.backends import backends

    gpu_target = _gpu_target(target)
    for entry in backends.values():
        # Other entries may have been added at run time for drivers (gridpact.triton): they serve other target names.
        if entry.compiler.supports_target(gpu_target):
            kind = deviceless(entry.compiler) if target.backend == "xpu" else entry.compiler
            return kind(gpu_target)
    raise UnsupportedError(
        "toolchain",
        f"{installed().distribution} {installed().full_version} cannot compile for this target",
        target.backend,
        capability=target.backend,
    )


@cache
def deviceless(base: type) -> type:
    """Derive from Intel's backend one that is made without a device: its own `__init__` loads a probe module."""

    class Deviceless(base):  # type: ignore[misc]
        def __init__(self, target: Any) -> None:
            self.target = target
            self.binary_ext = "spv"
            self.device_arch = None
            self.properties = self.parse_target(target.arch)

    return Deviceless


def option_defaults(target: Target) -> dict[str, Any]:
    """Give the toolchain's options for a target: name -> default."""
    options = _backend(target).parse_options({})
    return {name: getattr(options, name) for name in type(options).__dataclass_fields__}


def resolved_options(target: Target, options: Mapping[str, Any]) -> dict[str, Any]:
    """Give all options as the toolchain will take them, after its own defaults and environment.

    Raises
    ------
    ContractTypeError
        META-2: the toolchain itself refuses a value.
    """
    backend = _backend(target)
    try:
        return dict(vars(backend.parse_options(dict(options))))
    except (AssertionError, ValueError, TypeError) as error:
        raise ContractTypeError(
            "options", f"refused by the toolchain: {error}", dict(options), clause="META-2"
        ) from error


def environment() -> Typed:
    """Give the environment switches that the toolchain reads, as a fact of the key (KEY-1)."""
    prefixes = (
        "TRITON_", "MLIR_", "LLVM_", "DISABLE_", "ENABLE_", "PTXAS_", "AMDGCN_", "NVPTX_", "USE_IR_LOC",
        "ALLOW_LHS_TMEM_LAYOUT_CONVERSION", "STORE_TMEM_TO_GLOBAL_BYPASS_SMEM",
    )  # fmt: skip
    return tuple(
        sorted(item for item in os.environ.items() if item[0].startswith(prefixes) and item[0] not in _CACHE_SWITCHES)
    )


def facts_of(target: Target, options: Mapping[str, Any]) -> tuple[tuple[str, Typed], ...]:
    """Give the part of a key that target, toolchain, its environment and options make (KEY-1)."""
    switches = environment()
    seen = (target, switches, tuple((type(value), str(value)) for value in options.values()))
    facts = _facts.get(seen)
    if facts is None:
        resolved = resolved_options(target, options)
        if resolved.get("extern_libs"):
            resolved["extern_libs"] = _contents(resolved["extern_libs"])
        facts = _facts[seen] = (
            ("target", target.fact()),
            ("toolchain", typed((installed().distribution, installed().full_version, build()))),
            ("environment", switches),
            *((f"option {name}", typed(value)) for name, value in sorted(resolved.items())),
        )
    return facts


def _contents(libraries: Any) -> tuple[tuple[str, str], ...]:
    """Tell libraries that are linked in by what they hold, and not by where they lie."""
    found = []
    for name, path in sorted(dict(libraries).items()):
        try:
            found.append((name, hashlib.sha256(Path(path).read_bytes()).hexdigest()))
        except OSError:  # the compiler will say so
            found.append((name, ""))
    return tuple(found)


_facts: Final[dict[Any, tuple[tuple[str, Typed], ...]]] = {}  # by target, environment and options: a few per process


def hidden_pointers() -> int:
    """Give how many pointers follow a CUDA kernel's own parameters: scratch memory, and a profiler's from 3.6 on."""
    return 1 if installed().version < (3, 6) else 2


def disassembler() -> str | None:
    """Find the disassembler of cubins that Triton's wheel ships, else one of the machine; it is run apart."""
    found = importlib.util.find_spec("triton")
    shipped = Path(found.origin).parent / "backends" / "nvidia" / "bin" if found and found.origin else None
    return (shipped and shutil.which("nvdisasm", path=str(shipped))) or shutil.which("nvdisasm")


# ------------------------------------------------------------------------------------------------------- sources


class _Strip(ast.NodeTransformer):
    """Drop decorators, annotations and defaults: the signature of a compilation says all of that already.

    Triton would look up their names in the kernel's scope, where Python evaluated them in the enclosing one at `def`.
    """

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        arguments = node.args
        node.decorator_list, node.returns = [], None
        arguments.defaults, arguments.kw_defaults = [], []
        # The values come in order; Triton before 3.9 knows neither positional-only nor keyword-only parameters.
        arguments.args = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        arguments.posonlyargs, arguments.kwonlyargs = [], []
        for argument in arguments.args:
            argument.annotation = None
        return node


@lru_cache(maxsize=1)
def _view_class() -> type:
    """Make the class of what Triton's code generator is given: a jitted function with a scope of its own."""
    from triton.runtime import jit

    class View(jit.JITFunction):  # type: ignore[misc]
        """One function of a kernel as `Source` read it."""

        def __init__(self, source: Source, scope: dict[str, Any], options: Mapping[str, Any]) -> None:
            registry = getattr(jit, "_triton_jit_function_registry", {})
            known = dict(registry)
            super().__init__(source.function, **options)
            registry.clear()  # 3.6 and later enter each new function; the user's own entry stays
            registry.update(known)
            self.__globals__ = scope
            self._digest = source.digest
            self._text = source.text

        def parse(self) -> ast.Module:
            tree = ast.parse(self._text)
            return _Strip().visit(tree)  # type: ignore[no-any-return]

        def get_capture_scope(self) -> dict[str, Any]:
            return self.__globals__

        @property
        def cache_key(self) -> str:
            return self._digest

        def __hash__(self) -> int:
            return hash(self._digest)

        def __eq__(self, other: object) -> bool:
            return self is other

        def __repr__(self) -> str:
            return f"{self.__name__}_{self._digest[:16]}"  # part of callers' symbols in 3.3, must tell helpers apart

    return View


def _view(source: Source, target: Target, made: dict[Source, Any], **options: Any) -> Any:
    """Build what the code generator sees of a function, its helpers first."""
    if source in made:
        return made[source]
    scope: dict[str, Any] = {}
    view = _view_class()(source, scope, {"noinline": source.is_noinline and not target.inlines_all, **options})
    made[source] = view
    for path, value in source.captured.items():
        if isinstance(value, Source):
            value = _helper_view(value, target, made)
        _put(scope, source.function.__globals__, path, value)
    return view


def function_of_triton(source: Source, name: str, target: Target, **options: Any) -> Any:
    """Give a kernel as a function that Triton's own runtime launches, under a name that its disk cache goes by."""
    function = _view(source, target, {}, **options)
    function._digest = name
    return function


def _helper_view(source: Source, target: Target, made: dict[Source, Any]) -> Any:
    """Build a helper with a symbol of its own: Triton shares one among helpers of one name, whatever they captured."""
    if source.is_run_by_compiler:
        return source.jitted
    view = _view(source, target, made)
    view.__name__ = view.__qualname__ = view._fn_name = f"{source.function.__name__}_{source.digest[:16]}"
    return view


def _put(scope: dict[str, Any], outer: Mapping[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Enter a value under a dotted name; modules on the way are replaced by copies that hold the value."""
    if len(path) == 1:
        scope[path[0]] = value
        return
    root = scope.get(path[0], outer.get(path[0]))
    module = ModuleType(getattr(root, "__name__", path[0]))
    module.__dict__.update(getattr(root, "__dict__", {}))
    scope[path[0]] = module
    _put(module.__dict__, module.__dict__, path[1:], value)


# --------------------------------------------------------------------------------------------------- compilation


def compile_kernel(
    source: Source,
    arguments: Classified,
    target: Target,
    options: Mapping[str, Any],
    *,
    name: Callable[[Any], str] | None = None,
    links: bool = True,
) -> Binary:
    """Compile a kernel for a target. No driver, device, cache or global state of Triton is touched.

    Parameters
    ----------
    source
        The kernel and all that it reaches.
    arguments
        Types, constants and specialization of its parameters.
    options
        The toolchain's options by name.
    name
        Triton's `repr=`: chooses the kernel's name from constants and signature.
    links
        False: leave out AMD's last stage, which needs ROCm's linker in Triton 3.3 and adds nothing to the metadata.

    Raises
    ------
    triton.CompilationError
        The kernel is wrong; shown as Triton shows it.
    BackendError
        A stage of the compiler failed, or a tool that it needs is missing.
    UnsupportedError
        The toolchain cannot compile for the target.
    """
    with _compiling:
        return _compile(source, arguments, target, options, name, links)


def _compile(
    source: Source,
    arguments: Classified,
    target: Target,
    options: Mapping[str, Any],
    name: Callable[[Any], str] | None,
    links: bool,
) -> Binary:
    backend = _backend(target)
    from triton._C.libtriton import ir
    from triton.compiler import ASTSource

    version = installed().version
    parsed = backend.parse_options(dict(options))
    made: dict[Source, Any] = {}
    kernel = _view(source, target, made, repr=_symbol(source, name) if target.backend == "xpu" else name)
    constants = {path: _view_of_constant(value, target, made) for path, value in arguments.constants.items()}
    signature = _signature(arguments)
    attributes = {path: [["tt.divisibility", ALIGNMENT]] for path in sorted(arguments.divisible)}
    ast_source = ASTSource(kernel, signature, constants, attributes)

    metadata: dict[str, Any] = {**vars(parsed), "target": backend.target, "hash": ""}
    stages: dict[str, Callable[[Any, dict[str, Any]], Any]] = {}
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    codegen, modules = backend.get_codegen_implementation(parsed), backend.get_module_map()
    if version < (3, 6):
        backend.add_stages(stages, parsed)
        module = ast_source.make_ir(parsed, codegen, modules, context)
    else:
        backend.add_stages(stages, parsed, ast_source.language)
        module = ast_source.make_ir(backend.target, parsed, codegen, modules, context)
    asm: dict[str, str | bytes] = {}
    if not links:
        stages.pop("hsaco", None)
    for stage in list(stages)[list(stages).index(ast_source.ext) :]:
        module = _run_stage(stage, stages[stage], module, metadata, source.function.__name__)
        asm[stage] = module if isinstance(module, (str, bytes)) else str(module)
    if version < (3, 6):
        context.disable_multithreading()  # else its thread pool is left to a fork's child
    return Binary(asm, stage, kernel_metadata(metadata, target))


def _signature(arguments: Classified) -> dict[str, TypeTree]:
    version = installed().version
    return {key: _types(tree, version) for key, tree in arguments.types.items()}


def chosen_name(name: Callable[[Any], str], arguments: Classified) -> str:
    """Ask Triton's `repr=` for a kernel's name, with all that it may read: constants by parameter, and types."""
    parameters = list(arguments.types)
    constants = {
        parameters[path[0]]: value.function if isinstance(value, Source) else value
        for path, value in arguments.constants.items()
        if len(path) == 1
    }
    rule = "expected a function that gives the kernel's name"
    try:
        chosen = name(SimpleNamespace(constants=constants, signature=_signature(arguments)))
    except Exception as error:  # of the user's own function
        raise ContractTypeError(
            "repr=", f"{rule}, it raised {type(error).__name__}", str(error), clause="KEY-1"
        ) from error
    if not isinstance(chosen, str):
        raise ContractTypeError("repr=", rule, chosen, clause="KEY-1")
    return chosen


def is_library_function(name: str) -> bool:
    """Whether the device's library has such a function: a kernel that is called so aborts Intel's translator."""
    return _LIBRARY_FUNCTION.fullmatch(name) is not None


def _symbol(source: Source, name: Callable[[Any], str] | None) -> Callable[[Any], str]:
    """Name the kernel in its binary, by another name than a function of the device's library has."""

    def symbol(proxy: Any) -> str:
        chosen = name(proxy) if name is not None else source.function.__name__
        return f"{chosen}_kernel" if is_library_function(chosen) else chosen

    return symbol


def _run_stage(
    name: str, stage: Callable[[Any, dict[str, Any]], Any], module: Any, metadata: dict[str, Any], kernel: str
) -> Any:
    try:
        return stage(module, metadata)
    except Exception as error:
        if type(error).__module__.startswith("triton"):  # Triton's own kinds, which its autotuner knows
            raise
        raise BackendError(f"kernel {kernel!r}", f"the compiler's stage {name!r}", str(error)) from error


def _view_of_constant(value: Any, target: Target, made: dict[Source, Any]) -> Any:
    return _helper_view(value, target, made) if isinstance(value, Source) else value


def _types(tree: TypeTree, version: tuple[int, int]) -> TypeTree:
    """Spell a type tree as this Triton does: booleans are `i1` in 3.3 and `u1` later."""
    if isinstance(tree, tuple):
        items = [_types(item, version) for item in tree]
        return type(tree)._make(items) if hasattr(tree, "_make") else tuple(items)
    return "u1" if tree == "i1" and version >= (3, 6) else tree


def kernel_metadata(fields: Mapping[str, Any], target: Target) -> KernelMetadata:
    """Read a launch's facts from the metadata as the last stage left it (META-1); versions lack some fields."""
    if target.backend == "xpu":
        threads_per_warp = fields.get("threads_per_warp", target.threads_per_warp)
    else:
        threads_per_warp = fields.get("warp_size", target.threads_per_warp)
    return KernelMetadata(
        name=fields["name"],
        num_warps=fields["num_warps"],
        threads_per_warp=threads_per_warp,
        shared=fields.get("shared", 0) or 0,
        num_ctas=fields.get("num_ctas", 1) or 1,
        build_flags=fields.get("build_flags", ""),
        # Triton 3.3 enters the environment's switches among them, which the key tells.
        fields={name: value for name, value in fields.items() if not name.isupper()},
    )


@lru_cache(maxsize=1)
def _out_of_resources() -> type[ResourceError]:
    from triton.runtime.errors import OutOfResources

    class TritonResourceError(ResourceError, OutOfResources):  # type: ignore[misc]
        """A `ResourceError` that Triton's autotuner also knows, so that it drops the configuration and goes on."""

        __str__ = Exception.__str__  # not Triton's sentence

    return TritonResourceError


def out_of_resources(error: ResourceError) -> ResourceError:
    """Give a resource error as one that is also Triton's `OutOfResources`."""
    same = _out_of_resources()(error.subject, error.need, error.limit, error.unit)
    same.args = error.args
    same.required, same.name = error.need, error.subject  # type: ignore[attr-defined]
    return same
