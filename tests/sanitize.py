"""Build the native path for the sanitizers, and run native_stress.py and native_stress_sycl.py on it.

AddressSanitizer and UndefinedBehaviorSanitizer stop at the first report. Leaks are counted by test_native_memory.py:
CPython itself, NumPy and LLVM leave too much behind at exit for LeakSanitizer to say anything. What is built lies in a
temporary folder, with a copy of the package; the checkout stays as it is.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
PACKAGE = HERE.parent / "src" / "gridpact"
FLAGS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g", "-O1"]
WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror"]


def build(folder):
    """Copy the package and build its extension there."""
    shutil.copytree(PACKAGE, folder / "gridpact", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True
    from gridpact.native import source_digest

    native = folder / "gridpact" / "native"
    subprocess.run(
        [
            *("gcc", "-std=gnu11", "-shared", "-fPIC", "-fvisibility=hidden", *FLAGS, *WARNINGS),
            f'-DGRIDPACT_SOURCE="{source_digest(native)}"',
            f"-I{sysconfig.get_paths()['include']}",
            *(str(native / name) for name in ("path.c", "values.c", "flights.c", "cuda.c")),
            *("-o", str(native / f"path{sysconfig.get_config_var('EXT_SUFFIX')}"), "-ldl", "-lm"),
        ],
        check=True,
    )


def runtime(name):
    """Give the path of one of the compiler's own libraries."""
    asked = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return asked.stdout.strip()


def main(parts):
    """Build, run all or the parts that are named, and give the exit status."""
    with tempfile.TemporaryDirectory(prefix="gridpact-sanitized-") as made:
        build(Path(made))
        environment = {
            **os.environ,
            "PYTHONPATH": made,
            "PYTHONMALLOC": "malloc",  # else a freed object lies in an arena that AddressSanitizer does not know
            "PYTHONDONTWRITEBYTECODE": "1",
            # C++ throws in LLVM, and the sanitizer has to find what it wraps there.
            "LD_PRELOAD": " ".join(map(runtime, ("libasan.so", "libubsan.so", "libstdc++.so.6"))),
            "ASAN_OPTIONS": "halt_on_error=1:detect_leaks=0:detect_stack_use_after_return=1:strict_string_checks=1",
            "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
            "XDG_CACHE_HOME": f"{made}/cache",  # the driver that runs nothing is built for the sanitizers, too
            "GRIDPACT_SANITIZED": made,
        }
        for program in (["native_stress.py", *parts], *([] if parts else [["native_stress_sycl.py"]])):
            print(*program, flush=True)
            ran = subprocess.run([sys.executable, HERE / program[0], *program[1:]], env=environment, check=False)
            if ran.returncode:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
