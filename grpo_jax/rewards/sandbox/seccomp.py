"""The filter of system calls that a program in the sandbox is refused.

The filter is a small program of the kernel's packet filter (BPF), which runs at
every system call. It refuses a list of calls with EPERM, as if the program
lacked the right, and calls that are newer than the list with ENOSYS, as an
older kernel would. Everything else is allowed. A program of another
architecture is killed, since its calls have other numbers.

    ld  [4]                      the architecture
    jeq #ours, next, kill
    ld  [0]                      the number of the call
    jge #x32, kill, next         (x86_64 only: numbers of a second table)
    jgt #newest, ENOSYS, next
    jeq #fork, EPERM, next       one such line for each refused call
    jne #ioctl, skip, next
    ld  [24]                     the low half of its second argument
    jeq #TIOCSTI, EPERM, next    types into a terminal
    jeq #TIOCLINUX, EPERM, next
    ret allow
    jne #fcntl, allow, next      likewise: locks of files, and signs of use

In a box that may have several processes, `fork` and `vfork` are allowed, and
`clone` where it makes no namespace; `clone3`, whose flags no filter can read,
is refused as an older kernel would, so that the C library calls `clone`:

    jeq #clone3, ENOSYS, next
    jne #clone, skip, next
    ld  [16]                     the low half of its first argument
    jset #CLONE_NEW*, EPERM, allow

`execve` stays: bubblewrap loads the filter before it starts the interpreter. A
program that starts another one in its place keeps the filter and all limits.

Source: Linux, Documentation/userspace-api/seccomp_filter.rst, and its tables
arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Sequence
from typing import NamedTuple


class _Machine(NamedTuple):
  audit: int  # AUDIT_ARCH_*, the kernel's number of the architecture.
  column: int  # Column of `REFUSED`.
  ioctl: int  # Number of this call,
  fcntl: int  # and of this one.
  first_foreign: int | None  # Numbers from here on belong to another table.


MACHINES = {
  "x86_64": _Machine(0xC000003E, 0, 16, 72, 0x40000000),
  "aarch64": _Machine(0xC00000B7, 1, 29, 25, None),
}
# Calls that start processes and threads.
FORKS = ("fork", "vfork", "clone", "clone3")
# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET.
NAMESPACES = 0x7E020000
NEWEST = 450  # set_mempolicy_home_node, of Linux 5.17; the same everywhere.

# Name -> number on x86_64 and on aarch64; None: there is no such call.
REFUSED: dict[str, tuple[int | None, int | None]] = {
  # Processes and threads; other processes' memory and descriptors.
  "fork": (57, None),
  "vfork": (58, None),
  "clone": (56, 220),
  "clone3": (435, 435),
  "execveat": (322, 281),
  "ptrace": (101, 117),
  "process_vm_readv": (310, 270),
  "process_vm_writev": (311, 271),
  "process_madvise": (440, 440),
  "process_mrelease": (448, 448),
  "kcmp": (312, 272),
  "pidfd_open": (434, 434),
  "pidfd_getfd": (438, 438),
  "pidfd_send_signal": (424, 424),
  # Sockets.
  "socket": (41, 198),
  "socketpair": (53, 199),
  "connect": (42, 203),
  "bind": (49, 200),
  "listen": (50, 201),
  "accept": (43, 202),
  "accept4": (288, 242),
  "sendto": (44, 206),
  "sendmsg": (46, 211),
  "sendmmsg": (307, 269),
  "recvfrom": (45, 207),
  "recvmsg": (47, 212),
  "recvmmsg": (299, 243),
  # Namespaces and mounts.
  "unshare": (272, 97),
  "setns": (308, 268),
  "mount": (165, 40),
  "umount2": (166, 39),
  "pivot_root": (155, 41),
  "open_tree": (428, 428),
  "move_mount": (429, 429),
  "fsopen": (430, 430),
  "fsconfig": (431, 431),
  "fsmount": (432, 432),
  "fspick": (433, 433),
  "mount_setattr": (442, 442),
  "name_to_handle_at": (303, 264),
  "open_by_handle_at": (304, 265),
  # Large parts of the kernel that a small program has no use for.
  "bpf": (321, 280),
  "perf_event_open": (298, 241),
  "userfaultfd": (323, 282),
  "io_uring_setup": (425, 425),
  "io_uring_enter": (426, 426),
  "io_uring_register": (427, 427),
  "io_setup": (206, 0),
  "io_submit": (209, 2),
  "add_key": (248, 217),
  "request_key": (249, 218),
  "keyctl": (250, 219),
  "fanotify_init": (300, 262),
  "fanotify_mark": (301, 263),
  "lookup_dcookie": (212, 18),
  "personality": (135, 92),
  "modify_ldt": (154, None),
  "uselib": (134, None),
  # Memory that no limit of the process counts.
  "memfd_create": (319, 279),
  "memfd_secret": (447, 447),
  "shmget": (29, 194),
  "shmat": (30, 196),
  "semget": (64, 190),
  "msgget": (68, 186),
  "mq_open": (240, 180),
  "vmsplice": (278, 75),
  # Files of the host, which many boxes see: a program that locks or watches one
  # can talk to another box, and block a program of the host.
  "flock": (73, 32),
  "inotify_init": (253, None),
  "inotify_init1": (294, 26),
  "inotify_add_watch": (254, 27),
  "mincore": (27, 232),
  # Costly calls: they write all disks, or have files read again.
  "sync": (162, 81),
  "syncfs": (306, 267),
  "fadvise64": (221, 223),
  "readahead": (187, 213),
  # Placement of memory.
  "move_pages": (279, 239),
  "migrate_pages": (256, 238),
  "mbind": (237, 235),
  "set_mempolicy": (238, 237),
  "set_mempolicy_home_node": (450, 450),
  # The machine itself.
  "kexec_load": (246, 104),
  "kexec_file_load": (320, 294),
  "init_module": (175, 105),
  "finit_module": (313, 273),
  "delete_module": (176, 106),
  "reboot": (169, 142),
  "swapon": (167, 224),
  "swapoff": (168, 225),
  "acct": (163, 89),
  "quotactl": (179, 60),
  "quotactl_fd": (443, 443),
  "syslog": (103, 116),
  "settimeofday": (164, 170),
  "clock_settime": (227, 112),
  "clock_adjtime": (305, 266),
  "adjtimex": (159, 171),
  "iopl": (172, None),
  "ioperm": (173, None),
  "vhangup": (153, 58),
  "nfsservctl": (180, 42),
}
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
# F_GETLK, F_SETLK, F_SETLKW; the same of open files; F_SETLEASE, F_GETLEASE and
# F_NOTIFY.
LOCKS = (5, 6, 7, 36, 37, 38, 1024, 1025, 1026)

ALLOW = 0x7FFF0000
KILL = 0x80000000  # The whole process.
_ERRNO = 0x00050000
EPERM = _ERRNO | errno.EPERM
ENOSYS = _ERRNO | errno.ENOSYS

_LOAD, _EQUAL, _ABOVE, _AT_LEAST, _RETURN = 0x20, 0x15, 0x25, 0x35, 0x06
_HAS_ANY = 0x45
# Offsets in `struct seccomp_data`.
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT = 0, 4, 16, 24


def _line(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
  """Returns one `struct sock_filter`, with the lines to skip on yes and no."""
  return struct.pack("=HBBI", code, yes, no, value)


def machine() -> str:
  """Returns the name of this machine's architecture.

  Raises:
    RuntimeError: `MACHINES` does not have it.
  """
  name = platform.machine()
  if name not in MACHINES:
    raise RuntimeError(
      f"sandbox: this machine is {name!r}, and the numbers of system calls are"
      f" known for {sorted(MACHINES)} only; score programs on one of these, or"
      " set config.rewards.sandbox='process' if the policy can be trusted."
    )
  return name


def filter_program(name: str, forks: bool = False) -> bytes:
  """Returns an architecture's filter in the form that `bwrap --seccomp` reads.

  Each line has eight bytes. The name is one of `MACHINES`. With `forks`, the
  program may start processes and threads.
  """
  audit, column, ioctl, fcntl, first_foreign = MACHINES[name]
  lines = [
    _line(_LOAD, _ARCHITECTURE),
    _line(_EQUAL, audit, yes=1),
    _line(_RETURN, KILL),
    _line(_LOAD, _NUMBER),
  ]
  if first_foreign is not None:
    lines += [_line(_AT_LEAST, first_foreign, no=1), _line(_RETURN, KILL)]
  lines += [_line(_ABOVE, NEWEST, no=1), _line(_RETURN, ENOSYS)]
  for call, numbers in REFUSED.items():
    if (number := numbers[column]) is not None and not (
      forks and call in FORKS
    ):
      lines += [_line(_EQUAL, number, no=1), _line(_RETURN, EPERM)]
  if forks:
    clone, clone3 = (REFUSED[x][column] or 0 for x in ("clone", "clone3"))
    lines += [
      *(_line(_EQUAL, clone3, no=1), _line(_RETURN, ENOSYS)),
      *(_line(_EQUAL, clone, no=4), _line(_LOAD, _FIRST_ARGUMENT)),
      *(_line(_HAS_ANY, NAMESPACES, no=1), _line(_RETURN, EPERM)),
      _line(_RETURN, ALLOW),
    ]
  lines += _refused_with(ioctl, (TIOCSTI, TIOCLINUX))
  lines += _refused_with(fcntl, LOCKS)
  return b"".join([*lines, _line(_RETURN, ALLOW)])


def _refused_with(number: int, arguments: Sequence[int]) -> list[bytes]:
  """Returns lines that refuse a call with one of these second arguments."""
  count = len(arguments)
  return [
    _line(_EQUAL, number, no=count + 3),
    _line(_LOAD, _SECOND_ARGUMENT),
    *(_line(_EQUAL, x, yes=count - i) for i, x in enumerate(arguments)),
    _line(_RETURN, ALLOW),
    _line(_RETURN, EPERM),
  ]
