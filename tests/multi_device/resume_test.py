"""A run that was stopped continues on another mesh."""

import json
import signal

import jax
import numpy as np
import orbax.checkpoint.experimental.v1 as ocp
import pytest

from grpo_jax import api
from grpo_jax.training import loop
from grpo_jax.training.runtime import checkpoints, log, sharding
from tests.experiments import tiny_config


def _config(sizes: tuple[int, int, int]):
  config = tiny_config.get_config("grpo")
  config.phases = ("sft",)
  config.mesh.data, config.mesh.fsdp, config.mesh.tensor = sizes
  config.model.num_kv_heads = 2
  return config


def _losses(workdir) -> dict[int, float]:
  lines = log.read_lines(workdir / log.METRICS)
  assert len({line["step"] for line in lines}) == len(lines)
  return {line["step"]: line["loss"] for line in lines}


@pytest.mark.slow
def test_run_continues_on_another_mesh(tmp_path, monkeypatch):
  before, after = (2, 2, 2), (1, 4, 2)
  loop.train(_config(before), tmp_path / "whole")

  workdir = tmp_path / "moved"
  write = log.MetricsLog.write

  def stop_at_four(self, step, *rest):
    if step == 4:
      signal.raise_signal(signal.SIGTERM)
    write(self, step, *rest)

  with monkeypatch.context() as patch:
    patch.setattr(log.MetricsLog, "write", stop_at_four)
    result = loop.train(_config(before), workdir)
  assert result.preempted
  assert 4 <= result.step < 10
  folder = workdir / "checkpoints"
  with ocp.training.Checkpointer(folder) as store:
    saved = store.load(result.step, store.metadata(result.step).metadata)
  saved = jax.tree.map(np.asarray, saved)

  restored = []
  restore = checkpoints.Checkpoints.restore

  def keep(self, *arguments):
    found = restore(self, *arguments)
    restored.append(
      [
        jax.device_get(
          jax.random.key_data(x)
          if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
          else x
        )
        for x in jax.tree.leaves(found[0])
      ]
    )
    # Placed where the rules of the new mesh have it.
    state = found[0]
    (mesh,) = {x.sharding.mesh for x in jax.tree.leaves(state.params)}
    assert mesh.size == np.prod(after)
    wanted = jax.tree.leaves(sharding.of_state(mesh, state))
    for leaf, place in zip(jax.tree.leaves(state), wanted, strict=True):
      assert leaf.sharding.is_equivalent_to(place, leaf.ndim)
    return found

  monkeypatch.setattr(checkpoints.Checkpoints, "restore", keep)
  assert loop.train(_config(after), workdir).step == 10
  monkeypatch.undo()
  (arrays,) = restored
  assert sorted(x.tobytes() for x in arrays) == sorted(
    x.tobytes() for x in jax.tree.leaves(saved)
  )
  whole, moved = _losses(tmp_path / "whole"), _losses(workdir)
  assert list(moved) == list(whole) == list(range(1, 11))
  first = result.step + 1
  assert all(moved[step] == whole[step] for step in range(1, first))
  np.testing.assert_allclose(
    [moved[step] for step in range(first, 11)],
    [whole[step] for step in range(first, 11)],
    rtol=1e-4,
  )

  # Other programs read it with the devices that there are.
  path = workdir / "config.json"
  config = json.loads(path.read_text())
  assert tuple(config["mesh"][k] for k in ("data", "fsdp", "tensor")) == after
  config["mesh"]["fsdp"] = 64
  path.write_text(json.dumps(config))
  with api.load(workdir) as loaded:
    assert loaded.step == 10
    assert len(jax.tree.leaves(loaded.params)[0].sharding.device_set) == 8
