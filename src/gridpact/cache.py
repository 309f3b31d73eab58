"""The per-user cache folder: built native libraries, the drivers' device binaries, and compiled kernels.

Each kind of entry has a folder of its own below `$XDG_CACHE_HOME/gridpact`, or `~/.cache/gridpact`. Compiled kernels
may live elsewhere: `GRIDPACT_KERNEL_CACHE` names an absolute folder for them, or says `off`.

An entry is one file, written beside its place and moved into it, and ends with a checksum over its name and content
that is verified on read: one that is damaged, half-written or foreign is a miss, and is removed (KEY-3). Nothing is
locked, so that processes and file systems of any kind may share a folder; what cannot be read is a miss, what cannot be
written is not kept. A folder that another user can write to is not used.

A folder is held to 1 GiB, all its kinds together: whoever writes looks at it now and then, and where it is larger
removes the entries that were not used for longest until 80 % are left. Half-written files go after an hour.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import itertools
import os
import re
import shutil
import stat
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

from gridpact.errors import sentence

__all__ = [
    "BOUND_BYTES",
    "HALF_WRITTEN",
    "KINDS",
    "Entry",
    "content_of",
    "entries",
    "folder",
    "folders",
    "keeps",
    "prune",
    "publish",
    "read",
    "take",
    "write",
]

KINDS: Final = ("native", "device", "kernels")
"""Libraries that were built here, drivers' binaries for one device, and what the toolchain compiled."""

BOUND_BYTES: Final = 1 << 30
"""Of all entries of a folder together."""

HALF_WRITTEN: Final = ".gridpact-"
"""What the name of a file begins with until it is whole and in its place."""

_LEFT: Final = 0.8  # of the bound, after entries were removed
_STALE_S: Final = 3600.0
_LOOK_EVERY: Final = 16  # writes of a process
_ENTRY: Final = re.compile(r"[0-9a-f]{64}|[\w.-]+-[0-9a-f]{24}(\.\w+)*")  # whatever else lies there is not ours
_MAGIC: Final = b"\ngridpact 2\n"
_SEAL_BYTES: Final = 32 + len(_MAGIC)

_writes: Final = itertools.count()


@dataclass(frozen=True)
class Entry:
    """A file of the cache.

    Attributes
    ----------
    kind
        One of `KINDS`.
    size
        Bytes.
    used
        When it was last read or written, seconds since 1970.
    """

    kind: str
    path: Path
    size: int
    used: float


# ------------------------------------------------------------------------------------------------------------- folders


def keeps(kind: str) -> bool:
    """Whether entries of a kind are kept at all."""
    return _root(kind) is not None


def folder(kind: str) -> Path:
    """Give the folder of one kind of entry, made if need be; a private temporary one if the user's cannot be trusted.

    Parameters
    ----------
    kind
        One of `KINDS`.
    """
    root = _root(kind)
    path = (_temporary() if root is None else _trusted(root, kind)) / kind
    with contextlib.suppress(OSError):  # removed since, or on a file system that is full: whoever writes will see
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def folders() -> dict[Path, tuple[str, ...]]:
    """Give the folders that are in use, each with the kinds of entries that it holds."""
    found: dict[Path, tuple[str, ...]] = {}
    for kind in filter(keeps, KINDS):
        parent = folder(kind).parent
        found[parent] = (*found.get(parent, ()), kind)
    return found


def _root(kind: str) -> Path | None:
    chosen = os.environ.get("GRIDPACT_KERNEL_CACHE", "") if kind == "kernels" else ""
    if os.path.isabs(chosen):
        return Path(chosen)
    if chosen:
        if chosen != "off":
            rule, what_then = "expected an absolute folder or 'off'", "No compiled kernel is kept."
            _say(sentence("GRIDPACT_KERNEL_CACHE", rule, chosen, what_then))
        return None
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "gridpact"
    except RuntimeError as error:  # a user without an entry in the password file
        _say(f"cache: none is kept, {error} [KEY-3]")
        return None


@cache
def _trusted(root: Path, kind: str) -> Path:
    """Give the folder above that of a kind: the one that was asked for, if nobody else can write to either."""
    for path in (root, root / kind):
        reason = _mistrust(path)
        if reason:
            _say(f"cache {str(path)!r}: not used, {reason}. A temporary one is used for this process. [KEY-3]")
            return _temporary()
    return root


def _mistrust(path: Path) -> str:
    """Say why a folder is not to be used; by owner and mode bits: as root, access() would allow everything."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    except OSError as error:
        return str(error)
    if status.st_uid != os.geteuid():
        return "it belongs to another user"
    return "other users can write to it" if stat.S_IMODE(status.st_mode) & 0o022 else ""


@cache
def _say(text: str) -> None:
    """Warn of something once, whoever asks."""
    warnings.warn(text, RuntimeWarning, stacklevel=4)


@lru_cache(maxsize=1)
def _temporary() -> Path:
    made = tempfile.mkdtemp(prefix="gridpact-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)


# ------------------------------------------------------------------------------------------------------------- entries


def read(kind: str, key: str) -> bytes | None:
    """Give an entry's content, or None if it is missing or damaged."""
    return take(folder(kind) / key) if keeps(kind) else None


def take(path: Path) -> bytes | None:
    """Give a published file's content to one who uses it: it stays longer, and goes if it is damaged."""
    content = content_of(path)
    with contextlib.suppress(OSError):
        if content is None:
            path.unlink()
        else:
            os.utime(path)
    return content


def content_of(path: Path) -> bytes | None:
    """Give a published file's content, or None if it is missing or damaged; nothing is changed."""
    try:
        sealed = path.read_bytes()
    except OSError:
        return None
    content = sealed[:-_SEAL_BYTES]
    return content if sealed[-_SEAL_BYTES:] == _seal(path.name, content) else None


def _seal(key: str, content: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\n" + content).digest() + _MAGIC


def write(kind: str, key: str, content: bytes) -> None:
    """Store an entry; a cache that cannot be written to costs time and nothing else."""
    if not keeps(kind):
        return
    place = folder(kind) / key
    with contextlib.suppress(OSError):
        handle, name = tempfile.mkstemp(dir=place.parent, prefix=HALF_WRITTEN)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
        except OSError:
            Path(name).unlink()
            raise
        publish(Path(name), place)


def publish(made: Path, place: Path) -> None:
    """Seal a finished file and move it into place, at once and whole; of two processes the later one wins.

    Libraries and headers for the compiler bear the checksum at their end.
    """
    try:
        content = made.read_bytes()
        with made.open("ab") as file:
            file.write(_seal(place.name, content))
        os.replace(made, place)
    except OSError:
        made.unlink(missing_ok=True)
        raise
    if next(_writes) % _LOOK_EVERY == 0:
        prune(place.parent.parent)


# --------------------------------------------------------------------------------------------------------------- bounds


def entries(root: Path) -> Iterator[Entry]:
    """Give all files of the cache below a folder, half-written ones too; what went meanwhile is left out."""
    for kind in KINDS:
        with contextlib.suppress(OSError), os.scandir(root / kind) as found:
            for file in found:
                with contextlib.suppress(OSError):
                    if (_ENTRY.fullmatch(file.name) or file.name.startswith(HALF_WRITTEN)) and not file.is_dir():
                        status = file.stat(follow_symlinks=False)
                        yield Entry(kind, Path(file.path), status.st_size, status.st_mtime)


def prune(root: Path, bound_bytes: int = BOUND_BYTES) -> list[Entry]:
    """Remove half-written files that are older than an hour, and what is over a bound; give what was removed.

    Parameters
    ----------
    root
        The folder above those of the kinds.
    bound_bytes
        If the entries are larger together, those that were not used for longest go until 80 % of it are left; 0
        removes them all.
    """
    now = time.time()
    left: list[Entry] = []
    going: list[Entry] = []
    for entry in entries(root):
        is_stale = entry.path.name.startswith(HALF_WRITTEN) and now - entry.used > _STALE_S
        (going if is_stale else left).append(entry)
    total = sum(entry.size for entry in left)
    if total > bound_bytes or not bound_bytes:
        for entry in sorted(left, key=lambda entry: entry.used):
            if bound_bytes and total <= _LEFT * bound_bytes:
                break
            going.append(entry)
            total -= entry.size
    return [entry for entry in going if _removed(entry.path)]


def _removed(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    return True
