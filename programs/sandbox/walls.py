"""The walls around a program: an unprivileged user, namespaces with a separate root, limits.

server.py enters the namespaces once. Each program then gets separate process, mount and System V
IPC namespaces inside them. All calls go to the C library. No privilege is needed if the kernel
allows user namespaces. See man 7 user_namespaces, mount_namespaces and pid_namespaces.
"""

import ctypes
import errno
import os
import resource
import signal
import sys

from . import landlock

libc = ctypes.CDLL(None, use_errno=True)

# unshare(2)
NEW_MOUNTS, NEW_NAMES, NEW_IPC = 0x20000, 0x4000000, 0x8000000
NEW_USERS, NEW_PIDS, NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000

# mount(2)
READ_ONLY, NO_SUID, NO_DEVICES, NO_PROGRAMS, REMOUNT = 1, 2, 4, 8, 32
BIND, RECURSIVE, PRIVATE, RELATIVE_TIMES = 4096, 16384, 1 << 18, 1 << 21
DETACH = 2  # umount2(2)

MOUNT_SETATTR, PIVOT_ROOT = 442, {"x86_64": 155, "aarch64": 41}  # not in the C library
AT_RECURSIVE = 0x8000

# prctl(2)
DIE_WITH_PARENT, DUMPABLE, NO_NEW_RIGHTS = 1, 4, 38
CAPABILITIES_VERSION = 0x20080522
SYSTEM_ADMINISTRATOR = 21  # CAP_SYS_ADMIN

SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store")
SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/localtime")
DEVICES = ("null", "zero", "full", "random", "urandom")
LINKS = {"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"}  # in /dev, to /proc/self/fd...
HOME = "/program"  # a program's folder in its root; not /tmp, which may contain Python

PROCESSES = 64  # processes and threads that a program may start; its user may already have some
OPEN_FILES = 64
STACK_MB = 100  # the kernel reserves slightly more than this much address space for the stack
MB = 2**20


def call(function, *arguments) -> None:
    """Call the C library. Raises OSError if the call fails."""
    if function(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{function.__name__}: {os.strerror(code)}")


def prctl(option: int, value: int) -> None:
    call(libc.prctl, option, ctypes.c_ulong(value), 0, 0, 0)


def unshare(kinds: int) -> None:
    call(libc.unshare, kinds)


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    texts = [text.encode() for text in (source, target, kind)]
    call(libc.mount, *texts, ctypes.c_ulong(flags), options.encode())


# ---- once for each server ------------------------------------------------------------------------


def leave_root() -> None:
    """If the server runs as root, continue as an unprivileged user without files or processes.

    Raises OSError if that user could not read Python.
    """
    if os.geteuid() != 0:
        return
    user = 61184 + os.getpid() % 4000  # from systemd's range of dynamic users
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    prctl(DUMPABLE, 1)  # so the new user owns the process's files in /proc
    if not os.access(os.__file__, os.R_OK):
        raise OSError(errno.EACCES, f"root's Python, {sys.prefix}, cannot be read by other users")


def enter_namespaces() -> None:
    """Enter new user, mount, network, IPC and host-name namespaces, with a new root.

    Raises OSError if the kernel or its configuration does not allow this.
    """
    kinds = NEW_MOUNTS | NEW_NETWORK | NEW_IPC | NEW_NAMES
    user, group = os.geteuid(), os.getegid()
    if user == 0 and may_administer():
        unshare(kinds)
        build_root()  # as root, because only root may be able to read its Python
        leave_root()
        user, group = os.geteuid(), os.getegid()
        unshare(NEW_USERS | NEW_MOUNTS)
        map_user(user, group)
        return

    leave_root()
    user, group = os.geteuid(), os.getegid()
    unshare(NEW_USERS | kinds)
    map_user(user, group)
    build_root()


def may_administer() -> bool:
    """Whether this process has CAP_SYS_ADMIN; root in a container may lack it."""
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith("CapEff"))
    return bool(int(line.split()[1], 16) >> SYSTEM_ADMINISTRATOR & 1)


def map_user(user: int, group: int) -> None:
    """Map the user and group to the same numbers inside the new user namespace."""
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def build_root() -> None:
    """Build a root with Python, the system's libraries and a few devices, all read-only.

    No other part of the disk is visible: no home, no data sets, no source code.
    """
    mount("none", "/", flags=RECURSIVE | PRIVATE)  # mounts stay invisible outside
    root = "/tmp"
    opened = {}  # opened first, because the new root may hide some of these folders
    for folder in python_folders():
        opened[folder] = os.open(folder, os.O_PATH | os.O_DIRECTORY)

    mount("tmpfs", root, "tmpfs", NO_SUID | NO_DEVICES, "size=1m,mode=755")
    for folder, descriptor in opened.items():
        show_folder(descriptor, folder, root + folder)
        os.close(descriptor)
    for file in SYSTEM_FILES:
        if os.path.isfile(file):
            show_file(file, root + file)
    for device in DEVICES:
        show_file(f"/dev/{device}", f"{root}/dev/{device}")
    for name, place in LINKS.items():
        os.symlink(f"/proc/self/fd{place}", f"{root}/dev/{name}")

    os.mkdir(f"{root}/proc")
    mount("/proc", f"{root}/proc", flags=BIND | RECURSIVE)
    os.mkdir(f"{root}{HOME}")
    make_read_only(root, recursive=False)

    os.chdir(root)
    number = PIVOT_ROOT[os.uname().machine]
    call(libc.syscall, number, b".", b".")  # the old root is now mounted over the new one
    call(libc.umount2, b".", DETACH)
    os.chdir("/")


def python_folders() -> list[str]:
    """The folders that a program needs; none of them is inside another."""
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    wanted = [*SYSTEM_FOLDERS, sys.base_prefix, sys.prefix, *sys.path, *libraries]
    folders = []
    for folder in sorted(
        {os.path.abspath(each) for each in wanted if each and os.path.isdir(each)}
    ):
        if not any(folder.startswith(each + "/") for each in folders):
            folders.append(folder)
    return folders


def show_folder(descriptor: int, folder: str, target: str) -> None:
    if folder in SYSTEM_FOLDERS and os.path.islink(folder):  # /bin is often a link to /usr/bin
        os.symlink(os.readlink(folder), target)
        return
    os.makedirs(target, exist_ok=True)
    os.fchdir(descriptor)
    mount(".", target, flags=BIND | RECURSIVE)
    make_read_only(target)


def show_file(file: str, target: str) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "w"):
        pass
    mount(file, target, flags=BIND)
    make_read_only(target)


def make_read_only(target: str, recursive: bool = True) -> None:
    """Make a mount read-only and, from kernel 5.12 on, all mounts below it."""
    attributes = (ctypes.c_uint64 * 4)(READ_ONLY | NO_SUID, 0, 0, 0)
    flags = AT_RECURSIVE if recursive else 0
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    done = libc.syscall(MOUNT_SETATTR, -100, target.encode(), flags, attributes, size)
    if done == 0:
        return
    if ctypes.get_errno() != errno.ENOSYS:
        raise OSError(ctypes.get_errno(), f"mount_setattr on {target}")

    present = os.statvfs(target).f_flag
    kept = present & (NO_DEVICES | NO_PROGRAMS)
    if present & os.ST_RELATIME:
        kept |= RELATIVE_TIMES
    mount("none", target, flags=REMOUNT | BIND | READ_ONLY | NO_SUID | kept)


# ---- for each program ----------------------------------------------------------------------------


def separate() -> None:
    """Enter new namespaces. The next child of this process becomes their first process."""
    unshare(NEW_PIDS | NEW_MOUNTS | NEW_IPC)


def furnish() -> None:
    """Mount a new /proc and an empty folder for the program; called first in the new child."""
    flags = NO_SUID | NO_DEVICES | NO_PROGRAMS
    try:
        mount("proc", "/proc", "proc", flags | READ_ONLY)
    except OSError:  # refused in some containers; then /proc is empty
        mount("tmpfs", "/proc", "tmpfs", flags | READ_ONLY, "size=4k")
    mount("tmpfs", HOME, "tmpfs", flags, "size=16m,nr_inodes=1000,mode=700")


def limit(cpu_seconds: float, memory_mb: int, processes: int) -> None:
    """Set the kernel's limits, permanently. The supervisor enforces the CPU limit exactly."""
    seconds = int(cpu_seconds) + 2
    limits = {
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_AS: memory_mb * MB,
        resource.RLIMIT_STACK: STACK_MB * MB,
        resource.RLIMIT_FSIZE: 16 * MB,
        resource.RLIMIT_NOFILE: OPEN_FILES,
        resource.RLIMIT_NPROC: processes,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    for name, value in limits.items():
        _, highest = resource.getrlimit(name)
        if highest != resource.RLIM_INFINITY:
            value = min(value, highest)
        resource.setrlimit(name, (value, value))


def stay_on_this_core() -> None:
    """Keep the program on one core, however many threads it starts."""
    core = libc.sched_getcpu()
    if core >= 0:
        os.sched_setaffinity(0, {core})


def give_up_rights() -> None:
    """Drop all capabilities, permanently, and die with the supervisor."""
    header = (ctypes.c_uint32 * 2)(CAPABILITIES_VERSION, 0)
    call(libc.capset, header, (ctypes.c_uint32 * 6)())
    prctl(NO_NEW_RIGHTS, 1)
    prctl(DIE_WITH_PARENT, signal.SIGKILL)


def close_other_files() -> None:
    """With Landlock, allow reading only the files that a separate root would contain."""
    files = [*SYSTEM_FILES, *(f"/dev/{device}" for device in DEVICES)]
    places = [*python_folders(), *files]
    landlock.restrict(libc, [place for place in places if os.path.exists(place)])


def processes_of_user() -> int:
    """The number of processes and threads of this user."""
    count = 0
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            if os.stat(f"/proc/{name}").st_uid == os.geteuid():
                count += len(os.listdir(f"/proc/{name}/task"))
        except OSError:  # the process has ended
            continue
    return count
