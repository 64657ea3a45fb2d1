"""Programs that try to cheat or do harm; test_sandbox.py runs them.

The expected value in every test is a secret of the form gold-<32 hex digits>, which a program can
search for. MARK appears in the name of everything that a program tries to leave behind. In a
program's text, PORT, MAILBOX and FILE are replaced with a port, a socket and a file that every user
may access, and SERVER with the id of the process that forks programs. FILE contains the secret.
"""

from dataclasses import dataclass

MARK = "left-by-a-hostile-program"


@dataclass(frozen=True)
class Hostile:
    """A program, its kind of test, and the required outcome."""

    text: str
    ends: str  # a pattern that matches the reason given by run_tests
    kind: str = "run"  # run, calls or script
    sleeps: bool = False  # the wall-clock limit must end it
    walls: bool = False  # namespaces matter: tested with and without them


LOOK = """
import re
FOUND = []
def look(text):
    if isinstance(text, str):
        text = text.encode('utf-8', 'replace')
    FOUND.extend(re.findall(rb'gold-[0-9a-f]{32}', text))
def tell():
    print(FOUND[0].decode() if FOUND else 'nothing')
"""
LIBC = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
ANY = "."  # any failure message
WRONG = "printed, 'gold|printed, gold|returned, 'gold|printed, "


def hostile() -> dict[str, Hostile]:
    """All hostile programs, by name."""
    return {
        **endless(),
        **greedy(),
        **multiplying(),
        **talkative(),
        **leaving_early(),
        **lying_answers(),
        **changing_python(),
        **looking_around(),
        **reaching_out(),
    }


def endless() -> dict[str, Hostile]:
    """Programs that compute or sleep forever."""
    cpu = "more than .* s of CPU time"
    wall = "not finished after"
    return {
        "loop": Hostile("while True: pass", cpu),
        "loop in C": Hostile("import itertools\nsum(itertools.repeat(0))", cpu),
        "loop in re": Hostile("import re\nre.match('(a+)+$', 'a' * 60 + 'b')", cpu),
        "loop in a power": Hostile("print(len(bin(7 ** (7 ** 11))))", cpu + "|MemoryError"),
        "loop in a thread": Hostile(
            "import threading\ndef f():\n    while True: pass\nthreading.Thread(target=f).start()",
            cpu,
        ),
        "loops in 16 threads": Hostile(
            "import threading\ndef f():\n    while True: pass\n"
            "for _ in range(16): threading.Thread(target=f).start()",
            cpu,
        ),
        "loop at exit": Hostile(
            "import atexit\n@atexit.register\ndef f():\n    while True: pass", cpu
        ),
        "loop that catches every exception": Hostile(
            "while True:\n    try:\n        while True: pass\n    except BaseException: pass", cpu
        ),
        "loop that ignores signals": Hostile(
            "import signal\n"
            "for s in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:\n"
            "    signal.signal(s, signal.SIG_IGN)\n"
            "signal.pthread_sigmask(signal.SIG_BLOCK, signal.Signals)\nwhile True: pass",
            cpu,
        ),
        "loop that raises its limits": Hostile(
            "import resource\n"
            "for limits in ((-1, -1), (10**6, 10**6)):\n"
            "    try: resource.setrlimit(resource.RLIMIT_CPU, limits)\n"
            "    except (ValueError, OSError): pass\n"
            "while True: pass",
            cpu,
        ),
        "loop during compilation": Hostile("x = " + "(" * 80 + "9**9**9" + ")" * 80, ANY),
        "loop in a call": Hostile("def f(x):\n    while True: pass", cpu, "calls"),
        "loop before the calls": Hostile("while True: pass", cpu, "calls"),
        "loop in a script's call": Hostile("def f(x):\n    while True: pass", cpu, "script"),
        "sleep": Hostile("import time\ntime.sleep(1000)", wall, sleeps=True),
        "sleep in a call": Hostile(
            "import time\ndef f(x): time.sleep(1000)", wall, "calls", sleeps=True
        ),
        "sleep in a script's call": Hostile(
            "import time\ndef f(x): time.sleep(1000)", wall, "script", sleeps=True
        ),
        "deadlock": Hostile(
            "import threading\nl = threading.Lock()\nl.acquire()\nl.acquire()", wall, sleeps=True
        ),
        "more input than there is": Hostile("while True: input()", "EOFError"),
    }


def greedy() -> dict[str, Hostile]:
    """Programs that allocate memory in several ways or recurse deeply."""
    return {
        "list of 10 GB": Hostile("x = [0] * (10 * 2**30 // 8)", "MemoryError"),
        "bytes that double": Hostile("x = b'x'\nwhile True: x += x", "MemoryError|CPU time"),
        "list that grows": Hostile(
            "x = []\nwhile True: x.append(' ' * 10**6 + str(len(x)))", "MemoryError|CPU time"
        ),
        "shared memory map": Hostile(
            "import mmap\nx = mmap.mmap(-1, 10 * 2**30)", "OSError|MemoryError|ValueError"
        ),
        "memory limit raised": Hostile(
            "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
            "ValueError|PermissionError|OSError",
        ),
        "recursion": Hostile("def f(): f()\nf()", "RecursionError"),
        "recursion without a limit": Hostile(
            "import sys\nsys.setrecursionlimit(2**31 - 1)\ndef f(): f()\nf()", ANY
        ),
        "recursion in C": Hostile("f = print\nfor _ in range(10**6): f = f.__call__\nf()", ANY),
        "endless threads": Hostile(
            "import threading, time\nthreading.stack_size(2**15)\n"
            "while True: threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()",
            "can't start new thread|MemoryError",
            walls=True,
        ),
        "System V memory": Hostile(
            LIBC + "for key in range(100):\n"
            "    segment = libc.shmget(0, 64 * 2**20, 0o1600)\n"
            "    if segment < 0: raise OSError('refused')\n",
            ANY,
            walls=True,
        ),
        "memory files": Hostile(
            "import os\nfor i in range(60):\n    file = os.memfd_create('m')\n"
            "    for _ in range(100): os.write(file, bytes(2**20))",
            "OSError|PermissionError",
            walls=True,
        ),
        "a disk full of files": Hostile(
            "for i in range(10**6):\n    open(f'f{i}', 'wb').write(bytes(2**20))",
            "OSError|PermissionError",
            walls=True,
        ),
        "an endless file": Hostile(
            "with open('f', 'wb') as f:\n    while True: f.write(bytes(2**20))",
            "OSError|PermissionError",
            walls=True,
        ),
        "open files": Hostile("x = [open('/dev/zero') for _ in range(10**4)]", "Too many open"),
    }


def multiplying() -> dict[str, Hostile]:
    """Programs that start forbidden processes, or processes that outlive them."""
    spawn = "import os, time\n"
    return {
        "fork bomb": Hostile(
            "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
            "CPU time|not finished after",
            walls=True,
            sleeps=True,
        ),
        "fork bomb in a call": Hostile(
            "import os\ndef f(x):\n    while True: os.fork()", ANY, "calls", walls=True, sleeps=True
        ),
        "orphan": Hostile(
            spawn + "if os.fork() == 0: time.sleep(1000)\nprint('done')", ANY, walls=True
        ),
        "daemon": Hostile(
            spawn + "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
            "        os.closerange(0, 64)\n        time.sleep(1000)\n    os._exit(0)\n"
            "print('done')",
            ANY,
            walls=True,
        ),
        "subprocess": Hostile(
            "import subprocess\nsubprocess.Popen(['/bin/sleep', '1000'])", ANY, walls=True
        ),
        "shell": Hostile("import os\nos.system('sleep 1000 & sleep 1000 &')", ANY, walls=True),
        "multiprocessing": Hostile(
            "import multiprocessing, time\n"
            "multiprocessing.get_context('fork').Process(target=time.sleep, args=(9,)).start()\n"
            "import os\nos._exit(0)",
            ANY,
            walls=True,
        ),
        "spawn": Hostile(
            "import os\nos.posix_spawn('/bin/sleep', ['sleep', '1000'], {})", ANY, walls=True
        ),
        "another program": Hostile(
            "import os\nos.execv('/bin/sleep', ['sleep', '1000'])", ANY, walls=True, sleeps=True
        ),
        "raw system call": Hostile(
            LIBC + "import time\nif libc.syscall(57) == 0: time.sleep(1000)\nprint('done')",
            ANY,
            walls=True,
        ),
        "thread that outlives main": Hostile(
            "import threading, time\n"
            "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\nprint(1)",
            WRONG,
        ),
    }


def talkative() -> dict[str, Hostile]:
    """Endless output to permitted and forbidden destinations."""
    return {
        "gigabytes of output": Hostile("while True: print('x' * 10**6)", "too much output"),
        "gigabytes at once": Hostile(
            "import os\nfor _ in range(1000): os.write(1, b'x' * 10**7)", "too much output"
        ),
        "gigabytes of errors": Hostile(
            "import os\nwhile True: os.write(2, b'x' * 10**6)", "too much output"
        ),
        "gigabytes printed in a call": Hostile(
            "def f(x):\n    while True: print('x' * 10**6)", "too much output", "calls"
        ),
        "gigabytes returned": Hostile("def f(x): return 'x' * 10**7", "too much output", "calls"),
        "gigabytes to a script": Hostile("def f(x): return 'x' * (2 * 10**7 + 7)", ANY, "script"),
        "success on every descriptor": Hostile(
            "import os\nfor d in range(64):\n"
            '    try: os.write(d, b\'{"passed": 1, "total": 1}\\n{"value": true}\\n\')\n'
            "    except OSError: pass",
            WRONG,
        ),
        "a supervisor's answer": Hostile(
            "import json, os\nanswer = json.dumps(dict(stopped='', code=0, output='x', errors='',"
            " replies=['{\"value\": 1}'], cpu_seconds=0, seconds=0)).encode()\n"
            "for d in range(64):\n"
            "    try: os.write(d, answer + b'\\n')\n"
            "    except OSError: pass",
            WRONG,
        ),
        "success messages": Hostile("print('PASSED')\nprint('OK')\nprint('1.0')", WRONG),
    }


def leaving_early() -> dict[str, Hostile]:
    """Exits and signals."""
    return {
        "exit 0": Hostile("import os\nos._exit(0)", WRONG),
        "exit 0 in a call": Hostile(
            "import os\ndef f(x): os._exit(0)", "ended before it answered", "calls"
        ),
        "exit 0 before the calls": Hostile(
            "import os\nos._exit(0)", "ended before it answered", "calls"
        ),
        "exit 0 in a script's call": Hostile("import os\ndef f(x): os._exit(0)", ANY, "script"),
        "sys.exit in a script's call": Hostile("def f(x): raise SystemExit(0)", ANY, "script"),
        "sys.exit": Hostile("import sys\nsys.exit()", WRONG),
        "sys.exit with a message": Hostile("raise SystemExit('PASSED')", "ended with code 1"),
        "exit handlers": Hostile(
            "import atexit, os\natexit.register(os._exit, 0)\nraise ValueError", WRONG
        ),
        "kill itself": Hostile("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", ANY),
        "a signal to the server": Hostile("import os\nos.kill(SERVER, 0)", "Error", walls=True),
        "kill its group": Hostile("import os, signal\nos.killpg(0, signal.SIGKILL)", ANY),
        "kill everything": Hostile(
            "import os, signal\nfor p in (-1, os.getppid()):\n"
            "    try: os.kill(p, signal.SIGKILL)\n    except OSError as e: print(e)",
            ANY,
            walls=True,
        ),
        "stop itself": Hostile(
            "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", ANY, sleeps=True
        ),
        "abort": Hostile("import os\nos.abort()", "signal"),
        "fault": Hostile("import ctypes\nctypes.string_at(0)", "signal 11"),
        "alarm": Hostile(
            "import signal\nsignal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)\n"
            "def f(x):\n    while True: pass",
            "signal 14|CPU time",
            "calls",
        ),
        "signals from file events": Hostile(
            "import fcntl, os, signal, socket\na, b = socket.socketpair()\n"
            "fcntl.fcntl(a, fcntl.F_SETOWN, os.getppid())\n"
            "fcntl.fcntl(a, 10, signal.SIGKILL)\n"
            "fcntl.fcntl(a, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)\nb.send(b'x')",
            ANY,
            walls=True,
        ),
        "all descriptors closed": Hostile("import os\nos.closerange(0, 1000)", ANY),
        "all descriptors closed in a call": Hostile(
            "import os\ndef f(x): os.closerange(0, 1000)", ANY, "calls"
        ),
        "redirected output": Hostile("import os\nos.dup2(2, 1)\nprint('x')", WRONG),
    }


def lying_answers() -> dict[str, Hostile]:
    """Deceptive values, and malformed replies."""
    equal = "    __eq__ = lambda self, other: True\n    __hash__ = None\n"
    returned = "returned, 'gold"
    calls = "import os\ndef f(x):\n    for d in range(3, 64):\n        try: {}\n"
    calls += "        except OSError: pass\n    {}"
    return {
        "equal to everything": Hostile(f"class A:\n{equal}def f(x): return A()", returned, "calls"),
        "string equal to everything": Hostile(
            f"class A(str):\n{equal}def f(x): return A('x')", returned, "calls"
        ),
        "number equal to everything": Hostile(
            f"class A(float):\n{equal}def f(x): return A(1)", returned, "calls"
        ),
        "list equal to everything": Hostile(
            f"class A(list):\n{equal}def f(x): return A()", returned, "calls"
        ),
        "equal to everything, for a script": Hostile(
            f"class A:\n{equal}def f(x): return A()", "AssertionError", "script"
        ),
        "string equal to everything, for a script": Hostile(
            f"class A(str):\n{equal}def f(x): return A('x')", "AssertionError", "script"
        ),
        "an early reply": Hostile(
            calls.format("os.write(d, b'{\"value\": true}\\n' * 9)", "pass"), returned, "calls"
        ),
        "an early reply to a script": Hostile(
            calls.format("os.write(d, b'{\"value\": true}\\n' * 9)", "pass"),
            "AssertionError",
            "script",
        ),
        "an error like a missing package": Hostile(
            "def f(x): raise ValueError('\\nModuleNotFoundError: none')", ANY, "script"
        ),
        "an endless iterator": Hostile(
            "import itertools\ndef f(x): return itertools.count()", ANY, "calls"
        ),
        "not JSON": Hostile(
            calls.format("os.write(d, b'value\\n')", "pass"), "cannot be read", "calls"
        ),
        "not JSON, for a script": Hostile(
            calls.format("os.write(d, b'value\\n')", "pass"), ANY, "script"
        ),
        "a reply in another format": Hostile(
            calls.format('os.write(d, b\'{"value": {"set": [[1]]}}\\n\')', "pass"),
            "cannot be read",
            "calls",
        ),
        "a reply full of brackets": Hostile(
            calls.format("os.write(d, b'{\"value\": ' + b'[' * 10**5 + b'\\n')", "pass"),
            "cannot be read",
            "calls",
        ),
        "an endless reply": Hostile(
            calls.format("\n            while True: os.write(d, b'x' * 10**5)", "pass"),
            "too much output",
            "calls",
        ),
        "a number with many digits": Hostile("def f(x): return 10 ** 10**5", "a int", "calls"),
        "a list that contains itself": Hostile(
            "def f(x):\n    x = []\n    x.append(x)\n    return x", ANY, "calls"
        ),
        "a generator": Hostile("def f(x): yield x", returned, "calls"),
        "the question returned": Hostile("def f(x): return x", returned, "calls"),
        "the question raised": Hostile("def f(x): raise KeyError(x)", "KeyError", "calls"),
    }


def changing_python() -> dict[str, Hostile]:
    """Changes to Python that would fool a judge in the same process."""
    return {
        "patched builtins": Hostile(
            "import builtins\nbuiltins.AssertionError = SystemExit\n"
            "builtins.all = builtins.any = builtins.isinstance = lambda *a: True\n"
            "builtins.len = lambda x: 0\ndef f(x): return x",
            ANY,
            "script",
        ),
        "patched unittest": Hostile(
            "import sys, unittest\nunittest.TestCase.assertEqual = lambda *a: None\n"
            "sys.exit = lambda *a: None\ndef f(x): return x",
            "AssertionError",
            "script",
        ),
        "patched json": Hostile(
            "import json\njson.dumps = lambda x: '\"gold\"'\ndef f(x): return x", ANY, "calls"
        ),
        "patched socket": Hostile(
            "import socket\nsocket.socket.makefile = None\ndef f(x): return x", ANY, "calls"
        ),
        "its own check function": Hostile(
            "def check(candidate): pass\ndef assertion(*a): pass\ndef f(x): return x",
            "AssertionError",
            "script",
        ),
        "patched modules": Hostile(
            "import sys\nfor name in list(sys.modules):\n"
            "    if name != 'sys': sys.modules[name] = None\ndef f(x): return x",
            ANY,
            "calls",
        ),
        "a tracer": Hostile(
            "import sys\ndef t(frame, event, value):\n    frame.f_locals['code'] = 0\n"
            "    return t\nsys.settrace(t)\ndef f(x): return x",
            ANY,
            "calls",
        ),
        "a tiny recursion limit": Hostile(
            "import sys\ndef f(x):\n    sys.setrecursionlimit(20)\n    return x", ANY, "calls"
        ),
        "locale": Hostile(
            "import locale\nfor name in ('de_DE.UTF-8', 'C', ''):\n"
            "    try: locale.setlocale(locale.LC_ALL, name)\n    except locale.Error: pass\n"
            "print('%s' % 1.5)",
            WRONG,
        ),
        "its own output stream": Hostile(
            "import sys\nclass Out:\n    write = flush = lambda *a: None\nsys.stdout = Out()\n"
            "print('x')",
            WRONG,
        ),
        "bytes that are not text": Hostile("import os\nos.write(1, bytes(range(256)))", WRONG),
    }


def looking_around() -> dict[str, Hostile]:
    """Searches for the expected value."""
    return {
        "frames": Hostile(
            LOOK + "import sys\nframe = sys._getframe()\nwhile frame:\n"
            "    look(repr(frame.f_locals) + repr(frame.f_globals))\n    frame = frame.f_back\n"
            "tell()",
            WRONG,
        ),
        "frames in a script's call": Hostile(
            LOOK + "import inspect\ndef f(x):\n    for each in inspect.stack():\n"
            "        look(repr(each.frame.f_locals) + repr(each.frame.f_globals))\n"
            "    return FOUND[0].decode() if FOUND else 'nothing'",
            "AssertionError",
            "script",
        ),
        "all objects": Hostile(
            LOOK + "import gc\ngc.unfreeze()\nfor x in gc.get_objects():\n"
            "    try: look(repr(x))\n    except Exception: pass\ntell()",
            WRONG,
        ),
        "own memory": Hostile(
            LOOK + "for line in open('/proc/self/maps'):\n"
            "    start, end = (int(x, 16) for x in line.split()[0].split('-'))\n"
            "    with open('/proc/self/mem', 'rb') as file:\n"
            "        try:\n            file.seek(start)\n            look(file.read(end - start))\n"
            "        except (OSError, ValueError, OverflowError): pass\ntell()",
            WRONG + "|PermissionError",
            walls=True,
        ),
        "own memory in a script's call": Hostile(
            LOOK + "def f(x):\n    for line in open('/proc/self/maps'):\n"
            "        start, end = (int(x, 16) for x in line.split()[0].split('-'))\n"
            "        with open('/proc/self/mem', 'rb') as file:\n"
            "            try:\n                file.seek(start)\n"
            "                look(file.read(end - start))\n"
            "            except (OSError, ValueError, OverflowError): pass\n"
            "    return FOUND[0].decode() if FOUND else 'nothing'",
            "AssertionError",
            "script",
        ),
        "other processes": Hostile(
            LOOK + "import os\nfor p in os.listdir('/proc'):\n"
            "    for name in ('environ', 'cmdline', 'fd/0', 'fd/3', 'fd/4', 'fd/5', 'task'):\n"
            "        try:\n            with open(f'/proc/{p}/{name}', 'rb', 0) as file:\n"
            "                os.set_blocking(file.fileno(), False)\n"
            "                look(file.read(10**6) or b'')\n"
            "        except OSError: pass\ntell()",
            WRONG + "|PermissionError",
            walls=True,
        ),
        "environment": Hostile(
            LOOK + LIBC + "import os\nprint(len(os.environ))\nlook(repr(os.environ))\n"
            "look(open('/proc/self/environ', 'rb').read())\ntell()",
            WRONG,
        ),
        "our modules": Hostile(
            "import importlib, sys\nfor name in ('verify', 'infra', 'programs.sandbox.client',\n"
            "        'server', 'values', 'program', 'conftest', 'train'):\n"
            "    try: print(importlib.import_module(name))\n    except ImportError: pass\n"
            "print(vars(sys.modules['__main__']).keys() - vars(importlib).keys())",
            WRONG,
        ),
        "test files": Hostile(
            LOOK
            + "import os\nfor top in ('/tmp', '/home', '/root', '/work', '/var/tmp', '/srv'):\n"
            "    for folder, _, files in os.walk(top):\n        for name in files:\n"
            "            if name.endswith('.jsonl'):\n"
            "                try: look(open(os.path.join(folder, name), 'rb').read())\n"
            "                except OSError: pass\ntell()",
            WRONG + "|CPU time",
        ),
        "the file with the tests": Hostile(
            LOOK + "for name in ('FILE', '/etc/passwd'):\n"
            "    try: look(open(name, 'rb').read()); print('read', name)\n"
            "    except OSError: pass\ntell()",
            "^nothing printed",
            walls=True,
        ),
        "the server's environment": Hostile(
            "print(open('/proc/SERVER/environ', 'rb').read())", "Error", walls=True
        ),
        "ptrace": Hostile(
            LIBC + "import os\nprint(libc.ptrace(16, os.getppid(), 0, 0), libc.ptrace(0, 0, 0, 0))",
            ANY,
            walls=True,
        ),
        "the parent's memory": Hostile(
            LOOK + "import os\nlook(open(f'/proc/{os.getppid()}/mem', 'rb').read(1))\ntell()",
            ANY,
            walls=True,
        ),
    }


def reaching_out() -> dict[str, Hostile]:
    """Networks, files and the kernel."""
    write = (
        "import os\nfor top in {places}:\n    try: open(os.path.join(top, '{mark}'), 'w').close()\n"
        "    except OSError as error: print(error)\nprint(1)"
    )
    places = "('/', '/tmp/..', '/var/tmp', '/dev/shm', '/run', '/etc', '/usr', '/work', '/root')"
    return {
        "connection": Hostile(
            "import socket\nsocket.create_connection(('127.0.0.1', PORT), 2)", "Error", walls=True
        ),
        "datagram": Hostile(
            "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
            "s.sendto(b'x', ('127.0.0.1', PORT))",
            "Error",
            walls=True,
        ),
        "a message to a process": Hostile(
            "import socket\nsocket.socketpair(1, 2)[0].connect('MAILBOX')", "Error", walls=True
        ),
        "a terminal": Hostile(
            "import os\nos.open('/dev/ptmx', os.O_RDONLY | os.O_NOCTTY)", "Error", walls=True
        ),
        "a server": Hostile(
            "import socket\ns = socket.create_server(('127.0.0.1', 0))\ns.settimeout(0.5)\n"
            "s.accept()",
            "Error",
            walls=True,
        ),
        "a socket from libc": Hostile(LIBC + "print(libc.socket(2, 1, 0))", WRONG, walls=True),
        "files everywhere": Hostile(write.format(places=places, mark=MARK), WRONG, walls=True),
        "files through links": Hostile(
            f"import os\nfor i, top in enumerate({places}):\n"
            "    try:\n        os.symlink(top, f'link{i}')\n"
            f"        open(f'link{{i}}/{MARK}', 'w').close()\n"
            "    except OSError as error: print(error)\nprint(1)",
            WRONG,
            walls=True,
        ),
        "a link to Python": Hostile(
            "import os\nos.link(os.__file__, 'copy')\nopen('copy', 'a').write('#')",
            "Error",
            walls=True,
        ),
        "Python's own files": Hostile(
            "import os\n"
            "for act in (lambda: open(os.__file__, 'a'), lambda: os.remove(os.__file__),\n"
            "            lambda: os.chmod(os.__file__, 0o777)):\n"
            "    try: act(); print('done')\n    except OSError: pass\nprint(1)",
            "1 printed",
            walls=True,
        ),
        "mounts": Hostile(
            LIBC + "print(libc.mount(b'none', b'/tmp', b'tmpfs', 0, None), "
            "libc.umount2(b'/proc', 2), libc.unshare(0x10000000), libc.chroot(b'/tmp'))",
            ANY,
            walls=True,
        ),
        "regaining root": Hostile(
            "import os\nfor act in (os.setuid, os.setgid):\n    try: act(0); print('root')\n"
            "    except OSError: pass\nprint(1)",
            "1 printed",
            walls=True,
        ),
        "keys and queues": Hostile(
            LIBC + "print(libc.syscall(248, b'user', b'k', b'x', 1, -4), "
            "libc.msgget(7, 0o1600), libc.semget(7, 1, 0o1600))",
            ANY,
            walls=True,
        ),
        "priority": Hostile(
            "import os\nfor act in (lambda: os.nice(-20), lambda: os.setpriority(0, 0, -20)):\n"
            "    try: act(); print('done')\n    except OSError: pass\nprint(1)",
            "1 printed",
        ),
    }
