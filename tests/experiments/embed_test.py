"""Tests of the embeddings of prompts, and of the file of their clusters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax import api
from grpo_jax.data import clusters
from grpo_jax.training.evaluation import embeddings
from tests.experiments import command

pytestmark = pytest.mark.slow

NUM_PROMPTS = 7


@pytest.fixture(scope="module")
def run(finished):
  assert finished.status == 0, finished.err
  with api.load(finished.cwd / "run") as found:
    yield found


def test_embeddings_and_losses_are_those_of_single_prompts(run):
  loaded = run.loaded
  records = [loaded.problem.train[i] for i in range(NUM_PROMPTS)]
  sizes = {len(record["prompt"]) for record in records}
  assert len(sizes) > 1
  found = embeddings.measure(loaded, records, batch_size=4)
  assert found.embeddings.shape[0] == len(found.losses) == NUM_PROMPTS
  again = embeddings.measure(loaded, records[::-1])
  np.testing.assert_allclose(again.losses[::-1], found.losses, atol=1e-5)
  most = max(sizes)
  prefill = jax.jit(loaded.policy.prefill)
  exists = jnp.tril(jnp.ones((most, most), bool))[:, ::-1]  # Of n + 1 tokens.
  for record, embedding, loss in zip(records[:2], *found, strict=False):
    prompt = jnp.asarray(record["prompt"])[None]
    size = prompt.shape[1]
    # The beginnings of the prompt, left-padded: each has a last state.
    places = jnp.arange(most) - (most - 1) + jnp.arange(most)[:, None]
    beginnings = prompt[0][jnp.clip(places, 0, size - 1)]
    states = prefill(loaded.params, beginnings, exists)[0][:size]
    np.testing.assert_allclose(
      np.mean(states, axis=0), embedding, rtol=1e-4, atol=1e-5
    )
    tokens = jnp.asarray(record["completion"])
    assert tokens[-1] in loaded.problem.tokenizer.end_ids
    h, _ = loaded.policy.hidden(
      loaded.params,
      prompt,
      jnp.ones(prompt.shape, bool),
      tokens[None],
      jnp.ones((1, len(tokens)), bool),
      jnp.zeros(1, jnp.int32),
    )
    logits = loaded.policy.head(loaded.params, h)[0].astype(jnp.float32)
    logp = jax.nn.log_softmax(logits)[jnp.arange(len(tokens)), tokens]
    np.testing.assert_allclose(-logp.mean(), loss, rtol=1e-4)


def test_the_command_writes_what_a_schedule_reads(run, finished):
  sizes = "--num_clusters=3", "--least=2", "--num_prompts=12"
  arguments = "embed", "--workdir=run", "--out=clusters.npz"
  status, out, err = command.run(*arguments, *sizes, cwd=finished.cwd)
  assert status == 0, err
  assert "12 prompts in" in out
  records = [run.loaded.problem.train[i] for i in range(12)]
  known = clusters.read(finished.cwd / "clusters.npz", records, "x")
  measured = embeddings.measure(run.loaded, records)
  np.testing.assert_allclose(known.losses, measured.losses, rtol=1e-4)
  assert np.bincount(known.clusters).min() >= 2
  status, _, err = command.run(*arguments, cwd=finished.cwd)
  assert status == 2
  assert "set --num_prompts" in " ".join(err.split())
