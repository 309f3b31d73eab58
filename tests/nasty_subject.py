"""A subject whose launches die in the way that the file `how` beside it names: for the tests of isolation."""

import ctypes
import os
import subprocess
import threading
import time
from pathlib import Path

from gridpact.conformance.subjects.gridpact_device import reference


def nasty():
    subject = reference()
    launch = subject.launch

    def die(program, grid, *args, **kwargs):
        how = Path(__file__).with_name("how").read_text()
        if how == "segfault":
            Path(__file__).with_name("child").write_text(str(subprocess.Popen(["sleep", "600"]).pid))
            ctypes.string_at(0)
        elif how == "abort":
            os.abort()
        elif how == "leave":
            os._exit(3)
        elif how == "hang":
            time.sleep(1000)
        elif how == "hang_with_the_gil":
            library = ctypes.PyDLL(None)
            mutex = ctypes.create_string_buffer(64)
            library.pthread_mutex_lock(mutex)
            library.pthread_mutex_lock(mutex)
        elif how == "eat":
            eaten = []
            while True:
                eaten.append(bytearray(64 << 20))
        elif how == "poison":
            raise RuntimeError("the context is lost")
        elif how == "print":
            ctypes.CDLL(None).puts(b"noise from C")
            ctypes.CDLL(None).fflush(None)
            print("noise from Python")
        elif how == "die_in_the_kernel":
            kwargs["kernel"] = {grid: lambda *arguments: ctypes.string_at(0)}
        elif how == "die_afterwards":
            threading.Timer(0.3, ctypes.string_at, [0]).start()
        return launch(program, grid, *args, **kwargs)

    subject.launch = die
    subject.is_poisoned = lambda: Path(__file__).with_name("how").read_text() == "poison"
    return subject
