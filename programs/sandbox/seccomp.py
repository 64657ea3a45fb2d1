"""A filter of system calls: a program may make those of allowed.csv (man 2 seccomp).

The filter cannot be removed, and threads inherit it. A refused call fails with EPERM, so os.fork()
or socket.socket() raises PermissionError. A new thread waits until watch.py admits it, because the
kernel's limit on processes exempts root. The filter is a BPF program in the kernel: it reads a
call's number and the lower halves of its arguments, and returns a verdict.
"""

import csv
import ctypes
import errno
import os
import platform
import struct
from pathlib import Path

ALLOWED = Path(__file__).parent / "allowed.csv"  # call, number on each machine
# Calls with this number or a later one are answered as by Linux 5.0, and libc then uses older ones.
# The filter could not read the arguments of clone3 and openat2.
NEWEST = 424
ACCESS, TRUNCATE = 0x3, 0x200  # O_ACCMODE, O_TRUNC; up to Linux 6.1 Landlock allows truncation
OPENING = (0, 1, 2, 1 | TRUNCATE, 2 | TRUNCATE)  # reading, and writing where Landlock permits it
# Commands that affect only this process's descriptors. Others set leases, locks, receivers of
# signals, the size of pipes, flags of files (chattr) or a terminal's input.
FCNTL = (0, 1, 2, 3, 4, 9, 1030, 1032, 1034)  # F_DUPFD to F_SETFL, F_GETOWN, F_DUPFD_CLOEXEC, ...
IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS, FIONREAD, FIONBIO, ...
# Only through this socket may descriptors be sent: a process reports through it, then closes it. No
# new descriptor gets this number, because RLIMIT_NOFILE (OPEN_FILES in wall.py) is lower.
DOOR = 20
WHOLE = 0xFFFFFFFF

# Calls that are allowed if each condition (argument, mask, values) holds: the argument's bits under
# the mask have one of the values.
CONDITIONS = {
    # CLONE_THREAD, CLONE_FILES: a process, or a table of descriptors for each thread, is refused.
    "clone": [(0, 0x10400, (0x10400,))],
    "open": [(1, ACCESS | TRUNCATE, OPENING)],
    "openat": [(2, ACCESS | TRUNCATE, OPENING)],
    # MAP_SHARED of files, MAP_PRIVATE. RLIMIT_AS does not count shared memory whose map has shrunk.
    "mmap": [(3, 0x4002F, (0x01, 0x02, 0x22))],  # no MAP_HUGETLB: those pages are reserved
    "sendto": [(3, 0x1, (0,))],  # no MSG_OOB: it was a way out of Chrome's filter, CVE-2025-38236
    "fcntl": [(1, WHOLE, FCNTL)],
    "ioctl": [(1, WHOLE, IOCTL)],
    "prctl": [(0, WHOLE, (15, 16))],  # PR_SET_NAME, PR_GET_NAME
    "prlimit64": [(0, WHOLE, (0,))],  # of this process
    "sendmsg": [(0, WHOLE, (DOOR,))],
    # AF_UNIX, SOCK_STREAM: sockets of other kinds can send to any address.
    "socketpair": [(0, WHOLE, (1,)), (1, 0xF, (1,))],
}

ALLOW, KILL, ASK = 0x7FFF0000, 0x80000000, 0x7FC00000  # verdicts; ASK: the listener decides
REFUSE, UNKNOWN = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
LOAD, AND, EQUAL, AT_LEAST, RETURN = 0x20, 0x54, 0x15, 0x35, 0x06  # instructions
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16  # offsets in the kernel's record of a call

MACHINES = {"x86_64": (0xC000003E, 317), "aarch64": (0xC00000B7, 277)}  # AUDIT_ARCH, seccomp(2)
SET_FILTER, NEW_LISTENER = 1, 8
libc = ctypes.CDLL(None, use_errno=True)


class Filter:
    """The filter for this machine. Raises OSError if its system calls are not known."""

    def __init__(self):
        machine = platform.machine()
        if machine not in MACHINES:
            raise OSError(f"no system-call filter for {machine}")
        architecture, self.seccomp = MACHINES[machine]
        code = [
            instruction(LOAD, ARCHITECTURE),
            instruction(EQUAL, architecture, if_true=1),
            instruction(RETURN, KILL),
            instruction(LOAD, NUMBER),
            instruction(AT_LEAST, NEWEST, if_false=1),
            instruction(RETURN, UNKNOWN),
        ]
        for row in csv.DictReader(ALLOWED.read_text().splitlines()):
            if row[machine]:
                code += rule(row["call"], int(row[machine]))
        self.code = b"".join([*code, instruction(RETURN, REFUSE)])

    def enter(self) -> int:
        """Filter this process's calls from now on. Returns the listener. Raises OSError."""
        code = ctypes.create_string_buffer(self.code)
        program = struct.pack("@HP", len(self.code) // 8, ctypes.addressof(code))  # sock_fprog
        return checked(libc.syscall(self.seccomp, SET_FILTER, NEW_LISTENER, program), "seccomp")


def rule(name: str, number: int) -> list[bytes]:
    """The instructions for one allowed call."""
    code = []
    for argument, mask, values in CONDITIONS.get(name, []):
        code += [instruction(LOAD, ARGUMENTS + 8 * argument), instruction(AND, mask)]
        for left, value in zip(range(len(values), 0, -1), values, strict=True):
            code.append(instruction(EQUAL, value, if_true=left))  # past the next RETURN
        code.append(instruction(RETURN, REFUSE))
    code.append(instruction(RETURN, ASK if name == "clone" else ALLOW))
    return [instruction(EQUAL, number, if_false=len(code)), *code]


def instruction(code: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """One BPF instruction, as a struct sock_filter."""
    return struct.pack("=HBBI", code, if_true, if_false, operand)


def checked(result: int, what: str) -> int:
    """The result of a call to the C library. Raises OSError if it failed."""
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return result
