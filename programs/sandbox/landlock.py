"""Landlock: a process gives up its access to files, permanently (man 7 landlock, Linux 5.13).

Each process that enters a ruleset is a domain: it cannot read the memory of a process outside, nor
follow that process's links in /proc. Landlock restricts neither stat(2) nor changes of a file's
owner, mode and times; the filter in seccomp.py refuses these changes. The numbers come from
linux/landlock.h.
"""

import ctypes
import os
import struct

CREATE, ADD, ENTER = 444, 445, 446  # system calls, on every machine
ASK_VERSION = 1
BENEATH = 1  # the kind of rule: for a folder with its contents, or for a file

WRITE_FILE, READ_FILE, READ_FOLDER = 1 << 1, 1 << 2, 1 << 3
# What a version of Landlock knows: (since version, rights on files, on the network, scopes). A
# scope keeps signals, and sockets without a file name, within the domain.
KNOWN = [(1, 13, 0, 0), (2, 14, 0, 0), (3, 15, 0, 0), (4, 15, 2, 0), (5, 16, 2, 0), (6, 16, 2, 2)]
SILENT, SILENT_SINCE = 1, 7  # refusals are not written to the system's log, which they could fill

libc = ctypes.CDLL(None, use_errno=True)


class Ruleset:
    """What stays permitted; everything else is given up. Raises OSError without Landlock.

    readable: folders and files to read
    writable: files to read and write
    """

    def __init__(self, readable: list[str], writable: list[str]):
        version = system_call(CREATE, None, ctypes.c_size_t(0), ASK_VERSION)
        known = max(row for row in KNOWN if row[0] <= version)
        given_up = struct.pack("QQQ", *[(1 << count) - 1 for count in known[1:]])
        self.flags = SILENT if version >= SILENT_SINCE else 0
        self.descriptor = system_call(CREATE, given_up, ctypes.c_size_t(len(given_up)), 0)
        for path in [*readable, *writable]:
            rights = READ_FILE | (READ_FOLDER if os.path.isdir(path) else 0)
            rights |= WRITE_FILE if path in writable else 0
            opened = os.open(path, os.O_PATH)
            system_call(ADD, self.descriptor, BENEATH, struct.pack("=Qi", rights, opened), 0)
            os.close(opened)

    def enter(self) -> None:
        """Restrict this process. PR_SET_NO_NEW_PRIVS must be set. Raises OSError."""
        system_call(ENTER, self.descriptor, self.flags)
        os.close(self.descriptor)


def system_call(*arguments) -> int:
    """The result of a system call. Raises OSError if it failed."""
    result = libc.syscall(*arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"Landlock: {os.strerror(code)}")
    return result
