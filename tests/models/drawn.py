"""Parameters of a policy that NumPy draws.

To compile what a policy draws by itself takes a second, and for each policy
anew.
"""

import jax
import numpy as np


def params(policy, seed=0, spread=0.4, of_vectors=0.3, norms=1.0):
  """Draws random parameters in which every weight matters.

  Args:
    policy: Policy with the parameters.
    seed: Seed of the draws.
    spread: Deviation of kernels and embeddings, whose mean is 0.
    of_vectors: Deviation of the scales of norms and of biases.
    norms: Mean of the scales of norms.
  """
  rng = np.random.default_rng(seed)

  def draw(path, leaf):
    is_scale = path[-1].key == "scale"
    if leaf.dtype == "int32":  # A table of experts.
      return np.argsort(rng.normal(size=leaf.shape)).astype(leaf.dtype)
    deviation = of_vectors if is_scale or path[-1].key == "bias" else spread
    x = norms * is_scale + deviation * rng.normal(size=leaf.shape)
    return x.astype(leaf.dtype)

  shapes = jax.eval_shape(policy.init, jax.random.key(0))
  return jax.device_put(jax.tree_util.tree_map_with_path(draw, shapes))
