"""A worker process per subject: started when first asked, started anew after a case that killed it, ended with the run.

A case that crashes, hangs (holding the GIL too) or eats memory is answered for here, with how the process died.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from gridpact.conformance.worker import PROGRAM

__all__ = ["Worker", "interpreter"]

_WORKER: Final = Path(__file__).with_name("worker.py")
_MEMORY_BYTES: Final = 8 << 30
_START_S: Final = 120.0
_TAIL_BYTES: Final = 2000


def interpreter(folder: str) -> Path:
    """Give the Python of a virtual environment, or what is named itself if it is a file."""
    place = Path(folder)
    return place if place.is_file() else place / "bin" / "python"


def _environment() -> dict[str, str]:
    """Give the caller's environment without what would change how Triton launches; where its tools are is kept."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TRITON_") or "PATH" in name}


class Worker:
    """The process of one subject.

    Parameters
    ----------
    subject
        Name in the table of subjects; `NAME@FOLDER` lives in the virtual environment of that folder.
    saboteur
        Name of a saboteur that breaks its launcher.

    Attributes
    ----------
    facts
        What the subject told of itself when it started: `subject`, `is_own`, `device`, `driver`, `versions`, or
        `reason` if it could not be opened.
    """

    def __init__(self, subject: str, saboteur: str = "") -> None:
        self.subject = subject
        name, _, folder = subject.partition("@")
        python = str(interpreter(folder)) if folder else sys.executable
        self._command = [python, str(_WORKER), name, saboteur]
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._folder: tempfile.TemporaryDirectory[str]  # of the running process: what it leaves goes with it
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed by close)
        self.facts: dict[str, Any] = {}

    def start(self) -> dict[str, Any]:
        """Start the process if it does not run, and give what the subject tells of itself."""
        if self._process is None:
            self._errors.seek(0)
            self._errors.truncate()
            self._folder = tempfile.TemporaryDirectory(prefix="gridpact-worker-", ignore_cleanup_errors=True)
            self._process = subprocess.Popen(
                self._command,
                env={
                    **_environment(),
                    "TMPDIR": self._folder.name,
                    "GRIDPACT_KERNEL_CACHE": f"{self._folder.name}/kernel-cache",  # a saboteur's must not be anybody's
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,
            )
            with contextlib.suppress(OSError):  # if memory runs out on this machine, this process goes first
                Path(f"/proc/{self._process.pid}/oom_score_adj").write_text("1000")
            self._buffer = b""
            answer = self._read(_START_S)
            self.facts = answer if "ready" in answer else {"ready": False, "reason": answer["observed"]}
        return self.facts

    def ask(self, case: str, limit_s: float) -> dict[str, Any]:
        """Ask one case; gives its answer, or how the process died of it."""
        before = ""
        if self._process is not None and self._process.poll() is not None:
            before = f"after the answer to the case before, the process {self._died('')['observed']}"
        if not self.start()["ready"]:
            return {"verdict": "error", "expected": "", "observed": self.facts["reason"], "duration_s": 0.0}
        begin = time.monotonic()
        process = self._process
        try:
            process.stdin.write(json.dumps({"case": case}).encode() + b"\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            answer = self._read(limit_s)
        except BrokenPipeError:
            answer = self._died("")
        answer.setdefault("duration_s", round(time.monotonic() - begin, 6))
        if before:
            answer["stderr"] = f"{before}\n{answer.get('stderr', '')}".strip()
        return answer

    def _read(self, limit_s: float) -> dict[str, Any]:
        process = self._process
        if process is None or process.stdout is None:
            return self._died("it does not run")
        end = time.monotonic() + limit_s
        handle = process.stdout.fileno()
        while b"\n" not in self._buffer:
            left = end - time.monotonic()
            if left <= 0:
                return self._died(f"hung: no answer in {limit_s:g} s")
            if select.select([handle], [], [], min(left, 0.1))[0]:
                read = os.read(handle, 1 << 16)
                if not read:
                    return self._died("")
                self._buffer += read
            elif self._resident_bytes() > _MEMORY_BYTES:
                return self._died(f"used more than {_MEMORY_BYTES >> 30} GiB of memory")
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _resident_bytes(self) -> int:
        try:
            pages = Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]  # type: ignore[union-attr]
        except (OSError, AttributeError):
            return 0
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def _died(self, why: str) -> dict[str, Any]:
        """Tell how the process ended: a subject that dies or hangs on a case is violated."""
        program = Path(self._folder.name) / PROGRAM
        told = program.read_text() if program.exists() else ""
        self.stop()
        code = self._code
        how = why or (f"died of {signal.Signals(-code).name}" if code < 0 else f"left with {code} without an answer")
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - _TAIL_BYTES))
        said = self._errors.read().decode(errors="replace").strip()
        said = re.sub(r'"/[^"]*/(?=site-packages/|gridpact/)', '"', said)  # whose machine it was is no evidence
        return {"verdict": "violated", "expected": "an answer", "observed": how, "program": told, "stderr": said}

    _code = 0

    def close(self) -> None:
        """End the process for good."""
        self.stop()
        self._errors.close()

    def stop(self) -> None:
        """End the process and all that it started."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.05)  # it may be on its way out: its own reason says more than our signal
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        self._code = process.wait()
        self._folder.cleanup()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
