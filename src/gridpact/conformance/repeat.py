"""Run findings by hand: `python -m gridpact.conformance.repeat evidence/upstream.jsonl [all]`.

The program of each violated record runs alone, in the environment that its subject lived in, and what it prints is
shown below what was due and seen; of cases of one name the first, or all of them. Ends with 1 if a finding has no
program, or one that dies, hangs or ends with an error where the case did not.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from gridpact.conformance.evidence import Record, apart, read
from gridpact.conformance.isolation import interpreter

_LIMIT_S: Final = 60.0
_SHOWN: Final = 600


def findings(path: Path, every: bool) -> list[Record]:
    """Give violated records: the first of each subject, clause and name, or all."""
    chosen: dict[tuple[str, str], Record] = {}
    for record in apart(list(read(path))):
        if record.verdict == "violated":
            chosen.setdefault((record.subject, record.case if every else record.question), record)
    return list(chosen.values())


def python_of(record: Record) -> str:
    """Give the Python of the environment that a record's subject lived in, by the command that asked it."""
    name, version = record.subject.split()[0], record.versions.get("triton", "")
    for folder in re.findall(rf"{re.escape(name)}@(\S+?)'?(?:\s|$)", record.command):
        if version.replace(".", "-") in folder:
            return str(interpreter(folder).absolute())
    return sys.executable


def repeat(record: Record) -> bool:
    """Run a finding's program and print what it prints; whether it ran as the case did."""
    print(f"\n{record.subject}  {record.case}\n  due   {record.expected}\n  seen  {record.observed.strip()}")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program.py"
        program.write_text(record.program)
        env = {**os.environ, "TMPDIR": folder, "TRITON_CACHE_DIR": f"{folder}/cache"}
        command = [python_of(record), str(program)]
        try:
            ran = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, env=env, check=False)
        except subprocess.TimeoutExpired:
            print(f"  now   hung: no end in {_LIMIT_S:g} s", flush=True)
            return "hung" in record.observed
    said = ran.stdout.strip()[-_SHOWN:] or ran.stderr.strip()[-_SHOWN:]
    print("  now   " + "\n        ".join(said.splitlines()) + f"\n        exit code {ran.returncode}", flush=True)
    if ran.returncode > 0:  # only if an error is what the case saw, and it is the same
        error = re.match(r"\w+(?=: )", record.observed)
        return error is not None and error.group() in ran.stderr
    return bool(record.program) and (ran.returncode == 0 or "died" in record.observed)


def main(path: str, every: str = "") -> int:
    """Repeat the findings of a file of evidence."""
    results = [repeat(record) for record in findings(Path(path), every == "all")]
    print(f"\n{len(results)} findings run by hand, {results.count(False)} not as the case did")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
