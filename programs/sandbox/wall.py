"""The wall around a program: it can read Python's libraries, compute, and answer. Nothing else.

Three parts hold for every user, without namespaces or packages: Landlock, a filter of system calls
(seccomp.py), and the kernel's limits. A program that root runs stays root, because only root may be
able to read root's Python, but it loses all capabilities.

Landlock (man 7 landlock) restricts files. Each process that enters it is a domain of its own, which
cannot read the memory of a process outside, nor follow that process's links in /proc. The rights of
its first version are enough: the filter refuses sockets, signals, and all changes of files.
"""

import ctypes
import os
import resource
import signal
import struct
import sys
from glob import glob
from pathlib import Path

from .seccomp import Filter, checked, libc

ROOTS = sorted({sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix})
# Only libraries: sys.path may name a project, and /usr may contain one.
SYSTEM = ["/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/local/lib", "/lib", "/lib64", "/nix/store"]
SYSTEM += ["/usr/share/zoneinfo", "/etc/ld.so.cache", "/etc/localtime", *glob("/dev/*random")]
NULL = "/dev/null"  # the only file that may be written

# linux/landlock.h. The system calls have the same numbers on every machine.
CREATE, ADD, ENTER = 444, 445, 446
BENEATH = 1
WRITE_FILE, READ_FILE, READ_FOLDER, ALL = 1 << 1, 1 << 2, 1 << 3, (1 << 13) - 1
DIE_WITH_PARENT, DUMPABLE, NO_NEW_RIGHTS, NO_HUGE_PAGES = 1, 4, 38, 41  # prctl(2)
CAPABILITIES_VERSION = 0x20080522

OPEN_FILES = 16  # a pair of sockets holds 0.4 MB that RLIMIT_AS does not count
MB = 2**20


class Wall:
    """What all programs of a server share. Raises OSError if this machine lacks a part of it."""

    def __init__(self):
        Path("/proc/self/oom_score_adj").write_text("1000")  # if memory runs out, kill these first
        header = (ctypes.c_uint32 * 2)(CAPABILITIES_VERSION, 0)
        checked(libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")
        # No core dumps. RLIMIT_AS does not count the rest of a huge page that is unmapped in part.
        for setting, value in {NO_NEW_RIGHTS: 1, DUMPABLE: 0, NO_HUGE_PAGES: 1}.items():
            checked(libc.prctl(setting, value, 0, 0, 0), "prctl")
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # it limits descriptors sent, too
        for root in ROOTS:
            if not os.access(root, os.R_OK):
                raise OSError(f"root without capabilities cannot read {root}: run as its owner")

        self.ruleset = landlock(CREATE, struct.pack("Q", ALL), ctypes.c_size_t(8), 0)
        libraries = [f"{root}/{name}" for root in ROOTS for name in ("lib", "lib64")]
        for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
            libraries += glob(f"{folder}/*.so*")
        for path in filter(os.path.exists, [*libraries, *SYSTEM, NULL]):
            rights = READ_FILE | (READ_FOLDER if os.path.isdir(path) else 0)
            rights |= WRITE_FILE if path == NULL else 0
            opened = os.open(path, os.O_PATH)
            landlock(ADD, self.ruleset, BENEATH, struct.pack("=Qi", rights, opened), 0)
            os.close(opened)
        self.filter = Filter()

    def enter(self, memory_mb: int, server: int) -> int:
        """Put this process, a child of `server`, behind the wall, permanently.

        Returns the listener for new threads, which the program must never get. Raises OSError.
        """
        os.sched_setaffinity(0, {libc.sched_getcpu()})  # libraries then start one thread
        limits = {resource.RLIMIT_STACK: 100 * MB, resource.RLIMIT_FSIZE: 0}
        limits[resource.RLIMIT_AS] = memory_mb * MB  # watch.py limits time, output and threads
        for name, value in limits.items():
            highest = resource.getrlimit(name)[1]
            value = value if highest == resource.RLIM_INFINITY else min(value, highest)
            # A stack is part of the address space, and contest programs raise its limit.
            most = highest if name == resource.RLIMIT_STACK else value
            resource.setrlimit(name, (value, most))
        checked(libc.prctl(DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0), "prctl")
        if os.getppid() != server:
            raise OSError("the server has ended")
        landlock(ENTER, self.ruleset, 0)
        os.close(self.ruleset)
        return self.filter.enter()


def landlock(*arguments) -> int:
    """The result of a system call of Landlock. Raises OSError."""
    return checked(libc.syscall(*arguments), "Landlock")
