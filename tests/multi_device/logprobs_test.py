"""Rows over one axis of a mesh, the vocabulary of the head over the other."""

import math
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from grpo_jax.ops import logprobs
from tests.training import tiny

B, T, D, V, K = 4, 6, 3, 512, 5  # No other array has a dimension of V or more.
CHUNK = 3  # Positions.
ROWS, COLUMNS = P("data"), P(None, "tensor")
CHUNK_BYTES = B * CHUNK * V * 4
SHARDINGS = {
  "h": ROWS,
  "kernel": COLUMNS,
  "ref_h": ROWS,
  "ref_kernel": COLUMNS,
  "tokens": ROWS,
  "kept_ids": ROWS,
  "topk_ids": ROWS,
}
OPTIONS = {
  "logp": {},
  "reverse": {"reference": True, "with_entropy": True},
  "mixture": {"reference": True, "reference_beta": 0.5},
  "sum_pi_squared": {"with_sum_pi_squared": True},
  "topk_ids": {"topk_ids": True},
  "kept_ids": {"kept_ids": True, "with_entropy": True},
}


@pytest.fixture(scope="module")
def case():
  rng = np.random.default_rng(0)
  kept = rng.random((B, T, V)).argsort(-1)[..., :K]
  return {
    "h": np.float32(rng.normal(size=(B, T, D))),
    "kernel": np.float32(rng.normal(size=(D, V))),
    "ref_h": np.float32(rng.normal(size=(B, T, D))),
    "ref_kernel": np.float32(rng.normal(size=(D, V))),
    "tokens": np.int32(kept[..., 2]),
    "kept_ids": np.int32(np.where(np.arange(K) == 4, -1, kept)),
    "topk_ids": np.int32(rng.integers(V, size=(B, T, 2))),
  }


@pytest.fixture(scope="module")
def mesh():
  return jax.make_mesh(
    (2, 4), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2
  )


def compiled_on(mesh, function, case):
  """The program with each input where it belongs, and what it gives."""
  arrays = {
    name: jax.device_put(x, NamedSharding(mesh, SHARDINGS[name]))
    for name, x in case.items()
  }
  compiled = jax.jit(function).lower(arrays).compile()
  return compiled.as_text(), compiled(arrays)


def assert_vocabulary_stays_split(text):
  """Asserts that devices exchange less than a chunk's own logits."""
  collectives = re.findall(
    r"= (.*) (?:all-gather|all-to-all|all-reduce|collective-permute)"
    r"(?:-start)?\(",
    text,
  )
  assert collectives  # Sums over the vocabulary, at least.
  for shapes in collectives:
    for dimensions in re.findall(r"\[([\d,]+)\]", shapes):
      sizes = [int(n) for n in dimensions.split(",")]
      assert max(sizes) < V, shapes
      assert math.prod(sizes) < (B // 2) * CHUNK * (V // 4), shapes


def assert_same(actual, expected):
  chex.assert_trees_all_close(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", tiny.each(OPTIONS, ("reverse",)))
def test_values_and_gradients_are_those_of_one_device(name, case, mesh):
  options = OPTIONS[name]

  def gradients(case):
    def loss(h, kernel):
      arrays = {
        "kept_ids": case["kept_ids"],
        "topk_ids": case["topk_ids"],
        "reference": (lambda h: h @ case["ref_kernel"], case["ref_h"]),
      }
      arrays = {key: x for key, x in arrays.items() if key in options}
      outputs = logprobs.token_outputs(
        lambda h: h @ kernel,
        h,
        case["tokens"],
        temperature=0.7,
        chunk_bytes=CHUNK_BYTES,
        **options | arrays,
      )
      weights = jnp.linspace(0.5, 1.0, T)
      return sum(
        (x * weights.reshape(1, T, *(1,) * (x.ndim - 2))).sum()
        for x in jax.tree.leaves(outputs)
      ), outputs

    return jax.grad(loss, (0, 1), has_aux=True)(case["h"], case["kernel"])

  one = jax.jit(gradients)(case)
  text, eight = compiled_on(mesh, gradients, case)
  assert_same(eight, one)
  assert abs(one[0][1]).max() > 0.1
  (_, d_kernel), outputs = eight
  assert d_kernel.sharding.shard_shape(d_kernel.shape) == (D, V // 4)
  assert outputs.logp.sharding.shard_shape((B, T))[0] == B // 2
  assert_vocabulary_stays_split(text)


@pytest.mark.slow
def test_topk_of_a_split_vocabulary(case, mesh):
  def topk(case):
    return logprobs.reference_topk(
      lambda h: h @ case["ref_kernel"],
      case["ref_h"],
      K,
      temperature=0.7,
      chunk_bytes=CHUNK_BYTES,
    )

  ids, logp = jax.jit(topk)(case)
  text, (other_ids, other_logp) = compiled_on(mesh, topk, case)
  np.testing.assert_array_equal(other_ids, ids)
  assert_same(other_logp, logp)
  assert_vocabulary_stays_split(text)
