"""A filter of system calls: what a program never needs is refused (man 2 seccomp).

The filter cannot be removed, and threads inherit it. A refused call fails with EPERM, so os.fork()
or socket.socket() raises PermissionError. A new thread waits until watch.py admits it, because the
kernel's limit on processes exempts root. The filter is a BPF program in the kernel: it reads a
call's number and the lower halves of its arguments, and returns a verdict.
"""

import ctypes
import errno
import os
import platform
import struct

# Each call's name and numbers on x86_64 and aarch64. Calls that need a capability (mount, modules,
# clocks) are not listed, because a program has none.
REFUSED = """
fork 57 -                vfork 58 -               execve 59 221            execveat 322 281
uselib 134 -             setsid 112 157           setpgid 109 154          unshare 272 97
setns 308 268            personality 135 92       seccomp 317 277          ptrace 101 117

kill 62 129              tkill 200 130            tgkill 234 131           timer_create 222 107
rt_sigqueueinfo 129 138  process_madvise 440 440  pidfd_getfd 438 438      kcmp 312 272
migrate_pages 256 238    move_pages 279 239       setpriority 141 140      ioprio_set 251 30
sched_setattr 314 274    sched_setparam 142 118   process_mrelease 448 448
process_vm_readv 310 270            process_vm_writev 311 271           sched_setaffinity 203 122
rt_tgsigqueueinfo 297 240           pidfd_send_signal 424 424           sched_setscheduler 144 119

socket 41 198            bind 49 200              connect 42 203           listen 50 201
setsockopt 54 208        sendmmsg 307 269         pipe 22 -                pipe2 293 59
shmget 29 194            shmat 30 196             shmctl 31 195            msgget 68 186
msgsnd 69 189            msgrcv 70 188            msgctl 71 187            semget 64 190
semop 65 193             semtimedop 220 192       semctl 66 191            mq_open 240 180
mq_unlink 241 181        keyctl 250 219           add_key 248 217          request_key 249 218
memfd_create 319 279     memfd_secret 447 447     io_setup 206 0           io_uring_setup 425 425
io_uring_enter 426 426   io_uring_register 427 427

chmod 90 -               fchmod 91 52             fchmodat 268 53          fchmodat2 452 452
chown 92 -               fchown 93 55             lchown 94 -              fchownat 260 54
utime 132 -              utimes 235 -             futimesat 261 -          utimensat 280 88
setxattr 188 5           lsetxattr 189 6          fsetxattr 190 7          getxattr 191 8
lgetxattr 192 9          fgetxattr 193 10         removexattr 197 14       lremovexattr 198 15
fremovexattr 199 16      truncate 76 45           flock 73 32              sync 162 81
syncfs 306 267           inotify_init 253 -       inotify_init1 294 26     fanotify_init 300 262
quotactl 179 60          quotactl_fd 443 443      open_by_handle_at 304 265

bpf 321 280              userfaultfd 323 282      modify_ldt 154 -         perf_event_open 298 241
syslog 103 116           landlock_add_rule 445 445           landlock_create_ruleset 444 444
"""
THREAD = 0x10000  # CLONE_THREAD
ACCESS, TRUNCATE = 0x3, 0x200  # O_ACCMODE, O_TRUNC; up to Linux 6.1 Landlock allows truncation
OPENING = (0, 1, 2, 1 | TRUNCATE, 2 | TRUNCATE)  # reading, and writing where Landlock permits it
# Commands that affect only this process's descriptors. Others set leases, locks, receivers of
# signals, the size of pipes, flags of files (chattr) or a terminal's input.
FCNTL = (0, 1, 2, 3, 4, 9, 1030, 1032, 1034)  # F_DUPFD to F_SETFL, F_GETOWN, F_DUPFD_CLOEXEC, ...
IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS, FIONREAD, FIONBIO, ...
# The only descriptor that may send descriptors: a process reports with it, then closes it. No new
# descriptor gets this number, because RLIMIT_NOFILE (wall.py) is lower.
DOOR = 20
WHOLE = 0xFFFFFFFF

# Calls that are refused unless each condition (argument, mask, values) holds: the argument's bits
# under the mask have one of the values.
CONDITIONS = {
    "clone": ((56, 220), [(0, THREAD, (THREAD,))]),  # and if the listener agrees
    "open": ((2, None), [(1, ACCESS | TRUNCATE, OPENING)]),
    "openat": ((257, 56), [(2, ACCESS | TRUNCATE, OPENING)]),
    "fcntl": ((72, 25), [(1, WHOLE, FCNTL)]),
    "ioctl": ((16, 29), [(1, WHOLE, IOCTL)]),
    "prctl": ((157, 167), [(0, WHOLE, (15, 16))]),  # PR_SET_NAME, PR_GET_NAME
    "prlimit64": ((302, 261), [(0, WHOLE, (0,))]),  # of this process
    "sendmsg": ((46, 211), [(0, WHOLE, (DOOR,))]),
    # AF_UNIX, SOCK_STREAM: sockets of other kinds can send to any address.
    "socketpair": ((53, 199), [(0, WHOLE, (1,)), (1, 0xF, (1,))]),
}
CLONE3, OPENAT2 = 435, 437  # a filter cannot read their arguments; glibc then uses the older call
NEWEST = 457  # this and all later calls are unknown, too; no libc needs them yet

ALLOW, KILL, ASK = 0x7FFF0000, 0x80000000, 0x7FC00000  # verdicts; ASK: the listener decides
REFUSE, UNKNOWN = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
LOAD, AND, EQUAL, AT_LEAST, RETURN = 0x20, 0x54, 0x15, 0x35, 0x06  # instructions
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16  # offsets in the kernel's record of a call

MACHINES = {"x86_64": (0, 0xC000003E, 317), "aarch64": (1, 0xC00000B7, 277)}
SET_FILTER, NEW_LISTENER = 1, 8


class Filter:
    """The filter for this machine. Raises OSError if its system calls are not known."""

    def __init__(self):
        if platform.machine() not in MACHINES:
            raise OSError(f"no system-call filter for {platform.machine()}")
        column, architecture, self.seccomp = MACHINES[platform.machine()]
        code = [
            instruction(LOAD, ARCHITECTURE),
            instruction(EQUAL, architecture, if_true=1),
            instruction(RETURN, KILL),
            instruction(LOAD, NUMBER),
            instruction(AT_LEAST, NEWEST, if_false=1),
            instruction(RETURN, UNKNOWN),
            *rule(CLONE3, [], UNKNOWN),
            *rule(OPENAT2, [], UNKNOWN),
        ]
        for number in REFUSED.split()[1 + column :: 3]:
            if number != "-":
                code += rule(int(number), [], REFUSE)
        for name, (numbers, conditions) in CONDITIONS.items():
            if numbers[column] is not None:
                code += rule(numbers[column], conditions, ASK if name == "clone" else ALLOW)
        self.code = b"".join([*code, instruction(RETURN, ALLOW)])

    def enter(self) -> int:
        """Filter this process's calls from now on. Returns the listener. Raises OSError.

        PR_SET_NO_NEW_PRIVS must be set.
        """
        libc = ctypes.CDLL(None, use_errno=True)
        code = ctypes.create_string_buffer(self.code)
        program = struct.pack("@HP", len(self.code) // 8, ctypes.addressof(code))  # sock_fprog
        listener = libc.syscall(self.seccomp, SET_FILTER, NEW_LISTENER, program)
        if listener < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"system-call filter: {os.strerror(number)}")
        return listener


def rule(number: int, conditions: list[tuple], verdict: int) -> list[bytes]:
    """The instructions for one call: `verdict` if all conditions hold, else REFUSE."""
    code = []
    for argument, mask, values in conditions:
        code += [instruction(LOAD, ARGUMENTS + 8 * argument), instruction(AND, mask)]
        for left, value in zip(range(len(values), 0, -1), values, strict=True):
            code.append(instruction(EQUAL, value, if_true=left))  # past the next RETURN
        code.append(instruction(RETURN, REFUSE))
    code.append(instruction(RETURN, verdict))
    return [instruction(EQUAL, number, if_false=len(code)), *code]


def instruction(code: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """struct sock_filter."""
    return struct.pack("=HBBI", code, if_true, if_false, operand)
