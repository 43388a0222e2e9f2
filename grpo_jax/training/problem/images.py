"""Images of records, decoded and cut in processes of their own."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from grpo_jax.data import encoder
from grpo_jax.data.images import files, processors
from grpo_jax.rewards.workers import frames, image_worker, pool
from grpo_jax.settings import groups

# Seconds for an image. Images within the limits take less than a tenth of it,
# so a busy machine leaves no record out.
TIMEOUT_S = 60.0


class _Call(pool.PoolCall):
  """The images of one call, and their results."""

  def __init__(self, images: Sequence[Any], processor: processors.Processor):
    super().__init__(range(len(images)), pool.Failures(len(images)))
    self._images, self._processor = images, processor
    self.results: list[processors.PatchCut | str] = [
      "it was not looked at"
    ] * len(images)

  def message(self, index: int) -> Any:
    return self._images[index]

  def record(
    self, index: int, content: Any, failure: frames.Failure | None
  ) -> None:
    del failure  # The worker's content has the reason.
    self.results[index] = image_worker.cut_of(content, self._processor)

  def fail(self, index: int, kind: str, message: str) -> None:
    super().fail(index, kind, message)
    self.results[index] = {
      "timeout": f"it took more than {TIMEOUT_S:g} s",
      "worker_died": "its decoder ended",
    }.get(kind, message)

  def timeout_s(self, index: int) -> float:
    return TIMEOUT_S

  def take(self, slot: int, num_workers: int, num_open: int) -> list[int]:
    if num_open or not self.pending:
      return []
    return [self.pending.popleft()]  # Each may be as long as a message.


class Reader:
  """Worker processes that decode and cut images.

  They start with the first image. Several threads may ask; one waits for the
  other.
  """

  def __init__(
    self, processor: processors.Processor, folder: str, num_workers: int
  ):
    """Starts no process yet.

    Args:
      processor: Image processor of the model.
      folder: Folder to which paths are relative, and which they may not leave.

    Raises:
      ImportError: Pillow is missing.
    """
    files.import_pillow()
    self.processor = processor
    self._folder, self._num_workers = folder, num_workers
    self._pool: pool.Pool | None = None
    self._lock = threading.Lock()
    self._is_closed = False

  def cuts(
    self, images: Sequence[Sequence[Any]]
  ) -> list[processors.PatchCut | str]:
    """The patches of each image, or the reason why it cannot be used.

    Args:
      images: Values from `files.value`.

    Raises:
      RuntimeError: The reader is closed, or a worker cannot start.
    """
    cuts: list[processors.PatchCut | str] = [_unsent(image) for image in images]
    readable = [i for i, reason in enumerate(cuts) if not reason]
    if not readable:
      return cuts
    call = _Call([images[i] for i in readable], self.processor)
    with self._lock:
      if self._is_closed:
        raise RuntimeError("the reader of images is closed.")
      if self._pool is None:
        self._pool = self._start_pool()
      self._pool.run(call, TIMEOUT_S * (1 + len(readable)))
    for i, cut in zip(readable, call.results, strict=True):
      cuts[i] = cut
    return cuts

  def _start_pool(self) -> pool.Pool:
    argument = {"processor": self.processor.described(), "folder": self._folder}
    return pool.Pool(
      "images",
      "image_worker",
      argument,
      self._num_workers,
      TIMEOUT_S,
      TIMEOUT_S,
    )

  def close(self) -> None:
    """Ends the processes, after the images that they work on.

    May be called again. A thread that reads ahead may be in `cuts`. If the pool
    were closed meanwhile, it would start a new process for each that has ended.
    """
    self._is_closed = True
    with self._lock:
      if self._pool is not None:
        self._pool.close()


def _unsent(image: Sequence[Any]) -> str:
  """The reason why an image is not sent to a worker; empty if it is."""
  if image[0] == "bad":
    return image[1]
  size = 0 if image[0] == "path" else len(image[1]) * 3 // 4
  if size > files.MAX_SENT_BYTES:
    return (
      f"it has {size} bytes; at most {files.MAX_SENT_BYTES} are read from a"
      " record, and more from a file"
    )
  return ""


def opened(config: Any) -> Reader:
  """Makes the reader of the images of a run.

  Args:
    config: A `RunConfig`.

  Raises:
    FileNotFoundError, ImportError, ValueError: A folder, Pillow or a processor
      is missing, or a setting is not for this processor.
  """
  data = config.data
  if not (data.image_processor or config.model.checkpoint):
    raise ValueError(
      f"config.data.images={data.images!r} needs the processor of a checkpoint;"
      " set config.data.image_processor to its folder."
    )
  folder = data.image_processor or config.model.directory()
  return Reader(
    processors.from_folder(folder, data.image_options),
    groups.folder(data),
    data.image_workers,
  )


def image_encoder(reader: Reader, data: Any) -> encoder.ImageEncoder:
  """The encoding of images in prompts.

  Args:
    reader: Reader of the images.
    data: A `DataConfig`.
  """
  return encoder.ImageEncoder(
    reader.processor, reader.cuts, data.max_images, data.max_patches
  )
