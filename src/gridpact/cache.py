"""The per-user cache folder: built native libraries and the drivers' device binaries.

An entry is written to a temporary file and moved into place, carries a checksum, and is verified on read: a damaged
or foreign entry is a miss (KEY-3). A folder that another user can write to is not used.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import stat
import tempfile
import warnings
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

__all__ = ["folder", "publish", "read", "write"]

_MAGIC: Final = b"gridpact 1\n"
_DIGEST_BYTES: Final = 32


def _root() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "gridpact"


def folder(kind: str) -> Path:
    """Give the folder of one kind of entry, made if need be; a private temporary one if the user's cannot be trusted.

    Parameters
    ----------
    kind
        `native` or `device`.
    """
    path = _trusted(_root()) / kind
    path.mkdir(mode=0o700, exist_ok=True)
    return path


@cache
def _trusted(root: Path) -> Path:
    """Judge by owner and mode bits: as root, access() would allow everything."""
    reason = ""
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = root.stat()
        if status.st_uid != os.geteuid():
            reason = "it belongs to another user"
        elif stat.S_IMODE(status.st_mode) & 0o022:
            reason = "other users can write to it"
    except OSError as error:
        reason = str(error)
    if not reason:
        return root
    warnings.warn(
        f"cache {str(root)!r}: not used, {reason}. A temporary one is used for this process. [KEY-3]",
        RuntimeWarning,
        stacklevel=3,
    )
    return _temporary()


@lru_cache(maxsize=1)
def _temporary() -> Path:
    made = tempfile.mkdtemp(prefix="gridpact-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)


def read(kind: str, key: str) -> bytes | None:
    """Give an entry's content, or None if it is missing or damaged."""
    try:
        raw = (folder(kind) / key).read_bytes()
    except OSError:
        return None
    head = len(_MAGIC) + _DIGEST_BYTES
    content = raw[head:]
    digest = hashlib.sha256(key.encode() + content).digest()
    return content if raw[:head] == _MAGIC + digest else None


def write(kind: str, key: str, content: bytes) -> None:
    """Store an entry; a cache that cannot be written to costs time and nothing else."""
    digest = hashlib.sha256(key.encode() + content).digest()
    try:
        handle, name = tempfile.mkstemp(dir=folder(kind))
        with os.fdopen(handle, "wb") as file:
            file.write(_MAGIC + digest + content)
        publish(Path(name), folder(kind) / key)
    except OSError:
        return


def publish(made: Path, place: Path) -> None:
    """Move a finished file into place, at once and whole; of two processes the later one wins with the same content."""
    try:
        os.replace(made, place)
    except OSError:
        made.unlink(missing_ok=True)
        raise
