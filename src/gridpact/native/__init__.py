"""Native parts, built with the machine's own compiler at first use into the per-user cache.

They are not built by pip: the SYCL headers come with an optional package, which a build environment would download
for everybody.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gridpact import cache
from gridpact.errors import BackendError

__all__ = ["compiler", "library"]

_FLAGS: Final = ("-std=c++17", "-O2", "-shared", "-fPIC", "-DSYCL_DISABLE_FSYCL_SYCLHPP_WARNING")


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
    path = Path(__file__).with_name(source)
    chosen = compiler()
    if chosen is None:
        raise BackendError(source, "looking for a C++ compiler", "none found", remedy="Install g++.")
    version = subprocess.run([chosen, "--version"], capture_output=True, text=True, check=False).stdout
    facts = (path.read_bytes(), version, _FLAGS, [*flags], [*map(str, libraries)], [*versions])
    name = f"{path.stem}-{hashlib.sha256(repr(facts).encode()).hexdigest()[:24]}.so"
    built = cache.folder("native") / name
    if not built.exists():
        handle, made = tempfile.mkstemp(dir=built.parent, suffix=".so")
        os.close(handle)
        command = [chosen, *_FLAGS, *flags, f"-I{include}", str(path), "-o", made, *map(str, libraries)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode:
            os.unlink(made)
            raise BackendError(source, chosen, f"exit code {ran.returncode}", ran.stderr[-4000:])
        cache.publish(Path(made), built)
    return built
