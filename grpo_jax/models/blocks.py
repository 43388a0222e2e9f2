"""One block of a transformer: norms, projections, MLP or experts, positions.

The block is a Flax module; `transformer.py` has the stack of blocks, and the
letters of the shapes.

With multi-head latent attention a token has one vector for the keys and values
of all `H` query heads. The cache holds [c; t]: `N` channels c, and `turned`
channels t. The values are made of c, and so are the `K − turned` channels of
the keys without positions. The channels t are those of the keys that positions
have turned, the same for all heads:

    k_h = [U_h c; t],    v_h = V_h c,    score = q_h · k_h

There are two forms of the same sum:

- In whole sequences, keys and values of all heads are made before attention.
- A decode step reads [c; t] alone: U_h moves to the query, V_h behind the sum,

      q_h · k_h = [U_hᵀ q_h; q_turned] · [c; t],
      Σ_m w_m v_hm = V_h Σ_m w_m c_m,

  which is grouped-query attention of H queries to a single head of N + turned
  channels, whose first N are also the values. So the cache is that of
  `attention.cached` with one head, and without separate values.

For example, DeepSeek-V3 (H = 128, K = 192, values of 128, N = 512, turned 64)
holds 576 numbers for a token of a layer, instead of 128 · (192 + 128) = 40960.

Source: DeepSeek-AI, "DeepSeek-V2", arXiv:2405.04434, Section 2.1 and
Appendix C.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from grpo_jax.models import delta, experts, vision_parts
from grpo_jax.models import rope as rope_lib
from grpo_jax.models.architecture import TransformerConfig
from grpo_jax.ops import masked

# ε of the norms of latent vectors in every model: no config.json has it.
NORM_EPS = 1e-6


def plain_width(config: TransformerConfig) -> int:
  """Channels of a head that positions do not turn."""
  return config.head_width - config.turned_width


def expanded(
  config: TransformerConfig,
  kv_up: Callable[[jax.Array], jax.Array],  # [..., N] -> [..., H, plain + V]
  vectors: jax.Array,  # [B, 1, N + turned, M]
) -> tuple[jax.Array, jax.Array]:  # [B, H, K, M], [B, H, M, V]
  """Makes the keys and values of all heads from latent vectors."""
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
  """Queries that are multiplied by latent vectors instead of keys."""
  width = plain_width(config)
  plain, turned = jnp.split(q[..., 0, :], [width], axis=-1)
  plain = jnp.einsum("blhk,nhk->blhn", plain, kernel[..., :width])
  return jnp.concatenate([plain, turned], axis=-1)[:, :, None]


def released(
  config: TransformerConfig,
  kernel: jax.Array,  # [N, H, plain + V]
  attended: jax.Array,  # [B, L, 1, H, N]
) -> jax.Array:  # [B, L, H, 1, V]
  """Values of all heads from the weighted sums of latent vectors."""
  kernel = kernel[..., plain_width(config) :]
  v = jnp.einsum("blhn,nhv->blhv", attended[:, :, 0], kernel)
  return v[..., None, :]


def without_bias(config: TransformerConfig, kind: Any = nn.Dense) -> Any:
  """Class of dense layers without biases, in the dtypes of the config."""
  return functools.partial(
    kind, use_bias=False, dtype=config.dtype, param_dtype=config.param_dtype
  )


def on_rows(dense, x: jax.Array, num_axes: int = 1) -> jax.Array:
  """Applies `dense` to the last axes of x [B, L, ...] as one tall matrix.

  With two row axes XLA:CPU transposes the activations, on one core, before
  every weight gradient: a third of a training step (width 256, 4 layers).
  """
  rows = x.shape[:-num_axes]
  y = dense(x.reshape(-1, *x.shape[-num_axes:]))
  return y.reshape(*rows, *y.shape[1:])


class RMSNorm(nn.Module):
  """x / sqrt(mean(x²) + ε) · scale over the last `num_axes` axes.

  The norm "plain" has no scale.
  """

  config: TransformerConfig
  num_axes: int = 1
  eps: float | None = None  # None for the config's.

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:  # [..., D] -> [..., D]
    config = self.config
    eps = config.norm_eps if self.eps is None else self.eps
    start = (
      nn.initializers.zeros if config.norm_plus_one else nn.initializers.ones
    )
    scale = jnp.ones(())
    if config.norm != "plain":
      shape = x.shape[-self.num_axes :]
      scale = self.param("scale", start, shape, config.param_dtype)
    # float32: in bfloat16 the mean square has 8 bits.
    wide, scale = masked.wide(x), masked.wide(scale)
    axes = tuple(range(-self.num_axes, 0))
    mean_square = jnp.square(wide).mean(axis=axes, keepdims=True)
    wide = wide * lax.rsqrt(mean_square + eps)
    return (wide * (scale + config.norm_plus_one)).astype(config.dtype)


def without_scale(config: TransformerConfig) -> TransformerConfig:
  """The config of norms without a scale."""
  return dataclasses.replace(config, norm="plain")


def norm(config: TransformerConfig) -> nn.Module:
  """The norm of the residual stream: LayerNorm for "layer", or RMSNorm."""
  if config.norm == "layer":
    dtypes = config.dtype, config.param_dtype
    return vision_parts.LayerNorm(config.norm_eps, *dtypes)
  return RMSNorm(config)


def residual_init(config: TransformerConfig) -> nn.initializers.Initializer:
  """Initializer of small kernels, so that a block starts near the identity.

  With Flax's default the outputs of the blocks are large beside the embedding,
  and the model learns late which token it reads: 500 supervised steps on
  two-digit addition ended at a loss of 1.06 nats with Flax's default and at
  0.32 with this.

  Source: Radford et al., "Language Models are Unsupervised Multitask
  Learners", 2019, Section 2.3 (the factor for the depth).
  """
  return nn.initializers.normal(0.02 / (2 * config.num_layers) ** 0.5)


def _llama4() -> Any:
  """The module of Llama 4's equations; only its models import it."""
  from grpo_jax.models import llama4

  return llama4


class Attention(nn.Module):
  """Projections of grouped-query attention; `attention.py` has the rest.

  The fused kernel is [D, C, R + 2, K]: the R queries, the key and the value of
  each key/value head. So a mesh can split C and keep a head together. With
  `attention_gate` it is [D, C, 2 R + 2, K], where each query is followed by its
  gate.
  """

  config: TransformerConfig

  def setup(self):
    config = self.config
    dense = functools.partial(
      nn.DenseGeneral, dtype=config.dtype, param_dtype=config.param_dtype
    )
    queries = config.queries_per_key * (1 + config.attention_gate)
    self.qkv = dense(
      (config.num_kv_heads, queries + 2, config.head_width),
      use_bias=config.qkv_bias,
    )
    self.out = dense(
      config.width,
      axis=(-3, -2, -1),
      use_bias=config.out_bias,
      kernel_init=residual_init(config),
    )
    if config.attention_sinks:
      self.sinks = self.param(
        "sinks",
        nn.initializers.zeros,
        (config.num_kv_heads, config.queries_per_key),
        config.param_dtype,
      )
    if config.qk_norm != "none":
      # Queries are [..., C, R, K], keys [..., C, 1, K].
      num_axes = 1 if config.qk_norm == "head" else 3
      self.query_norm = RMSNorm(config, num_axes)
      self.key_norm = RMSNorm(config, num_axes)

  def project(self, x, rope):  # x [B, L, D], rope 2 · [B, L, K / 2]
    """Queries [B, L, C, R, K], keys [B, C, K, L] and values [B, C, L, K].

    The fourth result are the gates of the queries, or None.
    """
    qkv = on_rows(self.qkv, x)  # [B, L, C, R + 2, K]
    q, k, v = qkv[..., :-2, :], qkv[..., -2:-1, :], qkv[..., -1, :]
    gate = None
    if self.config.attention_gate:
      q, gate = q[..., ::2, :], q[..., 1::2, :]
    if self.config.qk_norm != "none":
      q, k = self.query_norm(q), self.key_norm(k)
    interleaved = self.config.rotary_interleaved
    k = rotate(k, rope, interleaved)[..., 0, :]
    q = rotate(q, rope, interleaved)
    if self.config.query_scaling:
      q = (masked.wide(q) * rope[2][:, :, None, None]).astype(q.dtype)
    if self.config.llama4 is not None:
      q, k = _llama4().queries_and_keys(self.config, q, k, rope)
    return q, jnp.moveaxis(k, 1, -1), jnp.moveaxis(v, 1, 2), gate


class Expansion(nn.Module):
  """Product of latent vectors x [..., N] and a readable kernel W [N, H, K].

  A decode step reads W, so that it need not expand its cache.
  """

  config: TransformerConfig
  width: int

  def setup(self):
    config = self.config
    self.kernel = self.param(
      "kernel",
      nn.initializers.lecun_normal(in_axis=0, out_axis=(1, 2)),
      (config.latent_width, config.num_heads, self.width),
      config.param_dtype,
    )

  def __call__(self, x: jax.Array) -> jax.Array:  # [..., N] -> [..., H, K]
    kernel = jnp.asarray(self.kernel, self.config.dtype)
    return jnp.tensordot(x, kernel, axes=1)

  def matrix(self) -> jax.Array:  # [N, H, K]
    """W in the model's dtype; `lora` intercepts this call to add adapters."""
    return jnp.asarray(self.kernel, self.config.dtype)


class LatentAttention(nn.Module):
  """Projections of multi-head latent attention; see the module's docstring."""

  config: TransformerConfig

  def setup(self):
    config = self.config
    dense = without_bias(config, nn.DenseGeneral)
    norm = functools.partial(RMSNorm, config, eps=NORM_EPS)
    heads = config.num_heads, config.head_width
    if config.query_latent_width:
      self.query_down = dense(config.query_latent_width)
      self.query_down_norm = norm()
      self.query_up = dense(heads)
    else:
      self.query_heads = dense(heads)
    self.kv_down = dense(config.latent_width + config.turned_width)
    self.kv_down_norm = norm()
    self.kv_up = Expansion(config, plain_width(config) + config.value_width)
    self.out = dense(
      config.width, axis=(-3, -2, -1), kernel_init=residual_init(config)
    )
    if config.indexer is not None:
      from grpo_jax.models import indexer  # Only models with indexers need it.

      self.indexer = indexer.Indexer(config)

  def project(self, x, rope):  # x [B, L, D], rope 2 · [B, L, turned / 2]
    """Queries [B, L, H, 1, K], latent vectors [B, 1, N + turned, L], and more.

    The first N channels of a latent vector make a token's values and the
    channels of its keys without positions. The others are the channels of its
    keys that positions have turned. The third result is what an indexer makes
    of the tokens, or None.
    """
    config, index = self.config, None
    if config.query_latent_width:
      down = self.query_down_norm(on_rows(self.query_down, x))
      q = on_rows(self.query_up, down)
    else:
      q = on_rows(self.query_heads, x)
    turn = functools.partial(
      rotate, rope=rope, interleaved=config.rotary_interleaved
    )
    if config.indexer is not None:
      interleaved = config.indexer.interleaved
      turned_by = functools.partial(turn, interleaved=interleaved)
      index = self.indexer(x, down, turned_by)
    plain, turned = jnp.split(q, [plain_width(config)], axis=-1)
    q = jnp.concatenate([plain, turn(turned[..., None, :])[..., 0, :]], axis=-1)
    down = on_rows(self.kv_down, x)
    kv, shared = jnp.split(down, [config.latent_width], axis=-1)
    shared = turn(shared[:, :, None, None])[:, :, 0, 0]
    vectors = jnp.concatenate([self.kv_down_norm(kv), shared], axis=-1)
    return q[..., None, :], jnp.moveaxis(vectors, 1, -1)[:, None], index, None

  def expanded(self, q, vectors):
    """Queries, and keys [B, H, K, M] and values [B, H, M, V] of all heads."""
    config = self.config
    return q, *expanded(config, self.kv_up, vectors)

  def absorbed(self, q):
    """Queries [B, L, 1, H, N + turned] that latent vectors are keys of."""
    return absorbed(self.config, self.kv_up.matrix(), q)

  def released(self, attended):
    """Values [B, L, H, 1, V] of sums of latent vectors [B, L, 1, H, N]."""
    return released(self.config, self.kv_up.matrix(), attended)


class GatedDelta(nn.Module):
  """Projections around the gated delta rule; `delta.py` has the rest.

  The fused kernel is [D, G, 2 K + 2 R V]: the query, the key, the R values and
  their R gates of each head of keys. So a mesh can split G. The rates are b
  (β = σ(b)) and x of `delta.log_decay`, R each.
  """

  config: TransformerConfig

  def setup(self):
    config, sizes = self.config, self.config.delta
    assert sizes is not None
    dense = without_bias(config, nn.DenseGeneral)
    heads = sizes.num_key_heads, sizes.values_per_key
    gates = sizes.values_per_key * sizes.value_width
    self.inputs = dense((sizes.num_key_heads, sizes.channels + gates))
    self.rates = dense((sizes.num_key_heads, 2 * sizes.values_per_key))
    self.out = dense(
      config.width, axis=(-3, -2, -1), kernel_init=residual_init(config)
    )

    def parameter(name, start, *shape):
      return self.param(name, start, shape, config.param_dtype)

    # Drawn as by transformers.
    bound = sizes.num_taps**-0.5

    def taps(key, shape, dtype):
      return jax.random.uniform(key, shape, dtype, -bound, bound)

    def log_rate(key, shape, dtype):
      return jnp.log(jax.random.uniform(key, shape, dtype, 0.01, 16.0))

    channels = sizes.num_key_heads, sizes.channels, sizes.num_taps
    self.taps = parameter("taps", taps, *channels)
    self.log_rate = parameter("log_rate", log_rate, *heads)
    self.rate_bias = parameter("rate_bias", nn.initializers.ones, *heads)
    self.scale = parameter("scale", nn.initializers.ones, sizes.value_width)

  def __call__(self, x, mask, before=None):
    """Runs the rule on tokens x [B, L, D] after a state.

    Args:
      x: Tokens, which follow each other without gaps.
      mask: True on slots [B, L] that hold a token.
      before: The `delta.State` that the tokens continue; None at the beginning.

    Returns:
      The outputs [B, L, D], arbitrary without a token, and the state after.
    """
    config, sizes = self.config, self.config.delta
    assert sizes is not None
    if before is None:
      before = delta.empty(sizes, len(x), config.dtype)
    inputs = on_rows(self.inputs, x)  # [B, L, G, 2 K + 2 R V]
    run = functools.partial(
      _recurred, config, self.taps, self.log_rate, self.rate_bias, self.scale
    )
    arrays = inputs, on_rows(self.rates, x), mask
    state, y = delta.in_pieces(run, before, *arrays)
    return on_rows(self.out, y, num_axes=3), state


def _recurred(
  config, taps, log_rate, rate_bias, scale, before, inputs, rates, mask
):
  """The state after L tokens, and the outputs [B, L, G, R, V] of the rule."""
  sizes = config.delta
  inputs, gate = jnp.split(inputs, [sizes.channels], axis=-1)
  mixed, recent = delta.convolved(taps, inputs, mask, before.recent)
  # Rounded, as all activations are: so the backward pass keeps half.
  mixed = nn.silu(mixed).astype(config.dtype)
  places = [sizes.key_width, 2 * sizes.key_width]
  q, k, v = jnp.split(mixed, places, axis=-1)
  heads = *mask.shape, sizes.num_key_heads, sizes.values_per_key
  v, gate = (z.reshape(*heads, sizes.value_width) for z in (v, gate))
  beta, rate = jnp.split(rates, 2, axis=-1)
  decay = delta.log_decay(log_rate, rate_bias, rate)
  is_token = mask[:, :, None, None]
  arrays: tuple[jax.Array, ...] = (
    delta.unit(q) * sizes.key_width**-0.5,
    delta.unit(k),
    masked.wide(v),
    jnp.where(is_token, decay, 0),
    jnp.where(is_token, nn.sigmoid(masked.wide(beta)), 0),
  )
  rule: Callable = delta.chunked
  if is_step := mask.shape[1] == 1:
    rule, arrays = delta.step, tuple(z[:, 0] for z in arrays)
  y, memory = rule(*arrays, before.memory)
  y = y[:, None] if is_step else y
  y = delta.gated_norm(y, gate, scale, config.norm_eps)
  return delta.State(memory, recent), y.astype(config.dtype)


class MLP(nn.Module):
  """down(activation(gate(x)) · up(x)), or the "clamped" form of `gated`.

  Without a gate it is down(activation(up(x))).
  """

  config: TransformerConfig
  inner: int | None = None  # None for the config's `mlp_width`.

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:  # [..., D] -> [..., D]
    config = self.config
    dense = functools.partial(
      nn.Dense,
      use_bias=config.mlp_bias,
      dtype=config.dtype,
      param_dtype=config.param_dtype,
    )
    inner = config.mlp_width if self.inner is None else self.inner
    if config.gate:
      gate = dense(inner, name="gate")(x)
      hidden = gated(config)(gate, dense(inner, name="up")(x))
    else:
      hidden = _ACTIVATIONS[config.activation](dense(inner, name="up")(x))
    down = dense(config.width, name="down", kernel_init=residual_init(config))
    return down(hidden)


_ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
  "silu": nn.silu,
  "gelu": nn.gelu,
  "relu2": lambda x: jnp.square(nn.relu(x)),
}


def gated(config: TransformerConfig) -> experts.Gated:
  """Function (gate, up) -> hidden vector of an MLP, elementwise."""
  if config.activation == "clamped":
    limit, slope = config.swiglu_limit, config.swiglu_slope

    def clamped(gate, up):
      gate = jnp.minimum(gate, limit)
      return gate * nn.sigmoid(slope * gate) * (jnp.clip(up, -limit, limit) + 1)

    return clamped
  if config.activation == "bounded":
    bound = config.swiglu_limit
    return lambda gate, up: (
      nn.silu(jnp.minimum(gate, bound)) * jnp.clip(up, -bound, bound)
    )
  activation = _ACTIVATIONS[config.activation]
  return lambda gate, up: activation(gate) * up


class ExpertKernels(nn.Module):
  """The parameters of the experts; the first axis is the expert."""

  config: TransformerConfig

  @nn.compact
  def __call__(self) -> experts.Kernels:
    config = self.config
    count, width, inner = (
      config.num_experts,
      config.width,
      config.expert_width,
    )
    each = nn.initializers.lecun_normal(batch_axis=0)
    kernels: Any = (
      self.param(name, start, shape, config.param_dtype).astype(config.dtype)
      for name, start, shape in (
        ("gate", each, (count, width, inner)),
        ("up", each, (count, width, inner)),
        ("down", residual_init(config), (count, inner, width)),
      )
    )
    biases: Any = ()
    if config.expert_biases:
      biases = (
        self.param(
          f"{name}_bias",
          nn.initializers.zeros,
          (count, size),
          config.param_dtype,
        ).astype(config.dtype)
        for name, size in (("gate", inner), ("up", inner), ("down", width))
      )
    return experts.Kernels(*kernels, *biases)


class MoE(nn.Module):
  """A router, and the experts from which it chooses for each token."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, x, choices=None, bias=None):  # [N, D], [N, k], [E]
    config = self.config
    # Near-ties decide which experts run, and bfloat16 makes many near-ties; so
    # does a float32 product at the default precision of a TPU.
    router = nn.Dense(
      config.num_experts,
      use_bias=config.expert_biases,
      dtype=jnp.promote_types(config.dtype, jnp.float32),
      param_dtype=config.param_dtype,
      precision=lax.Precision.HIGHEST,
      kernel_init=nn.initializers.normal(0.02),
      name="router",
    )
    routed = experts.route(
      router(x),
      config.experts_per_token,
      config.norm_topk,
      choices,
      bias,
      scores=config.router_scores,
      groups=(config.router_groups, config.groups_per_token),
      scale=config.router_scale,
    )
    narrow = x.astype(config.dtype)
    kernels = ExpertKernels(config, name="experts")()
    how = gated(config), config.experts
    if config.llama4 is None:
      y = experts.mix(narrow, routed.ids, routed.weights, kernels, *how)
    else:
      y = _llama4().mix(narrow, routed, kernels, *how)
    if config.shared_width:
      shared = MLP(config, config.shared_width, name="shared")(x)
      if config.shared_gate:
        gate = without_bias(config)(1, name="shared_gate")
        shared = nn.sigmoid(gate(x)) * shared
      y = y + shared
    return y, (routed.probs, routed.ids)


def mixed(
  mlp: MoE,
  x: jax.Array,  # [B, L, D]
  router: RouterInputs,
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
  """Outputs [B, L, D] of a mixture, probabilities [B, L, E], choices."""
  rows = x.shape[:-1]
  choices = router.choices
  if choices is not None:
    choices = choices.reshape(-1, choices.shape[-1])
  outputs = mlp(x.reshape(-1, x.shape[-1]), choices, router.bias)
  y, routed = jax.tree.map(lambda z: z.reshape(*rows, -1), outputs)
  return y, routed


class RouterInputs(NamedTuple):
  """Inputs of a layer's router and indexer; None where an input is not given.

  In `_forward` all have a leading axis of layers.

  Attributes:
    choices: Experts to take instead of the best ones.
    bias: Added to the router's scores for the choice of experts.
    slots: Slots to attend to instead of those that the indexer would choose.
  """

  choices: jax.Array | None = None  # [B, L, k] int32
  bias: jax.Array | None = None  # [E]
  slots: jax.Array | None = None  # [B, L, top_k] int32


class Block(nn.Module):
  """One layer, for whole sequences or for tokens that continue a cache."""

  config: TransformerConfig
  is_linear: bool = False  # Whether it has the delta rule for attention.

  def setup(self):
    config = self.config
    attention: Any = LatentAttention if config.latent_width else Attention
    if self.is_linear:
      self.delta = GatedDelta(config)
    else:
      self.attention = attention(config)
    mlp: Any = MoE if config.num_experts else MLP
    self.mlp = mlp(config)
    if config.pre_norm:
      self.attention_norm = norm(config)
      self.mlp_norm = norm(config)
    if config.post_norm:
      self.attention_post_norm = norm(config)
      self.mlp_post_norm = norm(config)

  def _project(self, x, rope):
    x = self.attention_norm(x) if self.config.pre_norm else x
    return self.attention.project(x, rope)

  def _attend(self, attend):
    if not self.config.attention_sinks:
      return attend
    return functools.partial(attend, sinks=self.attention.sinks)

  def _out(self, attended, gate):  # [B, L, C, R, K] each -> [B, L, D]
    if gate is not None:
      attended = attended * nn.sigmoid(gate)
    return on_rows(self.attention.out, attended, num_axes=3)

  def _finish(self, x, y, router):  # [B, L, D] each
    config = self.config
    x = self._add(x, self.attention_post_norm(y) if config.post_norm else y)
    y = self.mlp_norm(x) if config.pre_norm else x
    routed = None
    if config.num_experts:
      y, routed = mixed(self.mlp, y, router)
    else:
      y = on_rows(self.mlp, y)
    y = self.mlp_post_norm(y) if config.post_norm else y
    return self._add(x, y), routed

  def _add(self, x, y):  # [B, L, D], [B, L, D]
    if (scale := self.config.residual_scale) != 1:
      # Wide: bfloat16 would round the factor itself, in every layer.
      y = (masked.wide(y) * scale).astype(y.dtype)
    return x + y

  def __call__(self, x, rope, attend, router, before=None):
    """Runs the block on whole sequences, or on the ends of sequences.

    Args:
      x: The residual stream [B, L, D].
      rope: Cosines and sines, as `rotary` returns them.
      attend: (queries, keys, values) -> the result of attention; with an
        indexer as `indexer.over_sequences` returns it.
      router: Inputs of the router and the indexer.
      before: Keys [B, C, K, S - 1] and values [B, C, S - 1, K] of the tokens
        that the rows continue; None for whole sequences.

    Returns:
      The new x [B, L, D]; keys [B, C, K, L] and values [B, C, L, K], or latent
      vectors and None or index keys; the router's probabilities [B, L, E] and
      choices [B, L, k], or None; the indexer's `Choice`, or None.
    """
    q, k, v, gate = self._project(x, rope)
    index, choice = v, None
    if self.config.indexer is not None:
      v = index.keys
    keys, values = k, v
    if before is not None:
      # One softmax over concatenated keys. The alternative is two blocks of
      # scores, with one product for all rows of a prompt. For a gradient of 8
      # rows of 128 tokens after 63 it took 7.4 ms instead of 9.6 (2 % of the
      # update), but for 64 tokens after 15 it took 8.2 instead of 6.6.
      keys = jnp.concatenate([before[0], k], axis=-1)
      if v is not None:
        values = jnp.concatenate([before[1], v], axis=-2)
    if self.config.latent_width:
      index_keys = values
      q, keys, values = self.attention.expanded(q, keys)
    if self.config.indexer is None:
      attended = self._attend(attend)(q, keys, values)
    else:
      index = index._replace(keys=index_keys)
      attended, choice = attend(q, keys, values, index, router.slots)
    x, routed = self._finish(x, self._out(attended, gate), router)
    return x, (k, v), routed, choice

  def decode(self, x, rope, attend, router):  # [B, 1, D]
    """Runs the block on tokens that `attend` also writes to the cache.

    Returns:
      The new x, the cache, the router's outputs as in `__call__`, and the
      tokens that the indexer has chosen, or None.
    """
    q, k, v, gate = self._project(x, rope)
    ids = None
    if self.config.latent_width:
      q = self.attention.absorbed(q)
    if self.config.indexer is None:
      attended, cache = self._attend(attend)(q, k, v)
    else:
      attended, cache, ids = attend(q, k, v)
    if self.config.latent_width:
      attended = self.attention.released(attended)
    x, routed = self._finish(x, self._out(attended, gate), router)
    return x, cache, routed, ids

  def recur(self, x, mask, router, before=None):
    """Runs a block with the delta rule on tokens that continue a state.

    Args:
      x: The residual stream [B, L, D].
      mask: True on slots [B, L] that hold a token.
      router: Inputs of the router.
      before: The `delta.State` before x; None at the beginning.

    Returns:
      The new x, the state after it, and the routing as in `__call__`.
    """
    y = self.attention_norm(x) if self.config.pre_norm else x
    y, state = self.delta(y, mask, before)
    x, routed = self._finish(x, y, router)
    return x, state, routed


def rotary(
  config: TransformerConfig,
  positions: jax.Array,  # [B, L], or [3, B, L] of time, row and column
) -> tuple[jax.Array, ...]:  # 2 · [B, L, turned / 2]
  """Cosines and sines of position · frequency, at least float32.

  With `query_scaling` also the factors of queries, [B, L, 1]. In Llama 4 also
  the temperatures of queries that do not turn, and whether these do.
  """
  dtype = jnp.promote_types(config.dtype, jnp.float32)
  frequencies = rope_lib.frequencies(config, dtype)
  of_pairs = positions[..., None]
  if positions.ndim == 3:  # One of the three coordinates turns each pair.
    of_pairs = jnp.moveaxis(positions, 0, -1)[..., rope_lib.rows(config)]
  angles = of_pairs.astype(dtype) * frequencies
  cos, sin = jnp.cos(angles), jnp.sin(angles)
  if config.rope_amplitude != 1:
    cos, sin = cos * config.rope_amplitude, sin * config.rope_amplitude
  if config.rotary_backward:
    sin = -sin
  if config.llama4 is not None:
    factors = _llama4().temperature(config.llama4, of_pairs)
    return cos, sin, factors, jnp.bool_(True)
  if not config.query_scaling:
    return cos, sin
  contexts = (of_pairs // config.rope_original_len).astype(dtype)
  return cos, sin, 1 + config.query_scaling * jnp.log1p(contexts)


def rotate(
  x, rope, interleaved=False
):  # [B, L, C, R, K], 2 · [B, L, turned / 2]
  """Turns pairs of the first `turned` channels, and keeps the other channels.

  Channels (i, i + turned / 2) are a pair, as in Llama and Qwen. With
  `interleaved` channels (2 i, 2 i + 1) are a pair. They are returned in the
  order (i, i + turned / 2) too; products of queries and keys do not depend on
  the order.
  """
  cos, sin = (table[:, :, None, None, :] for table in rope[:2])
  width = 2 * cos.shape[-1]
  turned, rest = x[..., :width], x[..., width:]
  if interleaved:
    pairs = masked.wide(turned).reshape(*x.shape[:-1], -1, 2)
    first, second = pairs[..., 0], pairs[..., 1]
  else:
    first, second = jnp.split(masked.wide(turned), 2, axis=-1)
  parts = (first * cos - second * sin, second * cos + first * sin)
  y = jnp.concatenate(parts, axis=-1).astype(x.dtype)
  return jnp.concatenate([y, rest], axis=-1) if rest.shape[-1] else y


@jax.custom_vjp
def projected(
  h: jax.Array,  # [..., D]
  kernel: jax.Array,  # [D, V], of the same dtype
) -> jax.Array:  # [..., V]
  """h W with sums and result in at least float32."""
  # Sums in float32 cost nothing on an accelerator and spare the logits the
  # rounding to bfloat16.
  wide = jnp.promote_types(h.dtype, jnp.float32)
  return jnp.matmul(h, kernel, preferred_element_type=wide)


def _projected_forward(h, kernel):
  return projected(h, kernel), (h, kernel)


def _projected_backward(saved, d_logits):
  h, kernel = saved
  # Rounded, as all gradients of activations are. With float32 on one side both
  # products would be float32 products, which bfloat16 units cannot compute.
  d_logits = d_logits.astype(h.dtype)
  rows = tuple(range(h.ndim - 1))
  # The states are on the left, so that XLA:CPU copies and transposes them.
  # With JAX's own rule it transposes the gradient of the logits, which is
  # larger, and takes a third longer for both products.
  d_kernel = jnp.tensordot(h, d_logits, axes=(rows, rows))
  return jnp.matmul(d_logits, kernel.T), d_kernel


projected.defvjp(_projected_forward, _projected_backward)
