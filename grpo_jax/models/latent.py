"""Multi-head latent attention: one vector of a token for keys and values.

`H` query heads; of a token the cache holds `N` channels c, which its values and
the `K − turned` channels of its keys without positions are made of, and the
`turned` channels of its keys that positions have turned, the same for all
heads:

    k_h = [U_h c; t],    v_h = V_h c,    score = q_h · k_h

Two forms of the same sum:

- Whole sequences are attended after keys and values of all heads are made.
- A decode step reads [c; t] alone: U_h moves to the query, V_h behind the sum,

      q_h · k_h = [U_hᵀ q_h; q_turned] · [c; t],
      Σ_m w_m v_hm = V_h Σ_m w_m c_m,

  which is grouped-query attention of H queries to a single head of N + turned
  channels, whose first N are the values too. So the cache is that of
  `attention.cached` with one head, and without values of its own.

DeepSeek-V3 (H = 128, K = 192, values of 128, N = 512, turned 64) so holds 576
numbers for a token of a layer, and not 128 · (192 + 128) = 40960.

Source: DeepSeek-AI, "DeepSeek-V2", arXiv:2405.04434, Section 2.1 and
Appendix C.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from grpo_jax.models.architecture import TransformerConfig

# Of the norms of latent vectors, whatever the model's: no config.json has it.
NORM_EPS = 1e-6


def plain_width(config: TransformerConfig) -> int:
  """Channels of a head that positions do not turn."""
  return config.head_width - config.turned_width


def expanded(
  config: TransformerConfig,
  kv_up: Callable[[jax.Array], jax.Array],  # [..., N] -> [..., H, plain + V]
  vectors: jax.Array,  # [B, 1, N + turned, M]
) -> tuple[jax.Array, jax.Array]:  # [B, H, K, M], [B, H, M, V]
  """Keys and values of all heads."""
  vectors = jnp.moveaxis(vectors[:, 0], -1, 1)  # [B, M, N + turned]
  kv, turned = jnp.split(vectors, [config.latent_width], axis=-1)
  k, v = jnp.split(kv_up(kv), [plain_width(config)], axis=-1)
  shape = *k.shape[:-1], turned.shape[-1]
  k = jnp.concatenate([k, jnp.broadcast_to(turned[:, :, None], shape)], axis=-1)
  return jnp.moveaxis(k, 1, -1), jnp.swapaxes(v, 1, 2)


def absorbed(
  config: TransformerConfig,
  kernel: jax.Array,  # [N, H, plain + V]
  q: jax.Array,  # [B, L, H, 1, K]
) -> jax.Array:  # [B, L, 1, H, N + turned]
  """Queries to latent vectors."""
  width = plain_width(config)
  plain, turned = jnp.split(q[..., 0, :], [width], axis=-1)
  plain = jnp.einsum("blhk,nhk->blhn", plain, kernel[..., :width])
  return jnp.concatenate([plain, turned], axis=-1)[:, :, None]


def released(
  config: TransformerConfig,
  kernel: jax.Array,  # [N, H, plain + V]
  attended: jax.Array,  # [B, L, 1, H, N]
) -> jax.Array:  # [B, L, H, 1, V]
  """Values of what was attended."""
  kernel = kernel[..., plain_width(config) :]
  v = jnp.einsum("blhn,nhv->blhv", attended[:, :, 0], kernel)
  return v[..., None, :]
