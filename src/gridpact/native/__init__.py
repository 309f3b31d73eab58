"""Native parts: the path of a launch, which pip builds where there is a compiler, and libraries built at first use.

What needs the headers of an optional package is not built by pip, whose build environment would download it for
everybody, but with the machine's own compiler into the per-user cache.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from gridpact import cache
from gridpact.errors import BackendError

__all__ = [
    "MISSING",
    "Launchable",
    "compiler",
    "inside",
    "land",
    "library",
    "path",
    "prepared",
    "source_digest",
    "turn",
    "use",
]


# ------------------------------------------------------------------------------------------------ the path of a launch


def source_digest(folder: Path) -> str:
    """Give the digest of the sources that the native path is built of: what was built of others is not used."""
    digest = hashlib.sha256()
    for source in sorted([*folder.glob("*.c"), *folder.glob("*.h")]):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def _opened() -> tuple[Any, str]:
    """Open the extension; without it, say why launches take the Python path."""
    try:
        found = importlib.import_module("gridpact.native.path")
    except ImportError as error:
        reason = f"it was not built ({error.msg}): install a C compiler and gridpact again"
        return None, reason
    if source_digest(Path(__file__).parent) != found.SOURCE:
        return None, "it was built of other sources: install gridpact again"
    return found, ""


path, MISSING = _opened()
"""The extension, or None and the reason."""


class _ByDefinition:
    """What a kernel is where there is no native path: each launch takes the Python one."""

    def __getitem__(self, grid: object) -> Callable[..., Any]:
        from gridpact import launch

        return lambda *args, **kwargs: launch.launch(self, grid, args, kwargs)  # type: ignore[arg-type]


class _PreparedByDefinition:
    """What a prepared launch is where there is no native path."""

    def __init__(
        self, kernel: Any, grid: object, programs: object, compiled: Any, names: object, values: object, given: object,
        refuses: bool, missed: Callable[..., Any],
    ) -> None:  # fmt: skip
        self.kernel, self.grid, self.compiled, self._missed = kernel, grid, compiled, missed

    def __call__(self, *args: object, **named: object) -> Any:
        return self._missed(self, self.grid, args, tuple(named) or None)

    def __getitem__(self, grid: object) -> Callable[..., Any]:
        return lambda *args, **named: self._missed(self, grid, args, tuple(named) or None)

    def __repr__(self) -> str:
        return f"<prepared launch of {self.kernel!r}>"


prepared: Any = _PreparedByDefinition if path is None else path.prepared
"""Makes a prepared launch: what was decided, the values, and who is asked where they change."""

Launchable: Any = _ByDefinition if path is None else path.Launchable
"""Base class of kernels: `kernel[grid](...)`."""


def use(name: str, shared: object) -> None:
    """Give the native path something that the whole process shares, such as the tuple of observers."""
    if path is not None:
        path.use(name, shared)


def turn(what: str, is_so: bool) -> None:
    """Close the native path, or open it: `off`, `shut` as the process ends, `forked` in a child."""
    if path is not None:
        path.turn(what, is_so)


def land(table: int, stream: int | None, failed: Callable[[int], None]) -> None:
    """Wait for launches that the native path made, on a stream or on all of a driver's; `failed` raises the error."""
    if path is not None:
        path.land(table, stream, failed)


def inside() -> int:
    """How many threads are in a driver call of the native path."""
    return 0 if path is None else int(path.inside())


# ----------------------------------------------------------------------------------------- libraries built at first use

_FLAGS: Final = ("-std=c++17", "-O2", "-shared", "-fPIC", "-DSYCL_DISABLE_FSYCL_SYCLHPP_WARNING")


_ABI: Final = Path(__file__).with_name("launch_abi.h")


def compiler() -> str | None:
    """Find a C++17 compiler: `CXX`, g++, c++ or clang++; None if there is none."""
    return shutil.which(os.environ.get("CXX", "")) or next(
        filter(None, map(shutil.which, ("g++", "c++", "clang++"))), None
    )


def library(
    source: str, include: Path, libraries: Sequence[Path], versions: Sequence[str], flags: Sequence[str] = ()
) -> Path:
    """Give the shared library of a source file of this folder, built if it is not in the cache.

    Parameters
    ----------
    source
        File name in this folder.
    include
        Folder of the headers it needs.
    libraries
        What it is linked with, by path.
    versions
        Versions of what it is built against; part of its name in the cache.
    flags
        Further words for the compiler.

    Raises
    ------
    BackendError
        No compiler, or it failed; carries what it printed.
    """
    text = Path(__file__).with_name(source)
    chosen = compiler()
    if chosen is None:
        raise BackendError(source, "looking for a C++ compiler", "none found", remedy="Install g++.")
    version = subprocess.run([chosen, "--version"], capture_output=True, text=True, check=False).stdout
    facts = (text.read_bytes(), _ABI.read_bytes(), version, _FLAGS, [*flags], [*map(str, libraries)], [*versions])
    name = f"{text.stem}-{hashlib.sha256(repr(facts).encode()).hexdigest()[:24]}.so"
    built = cache.folder("native") / name
    if cache.take(built) is None:
        handle, made = tempfile.mkstemp(dir=built.parent, prefix=cache.HALF_WRITTEN, suffix=".so")
        os.close(handle)
        command = [
            chosen,
            *_FLAGS,
            *flags,
            f"-I{include}",
            f"-I{text.parent}",
            str(text),
            "-o",
            made,
            *map(str, libraries),
        ]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode:
            os.unlink(made)
            raise BackendError(source, chosen, f"exit code {ran.returncode}", ran.stderr[-4000:])
        cache.publish(Path(made), built)
    return built
