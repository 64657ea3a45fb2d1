"""The wall around a program: it can read Python's libraries, compute, and answer. Nothing else.

Three parts hold for every user, without namespaces or packages: Landlock for files and other
processes (landlock.py), a filter of system calls (seccomp.py), and the kernel's limits. Root stays
root, because only root may be able to read its Python, but loses all capabilities.
"""

import ctypes
import os
import resource
import signal
import sys
from pathlib import Path

from .landlock import Ruleset
from .seccomp import Filter

ROOTS = sorted({sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix})
# Folders of libraries, and not /usr, which may contain a project.
LIBRARIES = ["/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/local/lib", "/lib", "/lib64"]
LIBRARIES += ["/nix/store", "/usr/share/zoneinfo", "/etc/ld.so.cache", "/etc/localtime"]
DEVICES = ["/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"]

# prctl(2)
DIE_WITH_PARENT, DUMPABLE, NO_NEW_RIGHTS = 1, 4, 38
CAPABILITIES_VERSION = 0x20080522

MB = 2**20
# watch.py limits time, output and threads.
LIMITS = {
    resource.RLIMIT_STACK: 100 * MB,
    resource.RLIMIT_NOFILE: 16,  # a pair of sockets holds 0.4 MB that RLIMIT_AS does not count
    resource.RLIMIT_FSIZE: 0,
    resource.RLIMIT_MEMLOCK: 0,
}

libc = ctypes.CDLL(None, use_errno=True)


class Wall:
    """What all programs of a server share. Made once, in the server.

    Raises OSError if this machine lacks a part of the wall.
    """

    def __init__(self):
        Path("/proc/self/oom_score_adj").write_text("1000")  # killed first if memory runs out
        header = (ctypes.c_uint32 * 2)(CAPABILITIES_VERSION, 0)
        if libc.capset(header, (ctypes.c_uint32 * 6)()) != 0:
            raise OSError(ctypes.get_errno(), "capset")
        prctl(NO_NEW_RIGHTS, 1)
        prctl(DUMPABLE, 0)  # no core dumps
        for root in ROOTS:
            if not os.access(root, os.R_OK):
                raise OSError(f"root without capabilities cannot read {root}: run as its owner")
        places = [place for place in library_folders() if os.path.exists(place)]
        self.ruleset = Ruleset([*places, *DEVICES], ["/dev/null"])
        self.filter = Filter()

    def enter(self, memory_mb: int, server: int) -> int:
        """Put this process, a child of `server`, behind the wall, permanently.

        Returns the listener for new threads, which the program must not have. Raises OSError.
        """
        os.setsid()  # no terminal
        os.sched_setaffinity(0, {libc.sched_getcpu()})  # libraries then start one thread
        for name, value in {**LIMITS, resource.RLIMIT_AS: memory_mb * MB}.items():
            highest = resource.getrlimit(name)[1]
            value = value if highest == resource.RLIM_INFINITY else min(value, highest)
            resource.setrlimit(name, (value, value))
        prctl(DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != server:
            raise OSError("the server has ended")
        self.ruleset.enter()
        return self.filter.enter()


def prctl(option: int, value: int) -> None:
    """Call prctl(2). Raises OSError."""
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def library_folders() -> list[str]:
    """The libraries of the interpreter and of the system. sys.path may name other folders."""
    folders = [os.path.join(root, name) for root in ROOTS for name in ("lib", "lib64")]
    linked = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    return [*folders, *filter(os.path.isabs, linked), *LIBRARIES]
