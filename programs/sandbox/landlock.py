"""Landlock: on kernels without user namespaces, a program can open only Python's files.

From Linux 5.13 on, any process may restrict itself with Landlock. The restriction cannot be lifted,
and threads inherit it. It also protects other processes' memory. A program can still see
names, sizes and dates of files, and the list of processes, because stat(2) is not restricted. The
system-call filter (seccomp.py) covers sockets and signals.
The numbers come from linux/landlock.h.
"""

import ctypes
import os
from collections.abc import Iterable

CREATE, ADD, RESTRICT = 444, 445, 446  # system calls, on every machine
ASK_VERSION = 1
BENEATH = 1  # the kind of rule: for a folder with its contents, or for a file

READ_FILE, READ_FOLDER = 1 << 2, 1 << 3
RIGHTS = {1: 13, 2: 14, 3: 15, 5: 16}  # version -> number of file rights in it


class Rule(ctypes.Structure):
    """struct landlock_path_beneath_attr."""

    _pack_ = 1
    _fields_ = [("rights", ctypes.c_uint64), ("descriptor", ctypes.c_int32)]


def restrict(libc: ctypes.CDLL, readable: Iterable[str]) -> None:
    """Let this process read only these folders and files, permanently.

    PR_SET_NO_NEW_PRIVS must already be set. Raises OSError.
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
    """Allow reading a file, or a folder with its contents."""
    descriptor = os.open(path, os.O_PATH)
    rights = READ_FILE | READ_FOLDER if os.path.isdir(path) else READ_FILE
    checked(libc.syscall(ADD, ruleset, BENEATH, ctypes.byref(Rule(rights, descriptor)), 0))
    os.close(descriptor)


def checked(result: int) -> int:
    """The result of a system call. Raises OSError if the call failed."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"Landlock: {os.strerror(code)}")
    return result
