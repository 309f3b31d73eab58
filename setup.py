"""Builds the native path of a launch where there is a C compiler; without one gridpact runs on the Python path."""

import hashlib
from pathlib import Path

from setuptools import Extension, setup

FOLDER = Path("src/gridpact/native")


def source_digest():
    """As `gridpact.native.source_digest`, which compares it at import."""
    digest = hashlib.sha256()
    for source in sorted([*FOLDER.glob("*.c"), *FOLDER.glob("*.h")]):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


setup(
    ext_modules=[
        Extension(
            "gridpact.native.path",
            sources=[str(FOLDER / name) for name in ("path.c", "values.c", "flights.c", "cuda.c")],
            depends=[str(path) for path in sorted(FOLDER.glob("*.[ch]"))],
            define_macros=[("GRIDPACT_SOURCE", f'"{source_digest()}"')],
            extra_compile_args=["-std=gnu11", "-O2", "-fvisibility=hidden", "-fno-plt"],
            libraries=["dl", "m"],
            optional=True,  # a machine without a compiler, and where it fails
        )
    ]
)
