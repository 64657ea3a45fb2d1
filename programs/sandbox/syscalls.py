"""Numbers of Linux system calls: name -> (x86_64, aarch64); None if the call does not exist."""

# New processes and other executables.
PROCESSES = {
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "execveat": (322, 281),
}

# Other processes, and the network.
OTHERS = {
    "socket": (41, 198),
    "bind": (49, 200),
    "connect": (42, 203),
    "listen": (50, 201),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    "sched_setaffinity": (203, 122),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
}

# The kernel: namespaces, its log, and calls with a history of vulnerabilities. Calls that need a
# capability (mount, module) are not listed, because a program has none.
SYSTEM = {
    "unshare": (272, 97),
    "setns": (308, 268),
    "syslog": (103, 116),
    "personality": (135, 92),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "fanotify_init": (300, 262),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "seccomp": (317, 277),
}

# Memory and keys that outlive a process or are not counted by its limit.
MEMORY = {
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "semctl": (66, 191),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
}

# Signals, and ways out of the process group.
SIGNALS = {
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
    "setsid": (112, 157),
    "setpgid": (109, 154),
}

# File changes that Landlock, or its early versions, does not refuse.
FILES = {
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "truncate": (76, 45),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "flock": (73, 32),
}

# Calls that are refused only with certain arguments.
BY_ARGUMENT = {
    "clone": (56, 220),
    "clone3": (435, 435),
    "open": (2, None),
    "openat": (257, 56),
    "openat2": (437, 437),
    "prlimit64": (302, 261),
    "fcntl": (72, 25),
    "ioctl": (16, 29),
    "prctl": (157, 167),
    "socketpair": (53, 199),
}
