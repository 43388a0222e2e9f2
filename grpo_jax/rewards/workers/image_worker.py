"""The process in which images are decoded and cut; started by `pool.py`.

A decoder of images reads files of strangers, and is written in C. So it has a
process of its own, with a limit on its memory, and the reader checks its
answers.
"""

from __future__ import annotations

import base64
import binascii
import resource
from collections.abc import Mapping
from typing import Any

import numpy as np

from grpo_jax.data.images import files, processors
from grpo_jax.rewards.workers import frames, reward_worker

# Beyond the memory of a worker when it begins. Four copies of
# `files.MAX_PIXELS` pixels with four bytes each take half of it.
MAX_MEMORY = 2 * 2**30  # bytes


def main(fd: int, parent: int, argument: Mapping[str, Any]) -> None:
  """Decodes the images that come through a pipe, until the pipe closes.

  An answer is the `message_of` a `PatchCut`, or ["bad", reason].

  Args:
    fd: File descriptor of this end of the pipe.
    parent: Process id of the parent; when it is gone, so is the worker.
    argument: "processor": `Processor.described()`; "folder": the folder of
      relative paths.
  """
  channel = reward_worker.start(fd, parent)
  processor = processors.remade(dict(argument["processor"]))
  folder = argument["folder"]

  def look(image: Any) -> Any:
    try:
      return message_of(processor.cut(files.pixels(image, folder)))
    except files.BadImage as error:
      return ["bad", str(error)]
    except MemoryError:
      return ["bad", "it cannot be decoded: it needs too much memory"]

  def load() -> dict[str, Any]:
    files.import_pillow().Image.init()  # All formats, before the limit.
    limit_memory(MAX_MEMORY)
    return {"look": look}

  if reward_worker.ready(channel, load) is None:
    return
  try:
    while True:
      number, image = channel.receive()
      channel.send(frames.encode([number, look(image), None]))
  except (EOFError, OSError):
    return


def limit_memory(more: int) -> None:
  """Limits the memory of this process, in bytes beyond what it has now."""
  try:
    with open("/proc/self/statm") as file:
      pages = int(file.read().split()[0])
  except OSError:  # Not Linux: the pixels are limited anyway.
    return
  most = pages * resource.getpagesize() + more
  resource.setrlimit(resource.RLIMIT_AS, (most, most))


def message_of(cut: processors.PatchCut) -> list[Any]:
  """Returns a cut in the form of a message."""
  body = base64.b64encode(cut.pixels.tobytes()).decode()
  grids = [list(grid) for grid in cut.grids]
  return ["cut", body, grids, cut.rows, cut.columns]


def cut_of(
  answer: Any, processor: processors.Processor
) -> processors.PatchCut | str:
  """Returns the cut in a worker's answer, or the reason why there is none.

  Raises:
    ValueError: The answer has another form.
  """
  match answer:
    case ["bad", str(why)]:
      return why[:1000]
    case ["cut", str(body), [*grids], int(rows), int(columns)]:
      sizes = tuple((int(a), int(b)) for a, b in grids)
      tiles = rows * columns + 1 if rows * columns else 1
      if len(sizes) != tiles or not all(x > 0 for g in sizes for x in g):
        raise ValueError(f"it said {len(sizes)} grids of {tiles} tiles")
      size = 3 * processor.patch**2
      try:
        data = np.frombuffer(base64.b64decode(body, validate=True), np.uint8)
      except binascii.Error as error:
        raise ValueError("it said no base64") from error
      return processors.PatchCut(
        data.reshape(sum(a * b for a, b in sizes), size), sizes, rows, columns
      )
  raise ValueError(f"it said {answer!r:.80} of an image")
