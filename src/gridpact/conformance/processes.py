"""Programs of a case in new processes: one leaves something on disk, and another finds it.

A `Folder` holds the programs and what launchers keep beside them; what a case does with it is written down, so that its
finding repeats the same. A program is given its cache folder as an argument, and calls `tell` for each launch.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import gridpact
from gridpact import launch
from gridpact.conformance.script import Script

__all__ = ["DAMAGES", "Folder", "Told", "spoilings", "tell"]

_LIMIT_S: Final = 50.0
_PLACES: Final = (0.0, 0.3, 0.5, 0.8, 1.0)  # of a file


@dataclass(frozen=True)
class Told:
    """What a program tells of a launch.

    Attributes
    ----------
    identity
        The launcher's name for the binary.
    wrote
        What the kernel wrote; a digest of the binary that the driver was handed where nothing runs.
    error
        How the launch failed, or the process died.
    when
        What was done to the cache before.
    said
        What the process wrote to its standard error until its end.
    has_died
        The process did, and this is no launch.
    """

    identity: str = ""
    wrote: Any = None
    error: str = ""
    when: str = ""
    said: str = ""
    has_died: bool = False

    def __str__(self) -> str:
        came = self.error or f"{self.wrote} by {self.identity[:12]}"
        return f"{self.when}: {came}" if self.when else came


def tell(launch: Callable[[Any], Any], seen: Any, when: str = "") -> None:
    """Make a launch with memory, and print what came of it."""
    identity, wrote, error = "", None, ""
    fake = sys.modules.get("gridpact.conformance.subjects.fake_driver")
    try:
        identity = str(launch(seen).hash)
        wrote = fake.driver_calls()[-1].binary if fake else seen.tolist()
    except Exception as failed:  # told to the case, which judges it
        error = f"{type(failed).__name__}: {failed}"
    print(json.dumps(asdict(Told(identity, wrote, error, when))), flush=True)


class Folder:
    """Programs, and the caches that they are given.

    Parameters
    ----------
    script
        Where to write down what is done.
    """

    def __init__(self, script: Script | None = None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="gridpact-case-"))
        (self.path / "packages").mkdir()  # gridpact, without what else may be installed beside it
        (self.path / "packages" / "gridpact").symlink_to(Path(gridpact.__file__).resolve().parent)
        self._script = script
        self._note("from gridpact.conformance.processes import Folder\n\nfolder = Folder()")

    def _note(self, text: str) -> None:
        if self._script is not None:
            self._script.write(text)

    def write(self, name: str, text: str) -> None:
        """Write a file, such as a program."""
        self._note(f"folder.write({name!r}, r'''{text}''')")
        path = self.path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def permit(self, cache: str, mode: int) -> None:
        """Make an empty cache with permissions."""
        self._note(f"folder.permit({cache!r}, {mode:#o})")
        (self.path / cache).mkdir()
        (self.path / cache).chmod(mode)

    def files(self, cache: str) -> list[Path]:
        """Give the files of a cache, which others may change meanwhile."""
        return sorted(Path(folder, name) for folder, _, names in os.walk(self.path / cache) for name in names)

    def run(self, name: str, cache: str = "cache", seed: int = 0, processes: int = 1) -> list[Told]:
        """Run a program in some processes at once; give what they tell, one after another.

        Parameters
        ----------
        seed
            Of Python's hashes.
        """
        self._note(f"print(*folder.run({name!r}, {cache!r}, seed={seed}, processes={processes}), sep='\\n')")
        started = [self._start(name, cache, seed) for _ in range(processes)]
        return [told for process in started for told in _ended(process)]

    def kill(self, name: str, cache: str, after_s: float) -> None:
        """Start a program, and kill it some time after its first file is in the cache."""
        self._note(f"folder.kill({name!r}, {cache!r}, after_s={after_s})")
        before, process, end = self.files(cache), self._start(name, cache, 0), time.monotonic() + _LIMIT_S
        while self.files(cache) == before and process.poll() is None and time.monotonic() < end:
            time.sleep(0.0002)
        time.sleep(after_s)
        process.kill()
        process.communicate()

    def _start(self, name: str, cache: str, seed: int) -> subprocess.Popen[str]:
        place = str(self.path / cache)
        packages = f"{self.path / 'packages'}:{os.environ.get('PYTHONPATH', '')}".rstrip(":")
        environment = {
            "TRITON_CACHE_DIR": place,
            "GRIDPACT_KERNEL_CACHE": place,
            "PYTHONPATH": packages,
            "PYTHONHASHSEED": str(seed),
            "PYTHONDONTWRITEBYTECODE": "1",  # files are edited within a second
        }
        return subprocess.Popen(
            [sys.executable, str(self.path / name), place],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def _ended(process: subprocess.Popen[str]) -> list[Told]:
    """Give what a process told, and how it ended if not well."""
    how = ""
    try:
        out, said = process.communicate(timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        out, said = process.communicate()
        how = f"hung: no end in {_LIMIT_S:g} s"
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    told = [Told(**{**line, "said": said}) for line in lines]
    code = process.returncode
    if code and not how:
        how = f"died of {signal.Signals(-code).name}" if code < 0 else f"left with {code}: {said.strip()[-300:]}"
    last = next((one.when for one in told[::-1] if one.when), "its last launch")
    return [*told, Told(error=how, when=f"after {last}", said=said, has_died=True)] if how else told


# ---------------------------------------------------------------------------------------------------- damage to a cache


def _cut(content: bytes, other: bytes, place: float) -> bytes:
    return content[: min(len(content) - 1, max(1, int(place * len(content))))]


def _flip(content: bytes, other: bytes, place: float) -> bytes:
    at = int(place * (len(content) - 1))
    return content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :]


_DAMAGES: Final[dict[str, tuple[Callable[[bytes, bytes, float], bytes], tuple[float, ...]]]] = {
    "truncated": (_cut, _PLACES),
    "one bit flipped": (_flip, _PLACES),
    "emptied": (lambda content, other, place: b"", (0.0,)),
    "replaced by another entry's file": (lambda content, other, place: other, (0.0,)),
}

DAMAGES: Final = tuple(_DAMAGES)
"""What can happen to a file of an entry."""


def spoilings(cache: str, damage: str, kernel: str) -> Iterator[str]:
    """Damage a warm cache in one place after another, each time from what it was; say what is damaged.

    Parameters
    ----------
    damage
        One of `DAMAGES`.
    kernel
        Its name: of a launcher that keeps folders, those with a file of this name are its entries.
    """
    place, kept = Path(cache), Path(f"{cache}-kept")
    shutil.copytree(place, kept)
    files = [path for path in sorted(kept.rglob("*")) if path.is_file()]
    own = [path for path in files if any(path.parent.glob(f"{kernel}*"))] or files
    change, places = _DAMAGES[damage]
    for file in own:
        others = [path for path in own if path != file]
        alike = [path for path in others if path.name == file.name] or others
        for at in places:
            content = file.read_bytes()
            spoiled = change(content, alike[0].read_bytes(), at)
            if spoiled == content:
                continue
            shutil.rmtree(place)
            shutil.copytree(kept, place)
            (place / file.relative_to(kept)).write_bytes(spoiled)
            where = f" at {at:.0%}" if len(places) > 1 else ""
            launch._binaries.clear()  # what our launcher has in memory it would not read
            yield f"{file.name} {damage}{where}"
