"""The program of a box in which bash runs; `shell.py` hands it to `Box.run`.

Like `in_the_box.py`, it imports nothing of this package. Its input is a job,
as `marshal` writes it: `steps` lay files down or empty a folder, bash runs
`line` in `folder`, which is made if it is not there, every other process is
ended, and only then files are read. Its output is a line of JSON, and after it
the parts whose lengths the line names: what bash has written, the files of
`reads`, and a tar of the folders of `keeps`.

A program that bash runs has this program's rights and can speak in its place.
So the answer about a policy's command is worth what the policy is.
"""

import contextlib
import io
import json
import marshal
import os
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import tempfile
import time


def _lay(data: bytes, only) -> None:
  """Writes the files of a tar; of a tar with `only`, plain files below these.

  A tar may be forged. What cannot be read or written is left out.
  """
  members = []
  with (
    contextlib.suppress(Exception),
    tarfile.open(fileobj=io.BytesIO(data), errorlevel=0) as tar,
  ):
    tar.extraction_filter = lambda member, path: member
    for member in tar:
      name = os.path.normpath("/" + member.name)
      plain = member.isreg() or member.isdir()
      if only is None or (
        plain and any((name + "/").startswith(x + "/") for x in only)
      ):
        member.name = name.lstrip("/")
        members.append(member)
    tar.extractall("/", members)


def _empty(folder: str) -> None:
  with os.scandir(folder) as entries:
    for entry in entries:
      if entry.is_dir(follow_symlinks=False):
        shutil.rmtree(entry.path)
      else:
        os.unlink(entry.path)


def _end_others() -> None:
  """Ends all processes of the box but this one and its first."""
  while True:
    try:
      os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
      return
    with contextlib.suppress(ChildProcessError):
      os.waitpid(-1, os.WNOHANG)
    time.sleep(0.001)


def _read(path: str, most: int):
  """Returns a plain file's first bytes; None if there is none."""
  try:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(fd, "rb") as file:
      if stat.S_ISREG(os.fstat(fd).st_mode):
        return file.read(most)
  except OSError:
    pass
  return None


def _packed(folders, most: int):
  """Returns a tar of what the folders have; None if it is larger."""
  buffer = io.BytesIO()
  with tarfile.open(fileobj=buffer, mode="w") as tar:
    for folder in folders:
      for at, names, files in os.walk(folder):
        for name in (*names, *files):
          with contextlib.suppress(OSError):
            tar.add(os.path.join(at, name), recursive=False)
          # Each of several names of a file is written as a file.
          tar.inodes.clear()  # type: ignore[attr-defined]
          if buffer.tell() > most:
            return None
  return buffer.getvalue()


def main() -> None:
  """Does the job."""
  job = marshal.loads(sys.stdin.buffer.read())
  for name, *arguments in job["steps"]:
    if name == "lay":
      _lay(*arguments)
    else:
      _empty(*arguments)
  os.makedirs(job["folder"], exist_ok=True)
  with tempfile.TemporaryFile() as output:
    bash = subprocess.Popen(
      ["bash", "-c", job["line"]],
      stdin=subprocess.DEVNULL,
      stdout=output,
      stderr=subprocess.STDOUT,
      cwd=job["folder"],
      env={**os.environ, **job["variables"]},
      start_new_session=True,
    )
    try:
      code = bash.wait(job["seconds"])
    except subprocess.TimeoutExpired:
      code = None
    _end_others()
    output.seek(0)
    text = output.read(job["most_said"])
  reads = [_read(path, job["most_said"]) for path in job["reads"]]
  parts = [text, *reads, _packed(job["keeps"], job["most_kept"])]
  lengths = [None if part is None else len(part) for part in parts]
  head = json.dumps({"code": code, "lengths": lengths})
  sys.stdout.buffer.write(head.encode() + b"\n")
  sys.stdout.buffer.write(b"".join(part or b"" for part in parts))


if __name__ == "__main__":
  main()
