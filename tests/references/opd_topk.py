"""On-policy distillation over the teacher's top k and a rest (2306.13649)."""

import math

import numpy as np

from tests.references import common


def bucketed_kl(student_logp, teacher_logp, floor: float) -> float:  # each [K]
  """Σ_k p_k (log p_k − log q_k), k over the ids and one bucket for the rest.

  The rest's probabilities 1 − Σ p and 1 − Σ q are at least `floor`, so that
  neither a full list of ids nor rounding makes the result infinite.
  """
  total, student_rest, teacher_rest = 0.0, 1.0, 1.0
  for log_p, log_q in zip(student_logp, teacher_logp, strict=True):
    p = math.exp(log_p)
    if p > 0:
      total += p * (float(log_p) - float(log_q))
    student_rest -= p
    teacher_rest -= math.exp(log_q)
  p, q = max(student_rest, floor), max(teacher_rest, floor)
  return total + p * (math.log(p) - math.log(q))


def advantages(rewards, valid, group_id) -> np.ndarray:  # each [B] -> [B]
  """1 on valid rows, 0 elsewhere; `loss` does not read it."""
  del rewards, group_id
  return np.array(valid, float)


@common.with_kl_and_entropy(common.token_mean)
def loss(
  logp,  # [B, T], read by the divergence from the reference only
  old_logp,  # [B, T], not used
  mask,  # [B, T] bool
  advantages,  # [B], not used
  *,
  topk_logp,  # [B, T, K], the student at the teacher's ids
  ref_topk_logp,  # [B, T, K]
  rest_floor: float = 1e-12,
) -> float:
  """(1/N) Σ_i Σ_t [KL over the buckets + β k3] − c · mean H."""
  del old_logp, advantages
  return common.token_mean(
    common.per_token(
      lambda i, t: bucketed_kl(
        topk_logp[i][t], ref_topk_logp[i][t], rest_floor
      ),
      mask,
    ),
    mask,
  )
