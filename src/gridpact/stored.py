"""Compiled kernels on disk: one entry of the cache for each, under the digest of its identity.

An entry holds the whole identity and not only its digest, and is the kernel of a key only if it holds just that key's
facts. Nothing in it can run on its own: metadata is JSON in which each value says its type, and a kernel with a value
that cannot be written down exactly is not stored. Where `TRITON_ALWAYS_COMPILE` is set the entries are neither read nor
written.
"""

from __future__ import annotations

import dataclasses
import json
import os
import struct
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from gridpact import cache
from gridpact.identity import Key, Typed
from gridpact.metadata import KernelMetadata
from gridpact.toolchain import Binary

__all__ = ["Stored", "all_stored", "decode", "encode", "find", "keep", "known", "pack", "unpack"]

Json: TypeAlias = Any

_KIND: Final = "kernels"
_LENGTH: Final = struct.Struct(">Q")  # of the head, bytes
_DOUBLE: Final = struct.Struct(">d")
_TRUE: Final = {"1", "true", "on", "yes", "y"}


@dataclass(frozen=True)
class Stored:
    """What an entry says of its kernel.

    Attributes
    ----------
    name
        Of the kernel's function.
    facts, digest
        The identity.
    target
        What it was compiled for, such as `cuda:90`.
    compiled
        When it was, seconds since 1970.
    size
        Of the entry, bytes.
    """

    name: str
    facts: tuple[tuple[str, Typed], ...]
    digest: str
    target: str
    compiled: float
    size: int


def find(key: Key) -> Binary | None:
    """Give the binary of an identity, or None if there is no such entry, or none that can be read."""
    if _always_compiles():
        return None
    content = cache.read(_KIND, key.digest)
    if content is None:
        return None
    try:
        return unpack(content, key)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, ImportError):  # written by another version
        return None


def keep(key: Key, name: str, binary: Binary) -> None:
    """Store the binary of an identity, if it can be.

    Parameters
    ----------
    name
        Of the kernel's function: the name in the binary may be another one.
    """
    if not cache.keeps(_KIND) or _always_compiles():
        return
    try:
        content = pack(key, name, binary, time.time())
    except (TypeError, ValueError):  # a value that cannot be written down exactly
        return
    cache.write(_KIND, key.digest, content)


def known(name: str) -> Iterator[Stored]:
    """Give what is stored of kernels of a name, the latest first."""
    yield from sorted((one for one in all_stored() if one.name == name), key=lambda one: -one.compiled)


def all_stored() -> Iterator[Stored]:
    """Give what is stored of every kernel."""
    if not cache.keeps(_KIND):
        return
    for entry in cache.entries(cache.folder(_KIND).parent):
        content = cache.content_of(entry.path) if entry.kind == _KIND else None
        if content is not None:
            try:
                head, _ = _parts(content)
                facts = decode(head["facts"])
                yield Stored(head["name"], facts, entry.path.name, head["target"], head["compiled"], entry.size)
            except (ValueError, TypeError, KeyError):  # written by another version
                continue


def _always_compiles() -> bool:
    return os.environ.get("TRITON_ALWAYS_COMPILE", "").lower() in _TRUE


# ------------------------------------------------------------------------------------------------- the form of an entry


def pack(key: Key, name: str, binary: Binary, compiled: float) -> bytes:
    """Write a binary down: the length of the head, the head as JSON, then the stages one after another.

    Raises
    ------
    TypeError, ValueError
        A value that cannot be written down exactly.
    """
    stages = {stage: code if isinstance(code, bytes) else code.encode() for stage, code in binary.asm.items()}
    metadata = {field.name: getattr(binary.metadata, field.name) for field in dataclasses.fields(KernelMetadata)}
    head = {
        "facts": encode(key.facts),
        "name": name,
        "target": _target(metadata["fields"]),
        "compiled": compiled,
        "kind": binary.kind,
        "metadata": encode({**metadata, "fields": dict(metadata["fields"])}),
        "stages": [
            [stage, "bytes" if isinstance(binary.asm[stage], bytes) else "text", len(code)]
            for stage, code in stages.items()
        ],
    }
    written = json.dumps(head).encode()
    return b"".join([_LENGTH.pack(len(written)), written, *stages.values()])


def unpack(content: bytes, key: Key) -> Binary | None:
    """Read a binary, or give None where the entry is of other facts.

    Raises
    ------
    ValueError, TypeError, KeyError, IndexError, AttributeError, ImportError
        It has another form.
    """
    head, at = _parts(content)
    if head["facts"] != encode(key.facts):
        return None
    asm: dict[str, str | bytes] = {}
    for stage, kind, length in head["stages"]:
        code = content[at : at + length]
        asm[stage] = code if kind == "bytes" else code.decode()
        at += length
    if at != len(content):
        raise ValueError("stages of another length")
    return Binary(asm, head["kind"], KernelMetadata(**decode(head["metadata"])))


def _parts(content: bytes) -> tuple[dict[str, Json], int]:
    """Give the head, and where the stages begin."""
    if len(content) < _LENGTH.size:
        raise ValueError("no head")
    end = _LENGTH.size + _LENGTH.unpack_from(content)[0]
    return json.loads(content[_LENGTH.size : end]), end


def _target(fields: Mapping[str, Any]) -> str:
    target = fields.get("target")
    arch = getattr(target, "arch", "")
    return f"{getattr(target, 'backend', '')}:{arch.get('name', '') if isinstance(arch, dict) else arch}"


def encode(value: object) -> Json:
    """Write a value as JSON from which exactly this value can be read, its type included.

    Raises
    ------
    TypeError, ValueError
        It is of a type that has no such form, or a text that is no Unicode.
    """
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is str:
        value.encode()  # type: ignore[attr-defined]  # JSON would join two lone surrogates
        return value
    if kind is int:
        return {"int": f"{value:x}"}  # decimal digits have a limit
    if kind is float:
        return {"float": _DOUBLE.pack(value).hex()}
    if kind is bytes:
        return {"bytes": value.hex()}  # type: ignore[attr-defined]
    if kind is tuple or kind is list:
        return {kind.__name__: [encode(item) for item in value]}  # type: ignore[attr-defined]
    if kind is dict:
        return {"dict": [[encode(k), encode(v)] for k, v in value.items()]}  # type: ignore[attr-defined]
    if kind.__name__ == "GPUTarget" and kind.__module__.startswith("triton."):
        return {"GPUTarget": [encode(getattr(value, part)) for part in ("backend", "arch", "warp_size")]}
    raise TypeError(f"{kind.__name__} cannot be stored")


def decode(written: Json) -> Any:
    """Read what `encode` wrote.

    Raises
    ------
    ValueError
        Nothing that it writes.
    """
    if written is None or isinstance(written, (bool, str)):
        return written
    if not isinstance(written, dict) or len(written) != 1:
        raise ValueError("no typed value")
    ((kind, content),) = written.items()
    if kind == "int":
        return int(content, 16)
    if kind == "float":
        return _DOUBLE.unpack(bytes.fromhex(content))[0]
    if kind == "bytes":
        return bytes.fromhex(content)
    if kind == "tuple":
        return tuple(map(decode, content))
    if kind == "list":
        return [*map(decode, content)]
    if kind == "dict":
        return {decode(k): decode(v) for k, v in content}
    if kind == "GPUTarget":
        from triton.backends.compiler import GPUTarget

        return GPUTarget(*map(decode, content))
    raise ValueError(f"no type {kind!r}")
