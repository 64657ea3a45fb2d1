"""Landlock: a program opens no file but Python's, where the kernel gives it no namespaces.

Any user may restrict itself so, from Linux 5.13 on; nobody can lift it, and threads inherit it. A
process so restricted also has no look into the memory of processes outside. What remains in sight
are names, sizes and dates of files, and which processes there are: stat(2) asks no leave. Sockets
and signals are the filter's.
The numbers are those of linux/landlock.h.
"""

import ctypes
import os
from collections.abc import Iterable

CREATE, ADD, RESTRICT = 444, 445, 446  # system calls, on every machine
ASK_VERSION = 1
BENEATH = 1  # the kind of a rule: a folder and all in it, or a file

READ_FILE, READ_FOLDER = 1 << 2, 1 << 3
RIGHTS = {1: 13, 2: 14, 3: 15, 5: 16}  # version -> how many rights to files it knows


class Rule(ctypes.Structure):
    """struct landlock_path_beneath_attr."""

    _pack_ = 1
    _fields_ = [("rights", ctypes.c_uint64), ("descriptor", ctypes.c_int32)]


def restrict(libc: ctypes.CDLL, readable: Iterable[str]) -> None:
    """Leave this process, for good, to read what is in these folders and files; to open no more.

    It must have given up new rights (PR_SET_NO_NEW_PRIVS). Raises OSError.
    """
    found = checked(libc.syscall(CREATE, None, ctypes.c_size_t(0), ASK_VERSION))
    rights = (1 << max(count for since, count in RIGHTS.items() if since <= found)) - 1
    handled = ctypes.c_uint64(rights)
    size = ctypes.c_size_t(ctypes.sizeof(handled))
    ruleset = checked(libc.syscall(CREATE, ctypes.byref(handled), size, 0))
    for path in readable:
        allow(libc, ruleset, path)
    checked(libc.syscall(RESTRICT, ruleset, 0))
    os.close(ruleset)


def allow(libc: ctypes.CDLL, ruleset: int, path: str) -> None:
    """Reading of a file, or of a folder and all that is in it."""
    descriptor = os.open(path, os.O_PATH)
    rights = READ_FILE | READ_FOLDER if os.path.isdir(path) else READ_FILE
    checked(libc.syscall(ADD, ruleset, BENEATH, ctypes.byref(Rule(rights, descriptor)), 0))
    os.close(descriptor)


def checked(result: int) -> int:
    """The result of a system call. Raises OSError where it failed."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"Landlock: {os.strerror(code)}")
    return result
