"""The filter says what it should, by an interpreter of its own."""

import errno
import struct

import pytest

from grpo_jax.rewards.sandbox import seccomp

_REFUSED = 0x50000 | errno.EPERM


def _run(program, architecture, number, argument=0, first=0):
  """Result of a filter: the instructions that the kernel's manual names."""
  data = struct.pack("=IIQQQ", number, architecture, 0, first, argument)
  lines = list(struct.iter_unpack("=HBBI", program))
  accumulator, at = None, 0
  while True:
    code, yes, no, value = lines[at]
    at += 1
    if code == 0x06:  # BPF_RET | BPF_K
      return value
    if code == 0x20:  # BPF_LD | BPF_W | BPF_ABS
      (accumulator,) = struct.unpack_from("=I", data, value)
    else:
      holds = {
        0x15: accumulator == value,  # BPF_JMP | BPF_JEQ | BPF_K
        0x25: accumulator > value,  # BPF_JGT
        0x35: accumulator >= value,  # BPF_JGE
        0x45: bool(accumulator & value),  # BPF_JSET
      }[code]
      at += yes if holds else no


# Architecture -> AUDIT_ARCH_*, and some calls by their numbers there: read,
# write, openat, execve, exit_group, ioctl; then fork or clone, socket, ptrace,
# unshare, bpf, io_uring_setup, memfd_create, keyctl, mount, flock, sync,
# inotify_init1, fadvise64; and fcntl.
_KNOWN = {
  "x86_64": (
    0xC000003E,
    (0, 1, 257, 59, 231),
    16,
    (57, 56, 435, 41, 101, 272, 321, 425, 319, 250, 165, 73, 162, 294, 221),
    72,
  ),
  "aarch64": (
    0xC00000B7,
    (63, 64, 56, 221, 94),
    29,
    (220, 435, 198, 117, 97, 280, 425, 279, 219, 40, 32, 81, 26, 223),
    25,
  ),
}


@pytest.mark.parametrize("name", _KNOWN)
def test_known_calls(name):
  program = seccomp.filter_program(name)
  audit, allowed, ioctl, refused, fcntl = _KNOWN[name]
  for number in allowed:
    assert _run(program, audit, number) == 0x7FFF0000
  for number in refused:
    assert _run(program, audit, number) == _REFUSED
  assert _run(program, audit, ioctl, 0x5401) == 0x7FFF0000  # TCGETS
  for request in (
    0x5412,
    0x541C,
    0x5412 | 1 << 32,
  ):  # The kernel reads 32 bits.
    assert _run(program, audit, ioctl, request) == _REFUSED
  for command in (0, 1, 3, 1030):  # F_DUPFD, F_GETFD, F_GETFL, F_DUPFD_CLOEXEC.
    assert _run(program, audit, fcntl, command) == 0x7FFF0000
  for command in (5, 6, 7, 36, 37, 38, 1024, 1026):  # Locks and signs of use.
    assert _run(program, audit, fcntl, command) == _REFUSED
  # Calls that the list cannot know.
  assert _run(program, audit, 451) == 0x50000 | errno.ENOSYS


@pytest.mark.parametrize("name", _KNOWN)
def test_every_call_of_the_table_is_refused_and_no_other(name):
  program = seccomp.filter_program(name)
  audit = _KNOWN[name][0]
  column = list(_KNOWN).index(name)
  listed = {row[column] for row in seccomp.REFUSED.values()} - {None}
  for number in range(451):
    refused = _run(program, audit, number) == _REFUSED
    assert refused == (number in listed), number


@pytest.mark.parametrize("name", _KNOWN)
def test_a_filter_for_several_processes(name):
  plain = seccomp.filter_program(name)
  several = seccomp.filter_program(name, forks=True)
  audit = _KNOWN[name][0]
  forks, clone = {"x86_64": ((57, 58), 56), "aarch64": ((), 220)}[name]
  for number in {*range(452)} - {*forks, clone, 435}:
    for argument in (0, 5, 0x5412):
      result = _run(several, audit, number, argument, 1 << 28)
      assert result == _run(plain, audit, number, argument), number
  for number in forks:
    assert _run(several, audit, number) == 0x7FFF0000
  assert _run(several, audit, 435) == 0x50000 | errno.ENOSYS  # clone3
  # SIGCHLD, and what glibc's fork and threads set.
  for flags in (0x11, 0x1200011, 0x3D0F00, 0x4111):
    assert _run(several, audit, clone, 0, flags) == 0x7FFF0000
  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET.
  for bit in (17, 25, 26, 27, 28, 29, 30):
    assert _run(several, audit, clone, 0, 0x11 | 1 << bit) == _REFUSED


def test_other_tables_are_no_way_around():
  program = seccomp.filter_program("x86_64")
  kill = 0x80000000
  assert _run(program, 0x40000003, 1) == kill  # i386
  assert _run(program, 0xC00000B7, 64) == kill
  assert _run(program, 0xC000003E, 0x40000000 + 57) == kill  # x32
  assert _run(seccomp.filter_program("aarch64"), 0xC000003E, 0) == kill


def test_unknown_machines_are_refused(monkeypatch):
  monkeypatch.setattr(seccomp.platform, "machine", lambda: "riscv64")
  with pytest.raises(RuntimeError, match="'riscv64'"):
    seccomp.machine()
