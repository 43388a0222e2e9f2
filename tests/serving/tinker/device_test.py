"""Passes, steps and files of adapters, without a server."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.models.policies import lora
from grpo_jax.serving import requests
from grpo_jax.serving.tinker import device as device_lib
from grpo_jax.serving.tinker import losses, store, wire
from tests.serving.tinker import door

ADAM = {
  "learning_rate": 0.1,
  "beta1": 0.8,
  "beta2": 0.9,
  "eps": 1e-6,
  "weight_decay": 0.2,
  "grad_clip_norm": 1.5,
}


def test_a_step_is_that_of_adamw_with_a_clipped_gradient():
  rng = np.random.default_rng(0)
  p = {"a": rng.normal(size=(2, 3)), "b": rng.normal(size=4)}
  m = {k: np.zeros_like(x) for k, x in p.items()}
  v = {k: np.zeros_like(x) for k, x in p.items()}
  trained = jax.tree.map(jnp.float32, p)
  moments = device_lib._moments(trained)
  for step in range(1, 4):
    g = {k: rng.normal(size=x.shape) * step / 3 for k, x in p.items()}
    trained, moments, norm = device_lib._step(
      trained, moments, jax.tree.map(jnp.float32, g), ADAM
    )
    expected = np.sqrt(sum((x**2).sum() for x in g.values()))
    np.testing.assert_allclose(norm, expected, rtol=1e-5)
    factor = min(1, 1.5 / expected)
    for k in p:
      m[k] = 0.8 * m[k] + 0.2 * factor * g[k]
      v[k] = 0.9 * v[k] + 0.1 * (factor * g[k]) ** 2
      p[k] -= 0.1 * 0.2 * p[k]
      root = np.sqrt(v[k] / (1 - 0.9**step)) + 1e-6
      p[k] -= 0.1 * m[k] / (1 - 0.8**step) / root
      np.testing.assert_allclose(trained[k], p[k], rtol=1e-5)


def test_a_step_with_an_infinite_gradient_changes_nothing():
  trained = {"a": jnp.ones(3)}
  before = device_lib._moments(trained)
  new, after, norm = device_lib._step(
    trained, before, {"a": jnp.array([1.0, jnp.nan, 0.0])}, ADAM
  )
  assert not np.isfinite(norm)
  jax.tree.map(np.testing.assert_array_equal, (new, after), (trained, before))


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
  return door.loaded_in(tmp_path_factory.mktemp("loaded"))


@pytest.fixture(scope="module")
def device(loaded):
  return door.device_of(loaded)


@pytest.fixture
def adapters(device):
  return adapted(device, 3)


def adapted(device, seed):
  """Adapters that change something: B is 0 in fresh ones."""
  made = device.new_adapters(device.config(4, True, True), seed)
  key = jax.random.key(seed)
  made.trained = jax.tree.map(
    lambda x: x + jax.random.normal(key, x.shape) / 8, made.trained
  )
  return made


def rows_of(sizes):
  rng = np.random.default_rng(0)
  rows = []
  for n in sizes:
    ids = rng.integers(3, 90, n + 1).astype(np.int32)
    inputs = {"target_tokens": ids[1:].astype(np.int64)}
    inputs["weights"] = rng.uniform(0, 1, n).astype(np.float32)
    rows.append(wire.Row(ids[:-1], inputs))
  return rows


CE = losses.named("cross_entropy", {})


def run(device, adapters, rows):
  """Runs rows of one client, with gradients."""
  (found,) = device.run([device_lib.ClientRows(adapters, rows, CE, False)])
  return found


def distance(tree, other):
  """The largest difference of two gradients, in norms of the first."""
  norm = np.sqrt(sum((np.asarray(x) ** 2).sum() for x in jax.tree.leaves(tree)))
  pairs = zip(*map(jax.tree.leaves, (tree, other)), strict=True)
  return max(np.abs(x - y).max() for x, y in pairs) / norm


@pytest.mark.slow
def test_passes_are_those_of_the_policy_without_padding(
  loaded, device, adapters
):
  """Log-probs and gradient against whole rows and `log_softmax`."""
  rows = rows_of([5, 1, 9])
  policy = lora.lora_policy(loaded.policy, adapters.config)
  frozen = {**loaded.params["frozen"], "base": loaded.params["trained"]}

  # Each prefix of a row is a prompt here, padded on the left.
  prefixes = [row.ids[:n] for row in rows for n in range(1, len(row.ids) + 1)]
  ids = np.stack([np.pad(x, (9 - len(x), 0)) for x in prefixes])
  mask = np.stack([np.arange(9) >= 9 - len(x) for x in prefixes])
  targets = np.concatenate([row.inputs["target_tokens"] for row in rows])

  def logps(trained):
    params = {"trained": trained, "frozen": frozen}
    h, *_ = policy.prefill(params, ids, mask)
    table = jax.nn.log_softmax(policy.head(params, h))
    return table[np.arange(len(targets)), targets]

  def total(trained):
    weights = np.concatenate([row.inputs["weights"] for row in rows])
    return -(logps(trained) * weights).sum()

  with jax.set_mesh(loaded.mesh):
    expected = jax.jit(logps)(adapters.trained)
    loss, gradient = jax.jit(jax.value_and_grad(total))(adapters.trained)
    _, found, value = run(device, adapters, rows)
  np.testing.assert_allclose(np.concatenate(found), expected, atol=3e-6)
  np.testing.assert_allclose(value, loss, rtol=1e-5)
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-5),
    adapters.gradient,
    gradient,
  )


@pytest.mark.slow
def test_two_halves_are_one(loaded, device, adapters):
  """To the bit if no batch is cut, else to the round-off of sums."""
  rows = rows_of([7] * 8)
  found = {}
  with jax.set_mesh(loaded.mesh):
    for cut in (8, 4, 3):
      adapters.gradient = None
      run(device, adapters, rows[:cut])
      if cut < 8:
        run(device, adapters, rows[cut:])
      found[cut] = jax.tree.map(np.asarray, adapters.gradient)
  jax.tree.map(np.testing.assert_array_equal, found[4], found[8])
  assert distance(found[8], found[3]) < 1e-6


def test_rounds_are_of_one_length_and_of_a_power_of_two():
  lengths = [[64, 64], [64, 128], [64], [128]]
  assert list(device_lib.rounds(lengths, 4)) == [
    [(0, 0), (1, 0)],
    [(0, 1), (2, 0)],
    [(1, 1), (3, 0)],
  ]
  assert list(device_lib.rounds([[64]] * 5, 4)) == [
    [(0, 0), (1, 0), (2, 0), (3, 0)],
    [(4, 0)],
  ]
  assert [len(x) for x in device_lib.rounds([[64]] * 4, 3)] == [2, 2]
  assert [len(x) for x in device_lib.rounds([[64]] * 3, 1)] == [1, 1, 1]


@pytest.mark.slow
def test_clients_are_run_together_as_alone(loaded, device):
  """To round-off: log-probs, losses, and gradients over two requests."""
  clients = [adapted(device, seed) for seed in (1, 2)]
  # The second one has a batch more, and both run one batch together.
  rows = [rows_of([7, 3, 5]), rows_of([9, 2, 4, 8, 6, 1])]
  alone = []
  with jax.set_mesh(loaded.mesh):
    for client, own in zip(clients, rows, strict=True):
      _, logps, total = run(device, client, own)
      run(device, client, own[:2])
      alone.append((logps, total, client.gradient))
      client.gradient = None
    for first in (True, False):
      asked = [
        device_lib.ClientRows(client, own if first else own[:2], CE, False)
        for client, own in zip(clients, rows, strict=True)
      ]
      for i, logps, total in device.run(asked):
        if first:
          np.testing.assert_allclose(
            np.concatenate(logps), np.concatenate(alone[i][0]), atol=3e-6
          )
          np.testing.assert_allclose(total, alone[i][1], rtol=1e-6)
  for client, (*_, expected) in zip(clients, alone, strict=True):
    assert distance(client.gradient, expected) < 1e-6
  assert distance(alone[0][2], alone[1][2]) > 0.1


@pytest.mark.slow
def test_a_file_is_refused_unless_it_fits(device, loaded, adapters, tmp_path):
  files = store.Store(tmp_path)
  path = files.path("m", "weights", "a")
  with jax.set_mesh(loaded.mesh):
    about, tree = device.saved(adapters, with_moments=True)
    files.write(path, about, tree)
    again = device.loaded(files, path, with_moments=True)
    jax.tree.map(
      np.testing.assert_array_equal,
      (again.trained, again.moments),
      (adapters.trained, adapters.moments),
    )
    sampler = files.path("m", "sampler_weights", "b")
    files.write(sampler, *device.saved(adapters, with_moments=False))
    with pytest.raises(requests.BadRequest, match=r"moments.*absent"):
      device.loaded(files, sampler, with_moments=True)
    files.write(path, about | {"base": "another"}, tree)
    with pytest.raises(requests.BadRequest, match="another base"):
      device.loaded(files, path, with_moments=False)
  content = files.file(sampler).read_bytes()
  for damaged in (content[:200], content.replace(b"\x00", b"\x01"), b""):
    files.file(sampler).write_bytes(damaged)
    with pytest.raises(requests.BadRequest, match="damaged"):
      files.read(sampler, {"trained": adapters.trained})
