"""Workers for `run_each`: what each item says is what happens."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
import types
from pathlib import Path


class Doing:
    """`worker((what, *details))` does it."""

    def __init__(self, setup):
        self.setup = setup
        self.calls = 0

    def __call__(self, item):
        self.calls += 1
        what, *details = item
        return getattr(self, what)(*details)

    def twice(self, number):
        return (2 * number, self.setup, self.calls, os.getpid())

    def segfault(self):
        print("about to read address 0", flush=True)
        ctypes.string_at(0)

    def leave(self, code):
        os._exit(code)

    def take(self, size):
        taken = bytearray(size)
        time.sleep(20)
        return len(taken)

    def its_limit(self):
        from gradprobe.processes.resource_limits import limit

        return limit()

    def lose_the_device(self, raised):
        def fail():
            raise RuntimeError("CUDA error: misaligned address\nCompile with ...")

        cuda = types.SimpleNamespace(is_initialized=lambda: True, synchronize=fail)
        sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
        if raised:
            raise RuntimeError(raised)
        return "as if nothing had happened"

    def sys_exit(self, code):
        sys.exit(code)

    def kill(self, number):
        os.kill(os.getpid(), number)

    def hang(self):
        time.sleep(600)

    def hang_in_c(self):
        # PyDLL keeps the GIL: no Python thread of this process runs meanwhile.
        sleep = ctypes.PyDLL(None).sleep
        while True:
            sleep(600)

    def nap(self, seconds):
        time.sleep(seconds)
        return seconds

    def seeing(self, seconds, fate):
        time.sleep(seconds)
        if fate == "killed":
            os.kill(os.getpid(), 9)
        return os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ["GRADPROBE_SHARED_BY"]

    def huge(self, count):
        return b"x" * count

    def printing(self, lines):
        for number in range(lines):
            print(f"line {number} of Python", "." * 80)
        ctypes.CDLL(None).puts(b"a line of C")
        os.write(1, b"a line on descriptor 1\n")
        return lines

    def writing(self, words):
        number = next(n for n in range(3, 256) if Path(f"/proc/self/fd/{n}").is_socket())
        os.write(number, words)
        time.sleep(600)

    def closing(self):
        os.closerange(3, 256)

    def becoming(self, *command):
        os.execvp(command[0], command)

    def raising(self, words):
        raise ValueError(words)

    def unpicklable(self):
        return threading.Lock()

    def with_a_grandchild(self, file, how):
        own = {} if how == "without its word" else dict(os.environ)
        command = [sys.executable, "-c", "import time; time.sleep(600)"]
        session = how == "in a session"
        started = subprocess.Popen(command, env=own, start_new_session=session)
        Path(file).write_text(str(started.pid))
        time.sleep(600)

    def main_module(self):
        return vars(sys.modules["__main__"]).get("__file__")


class Unmade:
    """A start raises, crashes or hangs, or all "but the second" or only the "first" are made; items kill it."""

    def __init__(self, setup):
        log, how = setup
        with open(log, "a") as file:
            file.write("made\n")
        if how == "raises":
            raise RuntimeError("no worker today")
        if how == "hangs":
            time.sleep(600)
        count = len(Path(log).read_text().splitlines())
        if (
            how == "crashes"
            or (how == "first" and count > 1)
            or (how[:3] == "but" and count == 2)
        ):
            ctypes.string_at(0)

    def __call__(self, item):
        os.kill(os.getpid(), signal.SIGSEGV)
