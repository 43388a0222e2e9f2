"""Programs that try to get out of the box, or to take too much of the machine.

Each writes WON if it succeeds. A success does no harm: files are removed again,
signals are 0, and calls that would change the machine have arguments that the
kernel refuses after its check of the caller's rights.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from grpo_jax.rewards.sandbox import seccomp


class Attack(NamedTuple):
  """Program that attacks the box.

  Attributes:
    name: Aim of the attack.
    program: Python code. It begins after `prelude()`, which reads its input:
      path: of a file of the host; with `secret` in it. port: where the host
      listens on its loopback. pid: of a process of the host. key: of a System V
      segment of the host. host: the host's name.
    held_by: Defences of the box, each of which is enough; the attack succeeds
      if all of them are left out. None: more of them hold it, or the kernel
      itself does, or not every kernel lets it succeed.
  """

  name: str
  program: str
  held_by: tuple[str, ...] = ()


def prelude() -> str:
  """Code with which every attack begins."""
  column = seccomp.MACHINES[seccomp.machine()].column
  numbers = {name: row[column] for name, row in seccomp.REFUSED.items()}
  return f"""
import errno, os, sys
path, port, pid, key, host = sys.stdin.readline().split()
port, pid, key = int(port), int(pid), int(key)
numbers = {numbers!r}

def won(text=""):
  os.write(1, b"WON\\n")

def reads(name):
  with open(name, "rb") as file:
    return bool(file.read(64)) and won()

def writes(name):
  existed = os.path.exists(name)
  os.close(os.open(name, os.O_WRONLY | os.O_CREAT, 0o600))
  won()
  existed or os.unlink(name)

def fills(folder, count, size=1 << 20):
  names = [f"{{folder}}/attack{{n}}" for n in range(count)]
  try:
    for name in names:
      with open(name, "xb") as file:
        file.write(bytes(size))
    won()
  finally:
    for name in filter(os.path.exists, names):
      os.unlink(name)

def reaches(name, *arguments):
  import ctypes
  libc = ctypes.CDLL(None, use_errno=True)
  arguments = [ctypes.c_long(x) if type(x) is int else x for x in arguments]
  result = libc.syscall(ctypes.c_long(numbers[name]), *arguments)
  refused = errno.EPERM, errno.ENOSYS, errno.EACCES
  if result >= 0 or ctypes.get_errno() not in refused:
    won()
  return result
"""


_ROOT = os.geteuid() == 0
_CALLS = "system calls"
# Folders of the box belong to whoever has made it.
_WRITES = ("user", "read-only") if _ROOT else ("read-only",)

_FILES = [
  Attack("read a file of the host", "reads(path)", ("files",)),
  Attack(
    "read it through a link",
    "os.symlink(path, 'link')\ntry: reads('link')\nfinally: os.unlink('link')",
    ("files",),
  ),
  Attack(
    "read it from the root of the first process",
    "reads('/proc/1/root' + path)",
  ),
  Attack("read it by ..", "reads('/tmp' + 9 * '/..' + path)", ("files",)),
  Attack(
    "make a second name of it",
    "os.link(path, path + '2')\n"
    "try: reads(path + '2')\n"
    "finally: os.unlink(path + '2')",
  ),
  Attack("list the users", "reads('/etc/passwd')", ("files",)),
  Attack("read the passwords", "reads('/etc/shadow')"),
  Attack("list the home folders", "os.listdir('/home'); won()", ("files",)),
  Attack(
    "list devices of the machine", "os.listdir('/sys'); won()", ("files",)
  ),
  Attack("read its memory", "reads('/dev/mem')"),
  Attack("read its disk", "reads('/dev/vda')"),
  Attack("read the kernel's log", "reads('/dev/kmsg')"),
  Attack("look for packages of the host", "import numpy; won()"),
  Attack("write into /usr", "writes('/usr/attack')"),
  Attack("write beside the interpreter", "writes(sys.executable + '.attack')"),
  Attack("write into the root folder", "writes('/attack')", _WRITES),
  Attack("write into /dev", "writes('/dev/attack')", _WRITES),
  Attack("change rights in /usr", "os.chmod('/usr/bin/env', 0o755); won()"),
  Attack("make a device", "os.mknod('device', 0o20600, 0x0105); won()"),
  Attack(
    "change a setting of the kernel",
    "os.open('/proc/sys/kernel/core_pattern', os.O_WRONLY); won()",
    ("user", "read-only") if _ROOT else (),
  ),
  Attack(
    "have the kernel crash",
    "os.open('/proc/sysrq-trigger', os.O_WRONLY); won()",
  ),
  Attack(
    "change its own score for running out of memory",
    # 4: PR_SET_DUMPABLE, without which these files are not its own.
    "import ctypes; ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)\n"
    "open('/proc/self/oom_score_adj', 'w').write('900'); won()",
    ("read-only",),
  ),
  Attack(
    "read what root may read",
    "reads('/proc/vmallocinfo')",
    ("user",) if _ROOT else (),
  ),
  Attack("fill the root folder", "fills('/', 64, 1 << 10)", _WRITES),
]

_RIGHTS = [
  Attack("be root", "os.getuid() or won()", ("user",)),
  Attack("become root", "os.setuid(0); won()", ("user",)),
  Attack("change the root folder", "os.chroot('/tmp'); won()", ("user",)),
  Attack(
    "give a file away",
    "open('f', 'w').close(); os.chown('f', 0, 0); won()",
    ("user",),
  ),
  Attack(
    "have capabilities",
    "t = open('/proc/self/status').read().split('CapEff:')[1].split()[0]\n"
    "int(t, 16) and won()",
    ("user",),
  ),
  Attack(
    "run a program with root's rights",
    "os.execv('/usr/bin/su', ['su', '-c', 'echo WON'])",
  ),
  Attack(
    "read variables", "os.environ.get('SECRET') and won()", ("environment",)
  ),
  Attack(
    "read variables of the first process",
    "b'SECRET' in open('/proc/1/environ', 'rb').read() and won()",
  ),
  Attack(
    "read open files of the trainer",
    "for n in range(3, 4096):\n"
    "  try: b'secret' in os.pread(n, 64, 0) and won()\n"
    "  except OSError: pass",
    ("descriptors",),
  ),
  Attack("open the terminal", "os.open('/dev/tty', os.O_RDWR); won()"),
  Attack(
    "type into the terminal",
    "import fcntl; fcntl.ioctl(0, 0x5412, b'x')",
  ),
  Attack(
    "learn the host's name", "os.uname()[1] == host and won()", ("names",)
  ),
]

_PROCESSES = [
  Attack(
    "see processes of the host",
    "os.path.exists(f'/proc/{pid}') and won()",
    ("processes",),
  ),
  Attack(
    "signal a process of the host",
    "try:\n  os.kill(pid, 0)\n  won()\nexcept PermissionError: won()",
    ("processes",),
  ),
  Attack("signal all processes", "os.kill(-1, 0); won()", ("processes",)),
  Attack("fork", "os.fork() and won()", (_CALLS, "no forks")),
  Attack(
    "start a program",
    "import subprocess\nsubprocess.run(['/bin/true']); won()",
    (_CALLS, "no forks"),
  ),
  Attack(
    "start a program by posix_spawn",
    "os.posix_spawn('/bin/true', ['true'], {}); won()",
    (_CALLS, "no forks"),
  ),
  Attack(
    "ask a shell to", "os.system('true') == 0 and won()", (_CALLS, "no forks")
  ),
  Attack(
    "become a shell that forks",
    "os.execv('/bin/sh', ['sh', '-c', '(true) && echo WON'])",
    (_CALLS, "no forks"),
  ),
  Attack(
    "start a thread",
    "import threading; threading.Thread(target=won).start()",
    (_CALLS, "no forks"),
  ),
  Attack(
    "be many",
    "import time\nn = 0\n"
    "for _ in range(40):\n"
    "  if not os.fork(): time.sleep(1); os._exit(0)\n"
    "  n += 1\n"
    "n > 20 and won()",
    (_CALLS, "no forks"),
  ),
  Attack(
    "leave a process behind",
    "if os.fork(): os.wait()\n"
    "else:\n"
    "  os.setsid()\n"
    "  os.fork() and os.wait() or won()",
    (_CALLS, "no forks"),
  ),
  Attack("trace itself", "reaches('ptrace', 0, 0, 0, 0)", (_CALLS,)),
  Attack("trace the first process", "reaches('ptrace', 16, 1, 0, 0)"),
  Attack(
    "read another process's memory",
    "reaches('process_vm_readv', os.getpid(), 0, 0, 0, 0, 0)",
    (_CALLS,),
  ),
  Attack("hold a process", "reaches('pidfd_open', os.getpid(), 0)", (_CALLS,)),
  Attack(
    "compare processes", "reaches('kcmp', os.getpid(), os.getpid(), 0, 0, 0)"
  ),
  Attack(
    "raise its limits",
    "import resource\n"
    "resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40)); won()",
  ),
]

_NETWORK = [
  Attack(
    "reach the host's loopback",
    "import socket\nsocket.create_connection(('127.0.0.1', port), 1.0); won()",
    (_CALLS, "network"),
  ),
  Attack(
    "see network interfaces",
    "len(open('/proc/net/dev').readlines()) > 3 and won()",
  ),
  Attack(
    "see connections of the host",
    "f':{port:04X} ' in open('/proc/net/tcp').read() and won()",
    ("network",),
  ),
  *(
    Attack(
      f"open a socket of the kind {what}",
      f"import socket; socket.socket({family}, {kind}); won()",
      held_by,
    )
    for what, family, kind, held_by in (
      ("TCP", "socket.AF_INET", "socket.SOCK_STREAM", (_CALLS,)),
      ("UDP", "socket.AF_INET", "socket.SOCK_DGRAM", (_CALLS,)),
      ("Unix", "socket.AF_UNIX", "socket.SOCK_STREAM", (_CALLS,)),
      ("netlink", "16", "socket.SOCK_RAW", (_CALLS,)),
      ("packet", "17", "socket.SOCK_RAW", ()),
      ("virtual machine", "40", "socket.SOCK_STREAM", ()),
      ("crypto", "38", "5", ()),
    )
  ),
  Attack(
    "make a pair of sockets",
    "import socket; socket.socketpair(); won()",
    (_CALLS,),
  ),
  Attack(
    "look up a name",
    "import socket; socket.getaddrinfo('example.org', 80); won()",
  ),
]

_KERNEL = [
  Attack("make a user namespace", "reaches('unshare', 0x10000000)"),
  Attack("enter a namespace", "reaches('setns', 0, 0)", (_CALLS,)),
  Attack("mount", "reaches('mount', 0, 0, 0, 0, 0)", (_CALLS,)),
  Attack("mount in the new way", "reaches('fsopen', 0, 0)"),
  Attack("open a file by its number", "reaches('open_by_handle_at', 0, 0, 0)"),
  Attack("load a program into the kernel", "reaches('bpf', 99, 0, 0)"),
  Attack("count events", "reaches('perf_event_open', 0, 0, -1, -1, 0)"),
  Attack("handle page faults", "reaches('userfaultfd', 1)"),
  Attack("queue calls", "reaches('io_uring_setup', 0, 0)"),
  Attack("queue calls in the old way", "reaches('io_setup', 0, 0)"),
  Attack("keep keys", "reaches('keyctl', 0, -3, 0)", (_CALLS,)),
  Attack("add a key", "reaches('add_key', 0, 0, 0, 0, 0)", (_CALLS,)),
  Attack(
    "change how addresses are drawn",
    "reaches('personality', 0x40000)",
    (_CALLS,),
  ),
  Attack("load a module", "reaches('init_module', 0, 0, 0)"),
  Attack("start another kernel", "reaches('kexec_load', 0, 99, 0, 99)"),
  Attack("restart the machine", "reaches('reboot', 0, 0, 0, 0)"),
  Attack("read the kernel's messages", "reaches('syslog', 10, 0, 0)"),
  Attack("swap on a file", "reaches('swapon', 0, 0)"),
  Attack(
    "lock a file of the host",
    "import fcntl; fcntl.flock(open('/usr/bin/env'), fcntl.LOCK_EX); won()",
    (_CALLS,),
  ),
  Attack(
    "lock a part of a file of the host",
    "import fcntl; fcntl.lockf(open('/usr/bin/env'), fcntl.LOCK_SH); won()",
    (_CALLS,),
  ),
  Attack("watch files of the host", "reaches('inotify_init1', 0)", (_CALLS,)),
  Attack("write all disks", "reaches('sync')", (_CALLS,)),
  Attack(
    "have a file of the host read again",
    "os.posix_fadvise(os.open('/usr/bin/env', 0), 0, 0, 4); won()",
    (_CALLS,),
  ),
  Attack(
    "read paths of the host in the options of its box",
    "b'--ro-bind' in open('/proc/1/cmdline', 'rb').read() and won()",
  ),
  Attack("set the clock", "reaches('settimeofday', 1, 0)", (_CALLS,)),
  Attack(
    "see System V segments of the host",
    "str(key) in open('/proc/sysvipc/shm').read().split() and won()",
    ("ipc",),
  ),
  Attack(
    "make a System V segment", "reaches('shmget', 0, 4096, 0o600)", (_CALLS,)
  ),
  Attack("make a queue of messages", "reaches('msgget', 0, 0o600)", (_CALLS,)),
  Attack("make a file in memory", "os.memfd_create('x'); won()", (_CALLS,)),
  Attack(
    "call by the numbers of another table",
    "import ctypes\n"
    "os.uname()[4] == 'x86_64' and ctypes.CDLL(None).syscall(\n"
    "  ctypes.c_long(0x40000000 + 39)) > 0 and won()",
  ),
]

_RESOURCES = [
  Attack(
    "compute for long",
    "import time\nwhile time.process_time() < 1.5: pass\nwon()",
    ("CPU time",),
  ),
  Attack(
    "compute for long, and ignore the signal",
    "import signal, time\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\n"
    "while time.process_time() < 1.5: pass\nwon()",
    ("CPU time",),
  ),
  Attack("compute one large number", "x = 9 ** 9 ** 8; won()"),
  Attack("sleep", "import time; time.sleep(2.5); won()", ("wall time",)),
  Attack("take 1 GB of memory", "x = bytearray(1 << 30); won()", ("memory",)),
  Attack("take 10 GB of memory", "x = bytes(10 << 30); won()", ("memory",)),
  Attack(
    "map 1 GB",
    "import mmap; x = mmap.mmap(-1, 1 << 30); won()",
    ("memory",),
  ),
  Attack(
    "write a large file",
    "fills('/tmp', 1, 2 << 20)",
    ("file size",),
  ),
  Attack(
    "write many files",
    "fills('/tmp', 40)",
    ("small files",),
  ),
  Attack(
    "write many files to /dev/shm",
    "fills('/dev/shm', 40)",
    ("small files",),
  ),
  Attack(
    "write many files to /dev",
    "fills('/dev', 40)",
    _WRITES,
  ),
  Attack(
    "write a large file to /",
    "fills('/', 1)",
    _WRITES,
  ),
  Attack(
    "open many files",
    "files = [open('/dev/null') for _ in range(64)]; won()",
    ("open files",),
  ),
  Attack(
    "dump its memory",
    "import resource\nresource.getrlimit(resource.RLIMIT_CORE)[1] and won()",
    ("no core",),
  ),
  Attack("say much", "os.write(1, bytes(1 << 20)); won()", ("output",)),
  Attack(
    "use up the stack",
    "f = lambda: f()\nsys.setrecursionlimit(10 ** 9); f(); won()",
  ),
  Attack("be hard to compile", "exec('(' * 10 ** 6); won()"),
]

ATTACKS = (*(*_FILES, *_RIGHTS, *_PROCESSES, *_NETWORK, *_KERNEL, *_RESOURCES),)
