"""Losses of pairs: a better and a worse completion of the same prompt."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from grpo_jax.ops import masked, values
from grpo_jax.types import Weighted

DPO_KINDS = ("sigmoid", "hinge", "ipo", "robust")
F_DIVERGENCES = ("reverse_kl", "forward_kl", "js_divergence")


def dpo(
  margin: jax.Array,  # [N]
  beta: float,
  kind: str = "sigmoid",
  label_smoothing: float = 0.0,
) -> jax.Array:  # [N]
  """Loss of a pair from the margin d between its scores.

      sigmoid  −(1 − s) log σ(β d) − s log σ(−β d)
      robust   [−(1 − s) log σ(β d) + s log σ(−β d)] / (1 − 2 s)
      hinge    max(0, 1 − β d)
      ipo      (d − 1 / (2 β))²

  Args:
    margin: d = score of the chosen minus score of the rejected completion,
      each a `dpo_score` of Σ_t log π_θ − log π_ref; for "ipo" of their means
      over tokens.
    beta: > 0; how strongly the reference holds.
    kind: One of `DPO_KINDS`.
    label_smoothing: s, the share of labels that are wrong, in [0, ½); not
      used by "hinge" and "ipo".

  Returns:
    One loss per pair; log 2 at d = 0 for "sigmoid".

  Raises:
    ValueError: If `kind` is unknown or `label_smoothing` out of range.

  Source: Rafailov et al., "Direct Preference Optimization",
  arXiv:2305.18290, Eq. 7; hinge: Zhao et al., "SLiC-HF", arXiv:2305.10425;
  ipo: Azar et al., arXiv:2310.12036, Eq. 17; robust: Chowdhury et al.,
  arXiv:2403.00409, Eq. 10.
  """
  if not 0 <= label_smoothing < 0.5:
    raise ValueError(
      f"preferences.dpo: label_smoothing is {label_smoothing}; it is the share"
      " of wrong labels and must be in [0, 0.5)."
    )
  right = jax.nn.log_sigmoid(beta * margin)
  wrong = jax.nn.log_sigmoid(-beta * margin)
  s = label_smoothing
  if kind == "sigmoid":
    return -(1 - s) * right - s * wrong
  if kind == "robust":
    return (-(1 - s) * right + s * wrong) / (1 - 2 * s)
  if kind == "hinge":
    return jax.nn.relu(1 - beta * margin)
  if kind == "ipo":
    return jnp.square(margin - 1 / (2 * beta))
  raise ValueError(
    f"preferences.dpo: kind is {kind!r}; choose one of {', '.join(DPO_KINDS)}."
  )


def dpo_score(
  x: jax.Array,  # [N]
  f_divergence: str = "reverse_kl",
) -> jax.Array:  # [N]
  """Score of a completion from x = Σ_t log π_θ − log π_ref, up to a constant.

      reverse_kl x,   forward_kl −exp(−x),   js_divergence log σ(x)

  Args:
    x: Nats.
    f_divergence: Divergence between policy and reference.

  Returns:
    f'(π_θ/π_ref); constants are left out, because only differences count.
    exp is bounded at 20 nats, with a slope of 0 beyond.

  Raises:
    ValueError: If `f_divergence` is unknown.

  Source: Wang et al., "Beyond Reverse KL", arXiv:2309.16240, Table 1.
  """
  if f_divergence == "reverse_kl":
    return x
  if f_divergence == "forward_kl":
    return -jnp.exp(jnp.minimum(-x, 20.0))
  if f_divergence == "js_divergence":
    return jax.nn.log_sigmoid(x)
  raise ValueError(
    f"preferences.dpo_score: f_divergence is {f_divergence!r}; choose one of"
    f" {', '.join(F_DIVERGENCES)}."
  )


def bradley_terry(
  chosen: jax.Array,  # [N]
  rejected: jax.Array,  # [N]
  margin: float | jax.Array = 0.0,
  center_coef: float = 0.0,
) -> jax.Array:  # [N]
  """Loss of a reward model that should rank a pair.

      −log σ( r_w − r_l − margin ) + λ (r_w + r_l)²

  Args:
    chosen: r_w, rewards of the better completions.
    rejected: r_l, rewards of the worse ones.
    margin: Least difference r_w − r_l that the loss asks for, ≥ 0.
    center_coef: λ, pulls rewards towards mean 0, which ranking leaves open.

  Returns:
    One loss per pair; log 2 where both rewards are 0.

  Source: Bradley and Terry, 1952; Ouyang et al., "InstructGPT",
  arXiv:2203.02155, Eq. 1; margin: Touvron et al., "Llama 2",
  arXiv:2307.09288, Eq. 2; centering: Eisenstein et al., arXiv:2312.09244.
  """
  ranking = -jax.nn.log_sigmoid(chosen - rejected - margin)
  return ranking + center_coef * jnp.square(chosen + rejected)


def of_ranking(
  margin: jax.Array,  # [N]
  mask: jax.Array,  # [N] bool
) -> dict[str, Weighted]:
  """Metrics of scores that rank pairs whose order is known.

  Args:
    margin: Score of the better completion minus score of the worse one.
    mask: True on pairs that exist.

  Returns:
    "accuracy", the share of pairs that are ranked right; a tie counts half. And
    "calibration_error": by Bradley and Terry the greater score wins with
    probability σ(|margin|), which is compared with the observed frequency.
  """
  right = jnp.where(margin == 0, 0.5, (margin > 0).astype(margin.dtype))
  confidence = jax.nn.sigmoid(jnp.abs(margin))  # At least ½.
  return {
    "accuracy": Weighted(masked.sum(right, mask), mask.sum()),
    "calibration_error": values.gaps(confidence, right, mask),
  }
