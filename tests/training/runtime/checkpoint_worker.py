"""One of the processes of `checkpoint_processes_test.py`."""

from __future__ import annotations

import argparse
import os
import pathlib
import sys

import jax


def main() -> None:
  """Runs the command of the line, with the other processes."""
  parser = argparse.ArgumentParser()
  parser.add_argument("action", choices=["save", "restore"])
  parser.add_argument("directory", type=pathlib.Path)
  parser.add_argument("coordinator")
  parser.add_argument("num_processes", type=int)
  parser.add_argument("process", type=int)
  parser.add_argument("mesh", type=int, nargs=3)
  arguments = parser.parse_args()
  if arguments.num_processes > 1:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
      arguments.coordinator, arguments.num_processes, arguments.process
    )
  assert jax.device_count() == 8
  # Imported here, because some of what they import asks for devices.
  from grpo_jax.training.runtime import checkpoints
  from tests.training import states

  checkpoints._VISIBLE_SECONDS = 1.0
  shapes = states.small()
  where = states.shardings(shapes, states.make_mesh(tuple(arguments.mesh)))
  store = checkpoints.Checkpoints(arguments.directory, keep=2)
  if arguments.action == "save":
    assert store.latest_step() is None
    for step in (1, 2, 3):
      store.save(step, states.make(shapes, where, seed=step), {"step": step})
      assert store.latest_step() == step
    store.wait()
    assert store.steps() == [2, 3]
  else:
    assert store.latest_step() == 3
    for step in (2, 3):
      state, extra, _ = store.restore(states.placed(shapes, where), step)
      assert extra == {"step": step}
      states.assert_made(state, shapes, where, seed=step)
    # And goes on.
    store.save(4, state, {"step": 4})
    store.wait()
    assert store.latest_step() == 4
  store.close()
  print(f"process {jax.process_index()} of {jax.process_count()} is done")


if __name__ == "__main__":
  try:
    main()
  except ValueError as error:
    print(f"error: {error}", flush=True)
    # The others wait for this process, unless it is gone.
    os._exit(2)
  sys.stdout.flush()
