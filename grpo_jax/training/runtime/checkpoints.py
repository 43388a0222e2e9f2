"""Checkpoints of a run: asynchronous, atomic, and checked when restored.

A directory of checkpoints belongs to one run. Each saved step is a directory
named by its number. It holds the arrays of the state, a JSON object `extra`
(position of the data iterator and of the metrics, …), and a checksum of each
array, which is compared when the array is restored. A step that was being
written when the process died keeps a temporary name, is never listed, and is
replaced when the same step is saved again.

A state may be saved from one mesh and restored on another, by as many processes
or by others: each reads the parts that its devices need. Every process makes
every call, in a folder that all of them share.

Nothing here repairs or deletes files that it does not understand: a directory
of someone else, a damaged step or a state of another shape raises, and the
files stay as they were.

Checksums of arrays do not depend on the place of their parts. Every element is
hashed with its position, and the hashes are added:

    c_k(x) = Σ_i mix( bits(x_i) XOR mix(i + s_k) )  mod 2³²,  k = 1, 2

The sum is exact in any order, so an array has the same checksum on every mesh
and with any number of processes. It is computed on the devices of the array,
and only the sum leaves them. `mix` is a bijection: a change of one element
always changes the sum, whichever bits it flips, and any other change is missed
with a chance of 2⁻⁶⁴.

Source of `mix`: Appleby, MurmurHash3, `fmix32`.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import hashlib
import json
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint.experimental.v1 as ocp
from absl import logging as absl_logging
from jax import lax
from jax.experimental import multihost_utils
from orbax.checkpoint import utils as step_lib

from grpo_jax.training.runtime import files
from grpo_jax.types import PyTree

_SALTS = (0x9E3779B9, 0x7F4A7C15)
_SMALL = 1 << 20  # Elements that a CPU hashes faster than it compiles.
_TINY = 1 << 12  # Elements that NumPy hashes faster than a block is hashed.
_BLOCK = 1 << 16  # Words of a block.


def of_leaves(tree: PyTree) -> dict[str, str]:
  """Checksums of a tree: path of each array -> 16 hexadecimal digits.

  With several processes every one makes the call, and has the whole result.

  Args:
    tree: Arrays of numbers; typed keys as their data.
  """
  sums = {
    jax.tree_util.keystr(path, simple=True, separator="/"): _sums(leaf)
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  }
  return {
    name: "".join(f"{int(part):08x}" for part in parts)
    for name, parts in jax.device_get(sums).items()
  }


def _sums(x: Any) -> Any:  # [2] uint32
  if (
    jax.default_backend() != "cpu" or jax.process_count() > 1 or x.size > _SMALL
  ):
    return _on_devices(x)
  # NumPy reads the same memory here, and nothing is compiled for each shape.
  x = np.atleast_1d(np.asarray(x))
  width = min(x.dtype.itemsize, 4)
  words = np.ascontiguousarray(x).view(f"uint{8 * width}")
  if words.size <= _TINY:
    return _added(words, x.shape, np)
  return _by_blocks(words.reshape(-1))


def _by_blocks(words: np.ndarray) -> np.ndarray:  # [any] -> [2] uint32
  """The sums, by one program for all sizes."""
  sums = np.zeros(len(_SALTS), np.uint32)
  block = np.zeros(_BLOCK, np.uint32)
  for start in range(0, words.size, _BLOCK):
    part = words[start : start + _BLOCK]
    block[: part.size] = part
    sums += np.asarray(
      _of_block(block, np.uint32(start % 2**32), np.uint32(part.size))
    )
  return sums


@jax.jit
def _of_block(block: Any, start: Any, size: Any) -> jax.Array:  # [2] uint32
  place = jnp.arange(_BLOCK, dtype=jnp.uint32)
  mixed = tuple(
    jnp.where(place < size, x, 0) for x in _mixed(block, place + start, jnp)
  )
  return _reduced(mixed)


@jax.jit
def _on_devices(x: Any) -> jax.Array:  # [2] uint32
  x = jnp.atleast_1d(x)
  if x.dtype == jnp.bool_:
    x = x.astype(jnp.uint8)
  width = min(x.dtype.itemsize, 4)
  words = lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * width}"))
  return _added(words, x.shape, jnp)


def _added(words: Any, shape: tuple[int, ...], xp: Any) -> Any:  # [2] uint32
  """The sums, by NumPy or jax.numpy.

  Args:
    words: Bits of the elements. Elements of 8 bytes have two words.
  """
  shape = (*shape, words.size // max(math.prod(shape), 1))
  words = words.reshape(shape).astype(xp.uint32)
  position = xp.zeros((1,) * len(shape), xp.uint32)
  for axis, size in enumerate(shape):
    along = xp.arange(size, dtype=xp.uint32)
    along = along.reshape(-1, *(1,) * (len(shape) - axis - 1))
    position = position * xp.uint32(size % 2**32) + along
  mixed = _mixed(words, position, xp)
  if xp is np:
    return np.stack([np.sum(x, dtype=np.uint32) for x in mixed])
  return _reduced(mixed)


def _mixed(words: Any, position: Any, xp: Any) -> tuple[Any, ...]:
  return tuple(
    _mix(words ^ _mix(position + xp.uint32(salt), xp), xp) for salt in _SALTS
  )


def _reduced(mixed: tuple[jax.Array, ...]) -> jax.Array:  # [2] uint32
  """The sums, in one reduction.

  A CPU computes it with its vector units. Two reductions that are stacked take
  six times as long there.
  """
  zeros = (jnp.uint32(0),) * len(mixed)
  axes = tuple(range(mixed[0].ndim))
  return jnp.stack(lax.reduce(mixed, zeros, _sum, axes))


def _sum(x: tuple[Any, ...], y: tuple[Any, ...]) -> tuple[Any, ...]:
  return tuple(a + b for a, b in zip(x, y, strict=True))


def _mix(x: Any, xp: Any) -> Any:
  """A bijection of 32 bits in which every bit depends on all."""
  x = (x ^ (x >> xp.uint32(16))) * xp.uint32(0x85EBCA6B)
  x = (x ^ (x >> xp.uint32(13))) * xp.uint32(0xC2B2AE35)
  return x ^ (x >> xp.uint32(16))


# Its presence marks the numbered directories beside it as ours.
_MARKER = "grpo_jax_checkpoints.txt"
_MARKER_TEXT = "Checkpoints of one grpo_jax run; each number is a step.\n"
_EXTRA = "grpo_jax_extra"
_CHECKSUMS = "grpo_jax_checksums"
_DIGEST = "grpo_jax_sha256"  # Of extra and checksums.
_STEP = "grpo_jax_step"  # The name of the folder when it was saved.
# Seconds until every process sees a new file; NFS may take half a minute.
_VISIBLE_SECONDS = 60.0
_SHOWN = 5  # Differing arrays that an error lists.


def _not_orbax_chatter(record: logging.LogRecord) -> bool:
  """False for Orbax's lines, except warnings.

  Under absl.app it logs dozens of lines per save. It raises errors, and each of
  its threads prints the traceback as well.
  """
  return record.levelno == logging.WARNING or (
    f"{os.sep}orbax{os.sep}" not in record.pathname
  )


def _complain(complaint: Any, before=sys.unraisablehook) -> None:
  """Mutes late answers to a save that has failed.

  tensorstore has no other place to report them: it prints a traceback for each.
  """
  if str(complaint.exc_value) != "Event loop is closed":
    before(complaint)


sys.unraisablehook = _complain


class Checkpoints:
  """The saved steps of one run.

  Not thread-safe. With several processes, every process makes every call.

  Args:
    directory: Directory of the steps, local or gs://; made by the first `save`.
    keep: Number of latest steps to keep, at least 1.

  Raises:
    ValueError: `keep` is below 1, the directory holds files and none of them
      marks it as ours, or not all processes see the same directory.
  """

  def __init__(self, directory: str | os.PathLike, keep: int):
    if keep < 1:
      raise ValueError(
        f"config.checkpoint.keep={keep}: it counts checkpoints, and must be at"
        " least 1."
      )
    absl_logging.get_absl_logger().addFilter(_not_orbax_chatter)
    self.directory = files.parse(directory)
    if not files.is_remote(self.directory):
      self.directory = self.directory.absolute()
    self._keep = keep
    self._position: int | None = None  # Step last saved or restored here.
    self._is_writing = False  # True until the end of a save has been checked.
    self._open_checkpointer: ocp.training.Checkpointer | None = None
    names = self._owned()
    self._is_ours = bool(names)
    self._check_shared([int(name) for name in names if name.isdecimal()])

  def _owned(self) -> list[str]:
    """Names in the directory; raises if they are not ours."""
    if not self.directory.exists():
      return []
    if not self.directory.is_dir():
      raise ValueError(
        f"{self.directory} is a file, not a directory of"
        " checkpoints; nothing was changed. Pass another --workdir."
      )
    names = sorted(path.name for path in self.directory.iterdir())
    if names and _MARKER not in names:
      more = ", …" if len(names) > _SHOWN else ""
      raise ValueError(
        f"{self.directory} holds {', '.join(names[:_SHOWN])}"
        f"{more} but not {_MARKER}, so it was not written by grpo_jax;"
        " nothing was changed. Pass another --workdir."
      )
    return names

  def _check_shared(self, steps: list[int]) -> None:
    """Raises if another process sees other steps in the directory."""
    if jax.process_count() == 1:
      return
    # Before Orbax, which would wait for processes that see nothing to open.
    latest = multihost_utils.process_allgather(
      np.int32(max(steps, default=-1))
    ).tolist()
    if len(set(latest)) > 1:
      differing = ", ".join(
        f"process {process} sees {'none' if step < 0 else f'step {step}'}"
        for process, step in enumerate(latest)
      )
      raise ValueError(
        f"the processes differ about the last step in"
        f" {self.directory}: {differing}. Pass a --workdir that all of them"
        " share, as gs://BUCKET/FOLDER or a network disk."
      )

  def _take(self) -> None:
    """Marks the directory as ours; raises unless all processes see it."""
    marker = self.directory / _MARKER
    if jax.process_index() == 0:
      self.directory.mkdir(parents=True, exist_ok=True)
      marker.write_bytes(_MARKER_TEXT.encode())
    self._is_ours = True
    if jax.process_count() == 1 or files.is_remote(marker):
      return
    multihost_utils.sync_global_devices(_MARKER)  # It is written.
    deadline = time.monotonic() + _VISIBLE_SECONDS
    while not marker.exists() and time.monotonic() < deadline:
      time.sleep(0.1)
    seen = multihost_utils.process_allgather(np.bool_(marker.exists())).tolist()
    if not all(seen):
      blind = [process for process, sees in enumerate(seen) if not sees]
      raise ValueError(
        f"process 0 has made {marker}, and processes {blind} do"
        f" not see it after {_VISIBLE_SECONDS:.0f} s. Pass a --workdir that all"
        " of them share, as gs://BUCKET/FOLDER or a network disk."
      )

  def _checkpointer(self) -> ocp.training.Checkpointer:
    if self._open_checkpointer is None:
      policies = ocp.training.preservation_policies
      context = ocp.Context()
      context.array.saving.use_compression = False  # It saves 8 %.
      try:
        self._open_checkpointer = ocp.training.Checkpointer(
          self.directory,
          context=context,
          preservation_policy=policies.LatestN(self._keep),
        )
      except (ValueError, OSError) as error:
        raise ValueError(
          f"the checkpoints in {self.directory} cannot be"
          f" listed: {_first_cause(error)}. The _CHECKPOINT_METADATA file of"
          " one of them is damaged; nothing was changed. Move that step out"
          " of the directory, or pass another --workdir."
        ) from error
    return self._open_checkpointer

  def steps(self) -> list[int]:
    """Steps that were saved completely, ascending."""
    if not self._is_ours:
      return []
    return [checkpoint.step for checkpoint in self._checkpointer().checkpoints]

  def latest_step(self) -> int | None:
    """The last step that was saved completely; None if there is none."""
    return max(self.steps(), default=None)

  def save(self, step: int, state: PyTree, extra: dict[str, Any]) -> None:
    """Copies the state to host memory and writes it in the background.

    The caller may donate or delete the arrays as soon as this returns: on an
    accelerator the copy is complete, and on CPU, where the copy is a view, the
    runtime keeps the buffer alive until it is written. The call waits for an
    earlier save that is still being written; if that failed, its error is
    raised here. Saving the step that was last saved or restored does nothing.

    Args:
      step: Number of the step; must exceed every saved step.
      state: Arrays in any registered containers; typed PRNG keys and None
        leaves included.
      extra: An object that JSON can hold; tuples come back as lists.

    Raises:
      OSError: An earlier save, or this one, cannot be written.
      ValueError: The directory holds this step or a later one that this object
        did not save or restore, `extra` is not JSON, or not all processes see
        the same directory.
    """
    if step == self._position:
      return
    latest = self.latest_step()
    if latest is not None and step <= latest:
      raise ValueError(
        f"cannot save step {step}, because {self.directory}"
        f" already holds step {latest} of an earlier run; nothing was"
        " changed. Continue from that step, move the later steps out of the"
        " directory, or pass another --workdir."
      )
    try:
      text = json.dumps(extra)
    except (TypeError, ValueError) as error:
      raise ValueError(
        f"extra is not JSON: {error}. Pass numbers, strings,"
        " lists and dicts only."
      ) from error
    if not self._is_ours:
      self._take()
    data = jax.tree.map(_data, state)
    sums = json.dumps(of_leaves(data))
    self._is_writing = True
    with self._saving():
      # Forced: the default policy skips a save while another is being written.
      self._checkpointer().save_async(
        step,
        data,
        force=True,
        custom_metadata={
          _EXTRA: text,
          _CHECKSUMS: sums,
          _DIGEST: _digest(text, sums),
          _STEP: step,
        },
      )
    self._position = step

  def restore(
    self, abstract_state: PyTree, step: int | None = None, in_part: bool = False
  ) -> tuple[PyTree, dict[str, Any], int]:
    """Restores a step, byte for byte.

    Args:
      abstract_state: `jax.ShapeDtypeStruct`s or arrays with the containers,
        shapes and dtypes of the saved state. Arrays are placed on the shardings
        found here, whatever the mesh they were saved from; without a sharding,
        on the first device.
      step: Step to read; None: the latest.
      in_part: True if the saved state may have further arrays, which are not
        read.

    Returns:
      The state, the `extra` that was saved with it, and the step.

    Raises:
      FileNotFoundError: There is no such step.
      ValueError: The step is damaged, down to a bit of a number, or its arrays
        differ from `abstract_state` in names, shapes or dtypes.
    """
    step = self._existing(step)
    checkpointer = self._checkpointer()
    # Keys are saved as raw data: Orbax would keep their type in a file of its
    # own, and would return plain integers without an error if it were lost.
    abstract_data = jax.tree.map(_abstract_data, abstract_state)
    arrays, extra, sums = self._read(lambda: self._metadata(step), step)
    self._check_arrays(
      self.directory / str(step), arrays, abstract_data, in_part
    )
    context = ocp.Context()
    context.pytree.loading.partial_load = in_part
    with context:
      data = self._read(lambda: checkpointer.load(step, abstract_data), step)
    self._check_sums(step, sums, of_leaves(data))
    state = jax.tree.map(_like, abstract_state, data)
    self._position = step
    return state, extra, step

  def extra(self, step: int | None = None) -> dict[str, Any]:
    """Reads the `extra` of a step, before the shapes of its state are known.

    Raises:
      FileNotFoundError: There is no such step.
      ValueError: The step is damaged.
    """
    step = self._existing(step)
    return self._read(lambda: self._metadata(step), step)[1]

  def shapes(self, step: int | None = None) -> PyTree:
    """Shapes and dtypes of the arrays of a step, in dictionaries by name.

    Raises:
      FileNotFoundError: There is no such step.
      ValueError: The step is damaged.
    """
    step = self._existing(step)
    tree = self._read(lambda: self._metadata(step), step)[0]
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)

  def _existing(self, step: int | None) -> int:
    """The step itself, or the latest for None; raises unless it is there."""
    self.wait()  # It may still be on its way to the disk.
    steps = self.steps()
    if not steps:
      raise FileNotFoundError(
        f"{self.directory} holds no checkpoint. Check --workdir;"
        " a run saves its first checkpoint some steps after its start."
      )
    if step is None:
      return steps[-1]
    if step not in steps:
      raise FileNotFoundError(
        f"{self.directory} holds no step {step}; it holds steps"
        f" {steps}. Restore one of these."
      )
    return step

  def _metadata(
    self, step: int
  ) -> tuple[PyTree, dict[str, Any], dict[str, str]]:
    """Shapes and dtypes of the arrays, `extra`, and checksums of the arrays."""
    metadata = self._checkpointer().metadata(step)
    if metadata.metadata is None:
      raise ValueError("its arrays cannot be opened")
    custom = metadata.custom_metadata
    if _CHECKSUMS not in custom:
      raise ValueError("it has no checksums, as those of earlier versions")
    text, sums = custom[_EXTRA], custom[_CHECKSUMS]
    if custom[_DIGEST] != _digest(text, sums):
      raise ValueError("its metadata differ from what was saved")
    if (was := custom.get(_STEP, step)) != step:
      raise ValueError(f"it was saved as step {was}; rename it")
    return metadata.metadata, json.loads(text), json.loads(sums)

  def _read(self, read: Callable[[], Any], step: int) -> Any:
    """Calls `read`; any exception becomes one error about this step."""
    with _muted():
      try:
        return read()
      except Exception as error:
        # Orbax has no one error for damage, so every kind is caught.
        cause = _first_cause(error)
      # Raised outside the handler, so that unfinished work of the reader is
      # freed here, where its pages of complaints are muted.
      gc.collect()
    raise ValueError(
      f"{self.directory / str(step)} cannot be read ({cause});"
      " files are missing, cut short or not from grpo_jax. Nothing was changed."
      f" {self._way_on(step)}"
    )

  def _way_on(self, step: int) -> str:
    """The advice for continuing without this step."""
    earlier = [other for other in self.steps() if other < step]
    if not earlier:
      return "There is no earlier step; pass another --workdir to start over."
    path = self.directory / str(step)
    return f"Move {path} away to continue from step {earlier[-1]}."

  def _check_sums(
    self, step: int, expected: dict[str, str], actual: dict[str, str]
  ) -> None:
    """Raises unless the arrays are those that were saved, in every bit."""
    differing = [name for name in actual if expected.get(name) != actual[name]]
    if differing:
      more = len(differing) - _SHOWN
      raise ValueError(
        f"{self.directory / str(step)} is damaged: other numbers"
        f" than those that were saved, by their checksums, are in"
        f" {len(differing)} of {len(actual)} arrays:"
        f" {', '.join(differing[:_SHOWN])}"
        f"{f' and {more} more' if more > 0 else ''}. Nothing was changed; doubt"
        f" the disk. {self._way_on(step)}"
      )

  def _check_arrays(
    self, path: files.Path, saved: PyTree, abstract: PyTree, in_part: bool
  ) -> None:
    """Raises unless both trees have the same names, shapes and dtypes.

    In part: raises unless the wanted arrays are there.
    """
    # Compared here because Orbax would cast dtypes without a warning.
    saved_arrays, expected = descriptions(saved), descriptions(abstract)
    if in_part:
      saved_arrays = {
        name: shape for name, shape in saved_arrays.items() if name in expected
      }
    differing = [
      f"{name} is {saved_arrays.get(name, 'absent')} on disk and"
      f" {expected.get(name, 'absent')} in this run"
      for name in sorted(saved_arrays.keys() | expected.keys())
      if saved_arrays.get(name) != expected.get(name)
    ]
    if differing:
      more = len(differing) - _SHOWN
      raise ValueError(
        f"{path} holds another state than this run needs;"
        f" {len(differing)} arrays differ: {'; '.join(differing[:_SHOWN])}"
        f"{f'; and {more} more' if more > 0 else ''}. Nothing was changed."
        " Configure the model, optimizer and algorithm as in the run that"
        " saved it, or pass another --workdir."
      )

  def wait(self) -> None:
    """Returns once every save is on disk; raises OSError if one failed."""
    self._is_writing = False
    if self._open_checkpointer is not None:
      with self._saving():
        self._open_checkpointer.wait()

  def check(self) -> None:
    """Raises OSError if a save has failed by now; does not wait.

    With several processes each raises for its own part.
    """
    if self._is_writing and not self.is_saving():
      self.wait()

  def is_saving(self) -> bool:
    """Says if a save is still being written."""
    checkpointer = self._open_checkpointer
    return checkpointer is not None and checkpointer.is_saving_in_progress()

  @contextlib.contextmanager
  def _saving(self) -> Iterator[None]:
    """Turns an error of a save into one that names the last checkpoint."""
    try:
      yield
      return
    except (ValueError, OSError) as error:
      cause = _first_cause(error)
      # It may be deep in the chain.
      if os.strerror(errno.ENOSPC) in str(error):
        cause = "no space is left on the device"
    # Raised outside the handler, so that unfinished work of threads is freed
    # here, as in `_read`.
    with _muted():
      gc.collect()
    raise OSError(
      f"a checkpoint cannot be written: {cause}."
      f" {describe(self.directory)} Make room for another, and start with the"
      " same command again to continue."
    )

  def close(self) -> None:
    """Waits and releases the threads; the last call."""
    if self._open_checkpointer is None:
      return
    try:
      self.wait()
    finally:
      with _muted():
        with contextlib.suppress(ValueError, OSError):  # Raised by `wait`.
          self._open_checkpointer.close()
        self._open_checkpointer = None


def describe(directory: str | os.PathLike) -> str:
  """A sentence about the last complete step.

  Unlike the methods of `Checkpoints` it may be called by any thread, and by one
  process alone.
  """
  steps = []
  if files.parse(directory).exists():
    steps = step_lib.checkpoint_steps(directory)
  if not steps:
    return f"There is no checkpoint in {directory} yet."
  return f"The last checkpoint in {directory} is step {max(steps)}."


def _digest(*texts: str) -> str:
  return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def is_key(leaf: Any) -> bool:
  """Returns True if an array, or its shape, is of typed PRNG keys."""
  return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _data(leaf: Any) -> Any:
  return jax.random.key_data(leaf) if is_key(leaf) else leaf


def _abstract_data(leaf: Any) -> jax.ShapeDtypeStruct:
  data = jax.eval_shape(_data, leaf)
  sharding = getattr(leaf, "sharding", None)
  if sharding is None:
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  return jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=sharding)


def _like(abstract: Any, data: jax.Array) -> jax.Array:
  if not is_key(abstract):
    return data
  # `key_impl` takes arrays only, so an empty one stands for the shape.
  impl = jax.random.key_impl(jnp.empty((0,), abstract.dtype))
  return jax.random.wrap_key_data(data, impl=impl)


def descriptions(tree: PyTree) -> dict[str, str]:
  """Path of each array -> its dtype and shape."""
  return {
    jax.tree_util.keystr(path, simple=True, separator="/"): (
      f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}"
    )
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
  }


def _first_cause(error: BaseException) -> str:
  """First line of the error that started a chain: the one naming a file."""
  while error.__cause__ is not None:
    error = error.__cause__
  lines = str(error).strip().splitlines() or [""]
  return f"{type(error).__name__}: {lines[0][:200]}"


@contextlib.contextmanager
def _muted():
  """Mutes log lines and complaints of finalizers."""
  level, hook = logging.root.manager.disable, sys.unraisablehook
  logging.disable(logging.CRITICAL)
  sys.unraisablehook = lambda _: None
  try:
    yield
  finally:
    logging.disable(level)
    sys.unraisablehook = hook
