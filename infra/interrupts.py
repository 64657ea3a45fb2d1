"""Ctrl-C while a program imports its libraries, which takes seconds, ends it in one line.

Import this before the others. infra/endings.py takes over once the program itself begins.
"""

import os
import signal
import sys

PROGRAMS = ("train.py", "evaluate.py", "bench.py")  # a notebook that imports them is left alone


def end(number: int, _) -> None:
    """Exit at once: an exception would leave an import half done, with its traceback."""
    os.write(2, f"{program}: stopped by Ctrl-C\n".encode())
    os._exit(128 + number)


program = os.path.basename(sys.argv[0])
if program in PROGRAMS:
    signal.signal(signal.SIGINT, end)
