"""Saving, restoring, and refusing what does not fit."""

import errno
import hashlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from orbax.checkpoint import checkpoint_manager

from grpo_jax.training.runtime import checkpoints
from grpo_jax.types import ModelState, TrainState


def make_state(width: int = 4, seed: int = 0) -> TrainState:
  keys = jax.random.split(jax.random.key(seed), 2)
  trained = {
    "w": jax.random.normal(keys[0], (3, width)),
    "b": jax.random.normal(keys[1], (width,), jnp.bfloat16),
  }
  return TrainState(
    step=jnp.int32(seed),
    phase=jnp.int32(1),
    phase_step=jnp.int32(7),
    key=jax.random.key(seed),
    models={
      "policy": ModelState(
        {"trained": trained, "frozen": {}}, optax.adamw(1e-3).init(trained)
      )
    },
    algorithm_state={"baseline": jnp.float32(-0.0)},
  )


def as_bytes(tree) -> list[bytes]:
  def data(leaf):
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
      leaf = jax.random.key_data(leaf)
    return np.asarray(leaf).tobytes()

  return [data(leaf) for leaf in jax.tree.leaves(tree)]


def assert_same(actual, expected) -> None:
  assert jax.tree.structure(actual) == jax.tree.structure(expected)
  for got, wanted in zip(
    jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True
  ):
    assert got.dtype == wanted.dtype
  assert as_bytes(actual) == as_bytes(expected)


def digest(directory: pathlib.Path) -> dict[str, str]:
  return {
    str(path.relative_to(directory)): (
      hashlib.sha256(path.read_bytes()).hexdigest()
      if path.is_file()
      else "directory"
    )
    for path in sorted(directory.rglob("*"))
  }


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
  """A directory with steps 1 and 2."""
  directory = tmp_path_factory.mktemp("saved") / "checkpoints"
  store = checkpoints.Checkpoints(directory, keep=3)
  for step in (1, 2):
    store.save(step, make_state(seed=step), {"step": step})
  store.close()
  return directory


@pytest.fixture
def copy(saved, tmp_path):
  return shutil.copytree(saved, tmp_path / "checkpoints")


def test_restored_state_is_identical_and_extra_survives(tmp_path):
  extra = {"iterator": {"next": 2**53 + 1, "text": 'é\n"'}, "f": 0.1, "n": None}
  store = checkpoints.Checkpoints(tmp_path / "c", keep=2)
  store.save(5, make_state(seed=5), extra)
  store.close()
  store = checkpoints.Checkpoints(tmp_path / "c", keep=2)
  state, restored_extra, step = store.restore(make_state(seed=0))
  store.close()
  assert step == 5
  assert restored_extra == extra
  assert_same(state, make_state(seed=5))
  # A typed key, usable as such.
  assert jnp.array_equal(
    jax.random.bits(state.key, (3,)), jax.random.bits(jax.random.key(5), (3,))
  )


def test_extra_is_read_before_the_shapes_are_known(copy):
  store = checkpoints.Checkpoints(copy, keep=2)
  assert store.extra() == {"step": 2}
  assert store.extra(1) == {"step": 1}
  with pytest.raises(FileNotFoundError, match="no step 3"):
    store.extra(3)
  store.save(3, make_state(), {"step": 3})
  assert store.extra() == {"step": 3}
  store.close()


def test_restore_from_shapes_alone(copy):
  store = checkpoints.Checkpoints(copy, keep=2)
  state, _, _ = store.restore(jax.eval_shape(make_state), step=1)
  store.close()
  assert_same(state, make_state(seed=1))


@pytest.mark.slow
def test_arrays_may_be_donated_and_deleted_after_save(tmp_path):
  overwrite = jax.jit(lambda x: x * 0 + 7, donate_argnums=0)
  store = checkpoints.Checkpoints(tmp_path / "c", keep=5)
  size = 1 << 20
  for step in range(3):
    donated = jnp.arange(size, dtype=jnp.float32) + step
    deleted = jnp.arange(size, dtype=jnp.float32) - step
    abstract = {"donated": donated, "deleted": deleted, "empty": None}
    abstract = jax.eval_shape(lambda tree: tree, abstract)
    store.save(
      step, {"donated": donated, "deleted": deleted, "empty": None}, {}
    )
    jax.block_until_ready(overwrite(overwrite(donated)))
    deleted.delete()
    del donated, deleted
    jax.block_until_ready([jnp.full((size,), -1.0) for _ in range(4)])
  for step in range(3):
    state, _, _ = store.restore(abstract, step=step)
    expected = np.arange(size, dtype=np.float32)
    np.testing.assert_array_equal(state["donated"], expected + step)
    np.testing.assert_array_equal(state["deleted"], expected - step)
  store.close()


@pytest.mark.slow
def test_keeps_the_latest(tmp_path):
  store = checkpoints.Checkpoints(tmp_path / "c", keep=2)
  state = {"x": jnp.ones((2,))}
  for step in range(1, 8):
    store.save(step, state, {})
  store.wait()
  assert store.steps() == [6, 7]
  store.close()
  assert checkpoints.Checkpoints(tmp_path / "c", keep=2).steps() == [6, 7]


def test_saving_a_step_again_does_nothing(copy):
  store = checkpoints.Checkpoints(copy, keep=3)
  store.restore(make_state())
  before = digest(copy)
  store.save(2, make_state(seed=9), {})
  store.wait()
  assert digest(copy) == before
  store.save(3, make_state(seed=3), {})
  store.save(3, make_state(seed=9), {})
  state, _, _ = store.restore(make_state())
  store.close()
  assert_same(state, make_state(seed=3))


def test_a_new_run_does_not_write_among_the_steps_of_another(copy):
  before = digest(copy)
  store = checkpoints.Checkpoints(copy, keep=3)
  with pytest.raises(ValueError, match=r"already holds step 2"):
    store.save(1, make_state(), {})
  store.close()
  assert digest(copy) == before


def test_extra_that_is_not_json_is_refused(tmp_path):
  store = checkpoints.Checkpoints(tmp_path / "c", keep=1)
  with pytest.raises(ValueError, match="extra is not JSON"):
    store.save(1, make_state(), {"bytes": b"x"})
  assert not (tmp_path / "c").exists()


def test_empty_or_missing_directory_has_no_steps(tmp_path):
  for directory in (tmp_path, tmp_path / "missing"):
    store = checkpoints.Checkpoints(directory, keep=1)
    assert store.latest_step() is None
    with pytest.raises(FileNotFoundError, match=str(directory)):
      store.restore(make_state())
    store.close()
  assert not (tmp_path / "missing").exists()


def test_missing_step_names_those_that_exist(copy):
  store = checkpoints.Checkpoints(copy, keep=3)
  with pytest.raises(FileNotFoundError, match=r"no step 7.*\[1, 2\]"):
    store.restore(make_state(), step=7)
  store.close()


def test_keep_below_one_is_refused(tmp_path):
  with pytest.raises(ValueError, match="at least 1"):
    checkpoints.Checkpoints(tmp_path, keep=0)


def _without(*names):
  def change(state: TrainState) -> TrainState:
    trained = dict(state.params["policy"]["trained"])
    for name in names:
      del trained[name]
    return state.with_params(policy={"trained": trained, "frozen": {}})

  return change


@pytest.mark.slow
@pytest.mark.parametrize(
  ("abstract", "message"),
  [
    (
      lambda: make_state(width=5),
      r"b is bfloat16\[4\] on disk and bfloat16\[5\]",
    ),
    (
      lambda: _without("b")(make_state()),
      r"trained/b is .* and absent in this",
    ),
    (
      lambda: jax.tree.map(
        lambda x: x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x,
        make_state(),
      ),
      r"b is bfloat16\[4\] on disk and float32\[4\]",
    ),
    (
      lambda: {"x": jnp.ones((2,))},
      r"13 arrays differ: algorithm_state/baseline",
    ),
  ],
)
def test_state_of_another_shape_is_refused(copy, abstract, message):
  before = digest(copy)
  store = checkpoints.Checkpoints(copy, keep=3)
  with pytest.raises(ValueError, match=message) as caught:
    store.restore(abstract())
  store.close()
  assert str(copy / "2") in str(caught.value)
  assert "--workdir" in str(caught.value)
  assert digest(copy) == before


def _biggest(directory: pathlib.Path) -> pathlib.Path:
  return max(directory.glob("state/**/d/*"), key=lambda p: p.stat().st_size)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("find", "how"),
  [
    (_biggest, "cut"),
    (lambda step: step / "state" / "manifest.ocdbt", "missing"),
    *(
      pytest.param(find, how, marks=pytest.mark.slow)
      for find, how in (
        (_biggest, "missing"),
        (lambda step: step / "state" / "manifest.ocdbt", "cut"),
        (lambda step: step / "state" / "_METADATA", "missing"),
        (lambda step: step / "state" / "_METADATA", "cut"),
        (lambda step: step / "_CHECKPOINT_METADATA", "missing"),
        (lambda step: step / "_CHECKPOINT_METADATA", "cut"),
      )
    ),
  ],
)
def test_damaged_checkpoint_is_refused(copy, capfd, find, how):
  path = find(copy / "2")
  if how == "missing":
    path.unlink()
  else:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
  before = digest(copy)
  store = checkpoints.Checkpoints(copy, keep=3)
  with pytest.raises(ValueError, match="cannot be read") as caught:
    store.restore(make_state())
  assert str(copy / "2") in str(caught.value)
  assert "continue from step 1" in str(caught.value)
  assert capfd.readouterr().err == ""  # The message is all the user sees.
  # The advice works.
  state, extra, _ = store.restore(make_state(), step=1)
  assert_same(state, make_state(seed=1))
  assert extra == {"step": 1}
  store.close()
  assert digest(copy) == before


def _flip(path: pathlib.Path, byte: int, bit: int) -> None:
  data = bytearray(path.read_bytes())
  data[byte] ^= 1 << bit
  path.write_bytes(data)


def test_flipped_bits_are_never_restored(tmp_path):
  state = {
    "w": jax.random.normal(jax.random.key(0), (64, 64)),
    "b": jnp.zeros((3,)),
  }
  store = checkpoints.Checkpoints(tmp_path / "c", keep=3)
  for step in (1, 2):
    store.save(step, state, {})
  store.wait()
  path = _biggest(tmp_path / "c/2")
  content = path.read_bytes()
  messages = []
  for byte in range(5, len(content), len(content) // 12):
    _flip(path, byte, byte % 8)
    try:
      assert_same(store.restore(state, step=2)[0], state)
    except ValueError as error:
      messages.append(str(error))
    path.write_bytes(content)
  store.restore(state, step=2)
  store.close()
  damaged = [text for text in messages if "2 is damaged" in text]
  assert len(damaged) > 8
  for text in damaged:
    assert "in 1 of 2 arrays: w. Nothing was changed" in text
    assert f"Move {tmp_path / 'c/2'} away to continue from step 1." in text


@pytest.mark.slow
def test_a_changed_digit_beside_the_arrays_is_refused(copy):
  path = copy / "2" / "_CHECKPOINT_METADATA"
  text = path.read_text()
  assert text.count('{\\"step\\": 2}') == 1
  path.write_text(text.replace('{\\"step\\": 2}', '{\\"step\\": 6}'))
  store = checkpoints.Checkpoints(copy, keep=3)
  with pytest.raises(ValueError, match="metadata differ from what was saved"):
    store.extra()
  store.close()


@pytest.mark.slow
def test_a_folder_that_was_renamed_is_no_other_step(copy):
  (copy / "2").rename(copy / "7777")
  store = checkpoints.Checkpoints(copy, keep=3)
  message = r"7777 cannot be read \(ValueError: it was saved as step 2; rename"
  with pytest.raises(ValueError, match=message):
    store.extra()
  with pytest.raises(ValueError, match=message):
    store.restore(make_state())
  store.close()


def test_unreadable_list_of_steps_is_refused(copy):
  metadata = copy / "2" / "_CHECKPOINT_METADATA"
  metadata.write_text(metadata.read_text().replace("item", "itum"))
  before = digest(copy)
  with pytest.raises(ValueError, match="cannot be listed") as caught:
    checkpoints.Checkpoints(copy, keep=3).latest_step()
  assert str(copy) in str(caught.value)
  assert digest(copy) == before


def test_directory_of_someone_else_is_refused(tmp_path, saved):
  foreign = tmp_path / "foreign"
  shutil.copytree(saved / "1", foreign / "100")
  (foreign / "notes.txt").write_text("mine")
  before = digest(foreign)
  with pytest.raises(ValueError, match=r"100, notes\.txt .*--workdir"):
    checkpoints.Checkpoints(foreign, keep=1)
  assert digest(foreign) == before
  with pytest.raises(ValueError, match="is a file"):
    checkpoints.Checkpoints(foreign / "notes.txt", keep=1)


_KILLED = """
import os, signal, sys
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
from grpo_jax.training.runtime import checkpoints
mesh = jax.make_mesh(
    (4,), ("fsdp",), axis_types=(jax.sharding.AxisType.Auto,))
rows, columns = (NamedSharding(mesh, P(*axes)) for axes in (
    ("fsdp", None), (None, "fsdp")))
x = jax.device_put(jnp.arange(1 << 23).reshape(1 << 11, -1), rows)
store = checkpoints.Checkpoints(sys.argv[1], keep=3)
store.save(1, {"x": x}, {"step": 1})
abstract = jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=columns)
state, _, _ = store.restore({"x": abstract})
assert state["x"].sharding == columns
assert (state["x"] == x).all()
store.save(2, {"x": x * 2}, {"step": 2})
os.kill(os.getpid(), signal.SIGKILL)  # Step 2 is still being written.
"""


@pytest.mark.slow
def test_kill_while_saving_leaves_the_previous_step(tmp_path):
  directory = tmp_path / "c"
  process = subprocess.run(
    [sys.executable, "-c", _KILLED, str(directory)],
    env={**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4"},
    capture_output=True,
    check=False,
  )
  assert process.returncode == -signal.SIGKILL, process.stderr.decode()
  assert process.stderr.decode() == ""  # And no chatter on the console.
  unfinished = [
    path.name for path in directory.iterdir() if path.name.startswith("2")
  ]
  assert unfinished
  assert "2" not in unfinished  # Otherwise the kill came too late to test.
  store = checkpoints.Checkpoints(directory, keep=3)
  assert store.latest_step() == 1
  expected = np.arange(1 << 23).reshape(1 << 11, -1)
  # Saved from four devices, restored on one.
  abstract = {"x": jax.ShapeDtypeStruct(expected.shape, jnp.int32)}
  state, extra, _ = store.restore(abstract)
  assert extra == {"step": 1}
  np.testing.assert_array_equal(state["x"], expected)
  store.save(2, {"x": state["x"] * 3}, {"step": 2})
  store.close()
  store = checkpoints.Checkpoints(directory, keep=3)
  state, _, step = store.restore(abstract)
  store.close()
  assert step == 2
  np.testing.assert_array_equal(state["x"], expected * 3)


_NO_ROOM = """
import resource, sys
import jax
from grpo_jax.training.runtime import checkpoints
store = checkpoints.Checkpoints(sys.argv[1], keep=3)
small = {"x": jax.random.normal(jax.random.key(0), (8,))}
store.save(1, small, {})
store.wait()
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))  # bytes of a file
store.save(2, {"x": jax.random.normal(jax.random.key(0), (1 << 16,))}, {})
try:
  store.wait()
except OSError as error:
  print(error)
store.close()
"""


@pytest.mark.slow
def test_a_checkpoint_without_room_is_one_message(tmp_path):
  process = subprocess.run(
    [sys.executable, "-c", _NO_ROOM, str(tmp_path / "c")],
    # Its cache would have no room either, and say so.
    env={**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false"},
    capture_output=True,
    text=True,
    check=True,
  )
  assert process.stderr == ""
  message = process.stdout
  assert message.count("a checkpoint cannot be written: ") == 1
  assert f"The last checkpoint in {tmp_path / 'c'} is step 1." in message
  assert "Make room for another" in message


@pytest.mark.slow
def test_a_full_disk_is_called_so(tmp_path, monkeypatch):
  store = checkpoints.Checkpoints(tmp_path / "c", keep=3)
  store.save(1, make_state(), {})
  store.wait()
  deep = ValueError("RESOURCE_EXHAUSTED: " + "x" * 300 + os.strerror(28))
  monkeypatch.setattr(
    store._open_checkpointer, "wait", lambda: (_ for _ in ()).throw(deep)
  )
  with pytest.raises(OSError, match="no space is left on the device"):
    store.wait()


def _cannot_finish(manager, step):
  raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.slow
def test_a_save_that_fails_later_is_told_before_the_next_one(
  tmp_path, monkeypatch
):
  store = checkpoints.Checkpoints(tmp_path / "c", keep=3)
  store.check()
  store.save(1, make_state(), {})
  store.wait()
  store.check()
  monkeypatch.setattr(
    checkpoint_manager.CheckpointManager, "_finalize_checkpoint", _cannot_finish
  )
  store.save(2, make_state(), {})
  while store.is_saving():
    time.sleep(0.01)
  with pytest.raises(OSError, match="cannot be written: no space"):
    store.check()
  store.check()  # It is said once.
  store.close()
