"""A system-call filter (seccomp): refuses calls that a program never needs.

Any user may install a filter. A filter cannot be removed, and children and threads inherit it.
Refused calls fail with EPERM, so `os.fork()` or `socket.socket()` raises PermissionError.

The filter is a BPF program in the kernel. It reads a call's number and the lower halves of its
arguments, and returns a verdict.
"""

import ctypes
import errno
import functools
import platform
import struct

from .syscalls import BY_ARGUMENT, FILES, MEMORY, OTHERS, PROCESSES, SIGNALS, SYSTEM

MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column, AUDIT_ARCH_...

# Instructions: load a word of the call's record; jump if equal, at least, or any bit set; return.
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16  # offsets in the record

ALLOW = 0x7FFF0000
REFUSE = 0x00050000 | errno.EPERM
UNKNOWN = 0x00050000 | errno.ENOSYS  # glibc then uses the older call
KILL = 0x80000000

CLONE_THREAD = 0x10000
WRITING = 0x1 | 0x2 | 0x40 | 0x200  # O_WRONLY, O_RDWR, O_CREAT; O_TRUNC, which Landlock allows
NEWEST = 457  # this and all later calls are reported as unknown; no libc needs them yet
# Commands that affect only this process's descriptors. Others set leases, receivers of signals,
# flags of files (chattr) or a terminal's input.
FCNTL = (0, 1, 2, 3, 4, 9, 1030, 1032, 1034)  # F_DUPFD to F_SETFL, F_GETOWN, F_DUPFD_CLOEXEC, ...
IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS, FIONREAD, FIONBIO, ...
NOT_A_STREAM = 0xE  # bits of a socket's type: SOCK_DGRAM and others can send to any address

DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG, which walls.py sets

PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2


class Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def instruction(code: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, operand)


@functools.cache  # built once, by the server
def build(strict: bool) -> bytes:
    """The filter's instructions for this machine.

    strict: also refuse signals and the file changes that Landlock allows; needed without
    namespaces. Raises OSError on a machine that is not in MACHINES.
    """
    if platform.machine() not in MACHINES:
        raise OSError(f"not available for {platform.machine()}")
    column, architecture = MACHINES[platform.machine()]

    def number(name: str) -> int | None:
        return BY_ARGUMENT[name][column]

    refused = [PROCESSES, OTHERS, SYSTEM, MEMORY]
    if strict:
        refused += [SIGNALS, FILES]

    code = [
        instruction(LOAD, ARCHITECTURE),
        instruction(EQUAL, architecture, if_true=1),
        instruction(RETURN, KILL),
        instruction(LOAD, NUMBER),
        instruction(AT_LEAST, NEWEST, if_false=1),
        instruction(RETURN, UNKNOWN),
    ]
    for calls in refused:
        for numbers in calls.values():
            if numbers[column] is not None:
                code += when_called(numbers[column], REFUSE)

    code += when_called(number("clone3"), UNKNOWN)  # a filter cannot read its flags
    code += when_argument(number("clone"), 0, ANY_BIT, CLONE_THREAD, ALLOW, REFUSE)
    code += when_argument(number("prlimit64"), 0, EQUAL, 0, ALLOW, REFUSE)  # 0 is this process
    code += when_argument(number("prctl"), 0, EQUAL, DIE_WITH_PARENT, REFUSE, ALLOW)
    code += when_argument(number("socketpair"), 1, ANY_BIT, NOT_A_STREAM, REFUSE, ALLOW)
    if strict:
        code += when_called(number("openat2"), UNKNOWN)
        code += when_argument(number("openat"), 2, ANY_BIT, WRITING, REFUSE, ALLOW)
        if number("open") is not None:
            code += when_argument(number("open"), 1, ANY_BIT, WRITING, REFUSE, ALLOW)
        code += unless_command(number("fcntl"), FCNTL, REFUSE)
        code += unless_command(number("ioctl"), IOCTL, REFUSE)
    code.append(instruction(RETURN, ALLOW))
    return b"".join(code)


def when_called(number: int, verdict: int) -> list[bytes]:
    """The verdict on a call by its number."""
    return [instruction(EQUAL, number, if_false=1), instruction(RETURN, verdict)]


def when_argument(
    number: int, argument: int, test: int, operand: int, if_true: int, if_false: int
) -> list[bytes]:
    """The verdict on a call by one of its arguments."""
    return [
        instruction(EQUAL, number, if_false=4),
        instruction(LOAD, ARGUMENTS + 8 * argument),
        instruction(test, operand, if_false=1),
        instruction(RETURN, if_true),
        instruction(RETURN, if_false),
    ]


def unless_command(number: int, commands: tuple[int, ...], verdict: int) -> list[bytes]:
    """The verdict on a call whose second argument is not one of these commands."""
    code = [
        instruction(EQUAL, number, if_false=2 * len(commands) + 2),
        instruction(LOAD, ARGUMENTS + 8),
    ]
    for command in commands:
        code += when_called(command, ALLOW)  # this time it tests the loaded argument
    return [*code, instruction(RETURN, verdict)]


def install(libc: ctypes.CDLL, strict: bool) -> None:
    """Install the filter in this process, permanently. Raises OSError if the kernel refuses."""
    instructions = build(strict)
    program = Program(len(instructions) // 8, instructions)
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp rejected the filter")
