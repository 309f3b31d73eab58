"""One subject in a process of its own: requests and answers are JSON lines on its standard input and output.

Run as a file, so that it works in an environment where gridpact is not installed: it loads the package by its path.
What the subject or its libraries print goes to standard error. A case that kills this process costs that case.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib.util
import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, TextIO

PROGRAM = "program-of-the-case.py"
"""In the process's temporary folder: the case's launches so far."""


def load_package() -> None:
    """Import gridpact from the folder of this file, without what else may be installed beside it."""
    if "gridpact" in sys.modules:
        return
    root = Path(__file__).resolve().parent.parent
    spec = importlib.util.spec_from_file_location(
        "gridpact", root / "__init__.py", submodule_search_locations=[str(root)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"no package at {root}")
    sys.modules["gridpact"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def main(name: str, saboteur: str) -> None:
    """Serve one subject until standard input ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: do not outlive the run
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what C code prints must not get among the answers
    sys.stdout = sys.stderr
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _answer(answers, _open(name, saboteur))
    for line in sys.stdin:
        _answer(answers, _ask(json.loads(line)["case"]))


_subject: Any = None


def _open(name: str, saboteur: str) -> dict[str, Any]:
    global _subject
    try:
        load_package()
        from gridpact.conformance.model import load_contract
        from gridpact.conformance.subjects import open_subject

        _subject = open_subject(name)
        if saboteur:
            from gridpact.conformance.saboteurs import SABOTEURS

            SABOTEURS[saboteur].break_launcher(_subject)
            _subject.saboteur, _subject.broken = saboteur, SABOTEURS[saboteur].clauses
        load_contract()
    except BaseException as error:  # whatever keeps a subject from being asked is its state, told to the run
        return {"ready": False, "reason": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
    return {
        "ready": True,
        "subject": f"{_subject.name}+{saboteur}" if saboteur else _subject.name,
        "is_own": _subject.is_own,
        "runs": _subject.runs,
        "device": _subject.device,
        "driver": _subject.driver,
        "versions": _subject.versions,
    }


def _ask(case_id: str) -> dict[str, Any]:
    from gridpact.conformance.check import Asked
    from gridpact.conformance.model import CASES, Unguarded, Unimplemented, Unsupported, Violated

    kept = Path(tempfile.gettempdir()) / PROGRAM
    kept.unlink(missing_ok=True)
    asked = Asked(kept=kept)
    _subject.begin(asked)
    begin = time.perf_counter()
    answer: dict[str, Any]
    try:
        CASES[case_id].run(_subject)
        if asked.checks:
            answer = {"verdict": "pass", "expected": asked.due, "observed": asked.seen, "checks": asked.checks}
        else:
            answer = {"verdict": "error", "expected": "", "observed": "the case made no check"}
    except Unsupported as reason:
        answer = {"verdict": "unsupported", "expected": "", "observed": str(reason)}
    except Unimplemented as reason:
        answer = {"verdict": "unimplemented", "expected": "", "observed": str(reason)}
    except Unguarded as broken:
        answer = {"verdict": "violated" if _subject.is_own else "unguarded", **_told(broken, asked)}
    except Violated as broken:
        answer = {"verdict": "violated", **_told(broken, asked)}
    except BaseException:  # the suite's own fault
        answer = {"verdict": "error", "expected": "", "observed": traceback.format_exc()}
    duration_s = round(time.perf_counter() - begin, 6)
    is_spent = answer["verdict"] != "pass" and _subject.is_poisoned()
    return {**answer, "duration_s": duration_s, "is_spent": is_spent}


def _told(broken: Any, asked: Any) -> dict[str, Any]:
    return {
        "asked": broken.asked,
        "expected": str(broken.due),
        "observed": str(broken.seen),
        "program": asked.script.text,
    }


def _answer(answers: TextIO, what: dict[str, Any]) -> None:
    answers.write(json.dumps(what) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "")
