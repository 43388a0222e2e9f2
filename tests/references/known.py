"""Known answers of the references, each worked by hand.

`KNOWN` has a row for each algorithm. Its loss is that of two completions of 2
and 1 tokens, with three slots. Their ratios are 1.5 and 0.5, then 1.5; those of
whole rows are w = 0.75 and 1.5, by length s = √0.75 and 1.5. `LOSSES` and
`ADVANTAGES` have further cases: names, arguments, the answer and, unless round
off decides, its relative error. An argument replaces that of the batch.
"""

import dataclasses
import math
from typing import Any

import numpy as np

NAN = float("nan")
LN2 = math.log(2)

MASK = np.array([[True, True, False], [True, False, False]])
OLD_LOGP = np.full((2, 3), -1.0)
LOGP = OLD_LOGP + np.log([[1.5, 0.5, 1.0], [1.5, 1.0, 1.0]])
PAIR = {
  "rewards": np.array([1.0, 0.0]),
  "valid": np.array([True, True]),
  "group_id": np.array([3, 3]),
}
TOP_K = "topk_logp", "ref_topk_logp"
# All that a loss may require.
TWO_ROWS = {
  "logp": LOGP,
  "old_logp": OLD_LOGP,
  "behavior_logp": OLD_LOGP,
  "mask": MASK,
  "advantages": np.array([1.0, -1.0]),
  **PAIR,
  "ref_logp": OLD_LOGP,
  "correct": np.array([True, False]),
  "turn": np.array([[0, 1, 1], [0, 0, 0]]),
  "values": np.array([[0.5, 1.0, NAN], [-1.0, NAN, NAN]]),
  "old_values": np.array([[0.0, 1.0, NAN], [0.0, NAN, NAN]]),
  "returns": np.array([[1.0, 1.0, NAN], [0.0, NAN, NAN]]),
  "ref_kl": np.array([[0.3, 0.6, NAN], [0.0, NAN, NAN]]),
  "topk_logp": np.log(np.full((2, 3, 2), 0.25)),
  "ref_topk_logp": np.log(np.broadcast_to([0.5, 0.25], (2, 3, 2))),
}


def two(**options) -> dict[str, Any]:
  """The two rows, without divergence and entropy unless options have them."""
  return {**TWO_ROWS, "kl_coef": 0.0, "entropy_coef": 0.0, **options}


def one(ratio: float, advantage: float, **options) -> dict[str, Any]:
  """One token, without a pair, an error of the critic and a right answer."""
  zero = {name: np.zeros((1, 1)) for name in TWO_ROWS}
  return {
    **zero,
    **{name: np.log(np.full((1, 1, 2), 0.25)) for name in TOP_K},
    **{name: np.zeros(1, int) for name in ("rewards", "group_id")},
    "correct": np.zeros(1, bool),
    **{"valid": np.ones(1, bool), "mask": np.ones((1, 1), bool)},
    **{"logp": np.log([[ratio]]), "advantages": np.array([advantage])},
    **{"kl_coef": 0.0, "entropy_coef": 0.0, **options},
  }


# A token's share of the loss, and so of the mean of the two rows' divergence,
# which is k at the two tokens of row 0 and 0 in row 1.
ROWS = "1 of the row's tokens, of the rows with tokens"
SUMS = "1 of the rows with tokens"
ACTION = "as ROWS, but the completion is one action"
BUDGET = "1 of all slots of the rows with tokens"
TOKENS = "1 of all tokens"
MEAN_OF_ROWS = {ROWS: 1 / 2, SUMS: 2 / 2, ACTION: 1 / 2, BUDGET: 2 / 6}
MEAN_OF_ROWS[TOKENS] = 2 / 3


@dataclasses.dataclass(frozen=True)
class Known:
  """Answers for an algorithm.

  Attributes:
    loss: Loss of the two rows, without divergence or entropy.
    share: Share of a token, of those above.
    bounds: Loss of a token of ratio 0.65 and advantage −1, and minus that of 2
      and 1; None without a clip.
    kl_coef: Default of the divergence's coefficient.
    kl: Default of the divergence's estimator.
    compares: True if a group of equal rewards has no policy gradient.
    is_policy_gradient: True if the gradient at ratio 1 is −A times the share.
    plain: Settings that leave that gradient alone.
  """

  loss: float
  share: str
  bounds: tuple[float, float] | None = None
  kl_coef: float = 0.0
  kl: str = "k3"
  compares: bool = True
  is_policy_gradient: bool = True
  plain: dict[str, Any] = dataclasses.field(default_factory=dict)


CLIP, HIGH = (0.8, 1.2), (0.8, 1.28)
# Row 0, A = 1: min(1.5, 1.2) = 1.2, or 1.28, and min(0.5, 0.8) = 0.5. Row 1,
# A = −1: min(−1.5, −1.2) = −1.5.
CLIP_ROWS = (-(1.2 + 0.5) / 2 + 1.5) / 2
CLIP_TOKENS = (-(1.2 + 0.5) + 1.5) / 3
HIGH_TOKENS = (-(1.28 + 0.5) + 1.5) / 3
# −[−2 + ln 0.75] + [−1 + ln 1.5] = 1 + ln 2, before it is averaged.
LOG_LIKELIHOOD = 1 + LN2
# d = ln 0.75 − ln 1.5 = −ln 2, and −log σ(−0.1 ln 2) = log(1 + 2^0.1).
PAIR_LOSS = math.log(1 + 2**0.1)
# ½ max: v = 0.5, clipped 0.2, R = 1: 0.64; v = R = 1: 0; v = −1, clipped −0.2,
# R = 0: 1. Not clipped 0.25, 0 and 1.
VALUES = (0.5 * 0.64 + 0.5 * 1) / 3
PLAIN_VALUES = (0.5 * 0.25 + 0.5 * 1) / 3
# min(w, 0.8) = 0.75; min(−1.5, −1.2).
TRAJECTORY = (-0.75 + 1.5) / 2
# min(s, 0.9997) = s in row 0.
SEQUENCE = (-math.sqrt(0.75) + 1.5) / 2
# φ(0.75) = e^{3 − 2.25} 0.75², φ(1.5) = e^{2 − 3} 1.5³.
PHI = math.exp(0.75) * 0.5625, math.exp(-1) * 3.375

KNOWN = {
  "grpo": Known(CLIP_ROWS, ROWS, CLIP, 0.04),
  "grpo_ps": Known(CLIP_ROWS, ROWS, CLIP, 0.04, compares=False),  # Steps.
  "dr_grpo": Known((-(1.2 + 0.5) + 1.5) / (2 * 3), BUDGET, CLIP),  # C = T = 3.
  "dapo": Known(HIGH_TOKENS, TOKENS, HIGH, plain={"overlong_cache": 0.0}),
  "gspo": Known(SEQUENCE, ROWS, (0.9997, 1.0004)),
  "gspo_token": Known(SEQUENCE, ROWS, (0.9997, 1.0004)),
  "luspo": Known((-2 * math.sqrt(0.75) + 1.5) / 2, SUMS, (0.998, 1.0025)),
  # Row 0: min(ln 1.5, 0.4) = 0.4 and min(−ln 2, −0.4) = −ln 2. Row 1:
  # max(ln 1.5, 0.4) = ln 1.5, as ln 1.5 = 0.405.
  "gmpo": Known(
    *((-math.exp((0.4 - LN2) / 2) + 1.5) / 2, ROWS),
    (math.exp(-0.4), math.exp(0.4)),
  ),
  # −1.5 (ln 1.5 − 1) − 0.5 (−ln 2 − 1) + 1.5 (ln 1.5 − 1) = (1 + ln 2) / 2.
  "cispo": Known((1 + LN2) / 2 / 3, TOKENS),
  # 4 (σ(½) + σ(−½)) / 2 = 2; row 1 has τ = 1.05 and r − 1 = ½.
  "sapo": Known((-2 + (4 / 1.05) / (1 + math.exp(-0.525))) / 2, ROWS),
  "vespo": Known(
    (PHI[0] * (2 - math.log(0.75)) + PHI[1] * (math.log(1.5) - 1)) / 3, TOKENS
  ),
  "tic_grpo": Known(TRAJECTORY, ACTION, (0.65, 1.28)),  # No lower bound.
  "lambda_grpo": Known(HIGH_TOKENS, TOKENS, HIGH),  # λ = 0: weights of 1.
  "clip_cov": Known(
    *(CLIP_TOKENS, TOKENS, CLIP), plain={"cov_low": 1e3, "cov_high": 2e3}
  ),
  # ℓ_old is constant: all covariances tie at 0 and the first token is chosen.
  "kl_cov": Known(
    *((-1.5 + math.log(1.5) - 0.5 + 1.5) / 3, TOKENS),
    plain={"cov_kl_coef": 0.0},
  ),
  "deepseek_v32": Known(CLIP_ROWS, ROWS, CLIP, 1e-3),
  "rredcot": Known(CLIP_ROWS, ROWS, CLIP, compares=False),  # Segments.
  "edge_grpo": Known(CLIP_ROWS, ROWS, CLIP),
  # Entropy distinguishes right completions, of a token and of a row.
  "gtpo": Known(HIGH_TOKENS, TOKENS, HIGH, compares=False),
  "grpo_s": Known((-1 + 1.5) / 2, ROWS, HIGH, compares=False),  # Mean ratios.
  "mo_grpo": Known(CLIP_ROWS, ROWS, CLIP),
  "gdpo": Known(CLIP_ROWS, ROWS, CLIP),
  "gfpo": Known(CLIP_TOKENS, TOKENS, CLIP, 1e-3),
  "two_grpo": Known(CLIP_ROWS, ROWS, CLIP),
  "two_grpo_dpo": Known(
    *(CLIP_ROWS + 0.1 * PAIR_LOSS, ROWS, CLIP), plain={"dpo_coef": 0.0}
  ),
  "dpo": Known(PAIR_LOSS, ROWS, is_policy_gradient=False),
  "passk": Known(CLIP_TOKENS, TOKENS, CLIP),
  "reinforce": Known(LOG_LIKELIHOOD / 2, SUMS, compares=False),
  "rloo": Known(TRAJECTORY, ACTION, CLIP),
  "reinforce_pp": Known(CLIP_TOKENS, TOKENS, CLIP),
  "reinforce_pp_baseline": Known(CLIP_TOKENS, TOKENS, CLIP, 1e-3, "k2"),
  "remax": Known(LOG_LIKELIHOOD / 2, SUMS, compares=False),  # The greedy one.
  "spo": Known(HIGH_TOKENS, TOKENS, HIGH, compares=False),  # Of the prompt.
  "opo": Known(LOG_LIKELIHOOD / 2, SUMS),
  "gpg": Known(LOG_LIKELIHOOD / 3, TOKENS),
  "otb": Known(CLIP_TOKENS, TOKENS, CLIP),
  # From here on a critic compares.
  "ppo": Known(CLIP_TOKENS + VALUES, TOKENS, CLIP, compares=False),
  "vc_ppo": Known(CLIP_TOKENS + VALUES, TOKENS, CLIP, compares=False),
  "ppo_dpo": Known(
    *(CLIP_TOKENS + VALUES + 0.1 * PAIR_LOSS, TOKENS, CLIP),
    compares=False,
    plain={"dpo_coef": 0.0},
  ),
  # −ℓ of row 0 is 1 − ln 1.5 and 1 + ln 2.
  "vapo": Known(
    HIGH_TOKENS + VALUES + 0.1 * (2 - math.log(0.75)) / 2,
    *(TOKENS, HIGH),
    compares=False,
    plain={"positive_nll_coef": 0.0},
  ),
  # f(1.5) = 1.5 and f(0.5) = 0: the first tokens of both rows cancel.
  "sao": Known(PLAIN_VALUES, TOKENS, compares=False),
  "compaction_rl": Known(
    CLIP_TOKENS + PLAIN_VALUES, TOKENS, CLIP, compares=False
  ),
  # Each token is a turn, and turns have rewards.
  "gagpo": Known(CLIP_TOKENS, TOKENS, CLIP, 0.01, compares=False),
  "gigpo": Known(CLIP_ROWS, ROWS, CLIP, 0.01, compares=False),
  # A teacher judges.
  "opd_token": Known(CLIP_TOKENS, TOKENS, CLIP, compares=False),
  "opd_full": Known(0.3, TOKENS, compares=False, is_policy_gradient=False),
  # ¼ ln ½ + ¼ ln 1 + ½ ln 2.
  "opd_topk": Known(
    0.25 * LN2, TOKENS, compares=False, is_policy_gradient=False
  ),
  # Last tokens: 1 and −1; −log σ(2).
  "bradley_terry": Known(
    math.log(1 + math.exp(-2)), TOKENS, is_policy_gradient=False
  ),
  "sft": Known(1 - math.log(1.5 * 0.5 * 1.5) / 3, TOKENS, compares=False),
}

# Both rows are 100 nats up. Row 0 is clipped above, row 1 is not.
FAR = two(old_logp=LOGP - 100.0)
E20 = math.exp(20)
# Ratio 1. Row 0: A < 0, mean(0.2, 1.0) = 0.6 > 0.5, dropped. Row 1: A < 0,
# 0.4, kept. Row 2: A > 0, 9, kept. Terms −A = (0), 2, −3 over three rows.
SAMPLED = np.full((3, 2), -2.0)
DRIFT = np.array([[0.2, 1.0], [0.4, NAN], [9.0, NAN]])


def off(behavior_logp=SAMPLED + DRIFT, **options) -> dict[str, Any]:
  """Arguments of DeepSeek-V3.2 with these log-probs of the engine."""
  return {
    **{"logp": SAMPLED, "old_logp": SAMPLED, "kl_coef": 0.0},
    **{"mask": ~np.isnan(DRIFT), "advantages": [-1.0, -2.0, 3.0]},
    **{"behavior_logp": behavior_logp, **options},
  }


# A token that the engine did not score counts 0: mean(0, 1.2) = 0.6.
UNSCORED = SAMPLED + np.array([[NAN, 1.2], *DRIFT[1:]])
# The divergence stays on dropped rows: k3 = e − 2 on all rows.
WITH_KL = off(SAMPLED + 0.6, ref_logp=SAMPLED + 1.0, kl_coef=0.1)
AT_TWO = one(2.0, 0.0, ref_logp=[[-LN2]], kl_coef=0.1)
# By token: −2 · 1.2, 0.8 and 1.5, as min(−0.5, −0.8) = −0.8.
BY_TOKEN = two(advantages=np.array([[2.0, -1.0, NAN], [-1.0, NAN, NAN]]))
EQUAL = np.array([1.0, 1.0])
# DPO's own margin with this reference: d = 2 ln 2 − 0.
NEAR = LOGP - np.array([[LN2], [0.0]])
NEAR_LOSS = math.log(1 + 4**-0.1)
OFF_CENTRE = two(values=[[NAN, 1, NAN], [0, NAN, NAN]], center_coef=0.01)
TWO_SLOTS = {"old_logp": np.zeros((1, 2)), "mask": np.ones((1, 2), bool)}
TWO_SLOTS["advantages"] = [1.0]
TINY = {"logp": [[-20.0] * 2], "k_positive": 0.1, **TWO_SLOTS}
# Two pairs: d = 2 with the better row second, and d = −1, at β = 1.
TWO_PAIRS = {
  **{"logp": [[0.0], [2.0], [0.0], [1.0]], "old_logp": None},
  **{"ref_logp": np.zeros((4, 1)), "mask": np.ones((4, 1), bool)},
  **{"rewards": [0, 1, 1, 0], "valid": [True] * 4, "group_id": [0, 0, 1, 1]},
  **{"advantages": None, "beta": 1.0},
}
# Lengths 2 and 1: z = ±1, h = 10/9 and 8/9, difference 2/9 at λ = 1; σ = ½, and
# z is divided by σ + 1e-6.
LONG = 2 / (1 + math.exp(-2 / 9 / (1 + 2e-6)))
WEIGHED = (-(1.28 + 0.5) * LONG + 1.5 * (2 - LONG)) / 3
KL = {"ref_logp": LOGP - LN2, "kl_coef": 1.0}
DROPPED = np.array([[False] * 3, [True] * 3])
# v = 0.9 of R = 1, clipped to 0.2 off v_old = 0: the larger error, 0.8².
CRITIC = one(1.0, 0.0, values=[[0.9]], returns=[[1.0]])
# Advantages 2, 2 and −4, mean 0; ℓ_old −1, −2 and −3, mean −2: covariances
# 2 · 1, 2 · 0 and −4 · −1.
COV_LOGP = np.array([[-1.0, -2.0, NAN], [-3.0, NAN, NAN]])
COV = {"old_logp": COV_LOGP, "mask": MASK, "advantages": [2.0, -4.0]}

LOSSES = [
  ("grpo grpo_ps", FAR, (E20 - 1.2) / 2),
  ("dr_grpo", FAR, (E20 - 2 * 1.2) / 6),
  ("dapo", FAR, (E20 - 2 * 1.28) / 3),
  ("gspo", FAR, (E20 - 1.0004) / 2),
  ("rloo", FAR, (E20 - 1.2) / 2),
  ("tic_grpo", FAR, (E20 - 1.28) / 2),
  ("reinforce_pp", FAR, (E20 - 2 * 1.2) / 3),
  ("gspo_token", FAR, (math.exp(10) - 1.0004) / 2),
  ("luspo", FAR, (math.exp(10) - 2 * 1.0025) / 2),
  ("gmpo", FAR, (E20 - math.exp(0.4)) / 2),
  ("sapo", FAR, (4 / 1.05 - 4) / 2),  # The gates are open.
  ("vespo", FAR, 0.0),  # exp(−λ e^{20}).
  ("dr_grpo", two(budget=30), KNOWN["dr_grpo"].loss / 10),
  # −clip(r, 0, 5) ln r at r = 8 and r = 1/8.
  ("cispo", one(8.0, 1.0), -5 * 3 * LN2),
  ("cispo", one(1 / 8, 1.0), 3 * LN2 / 8),
  # Gates at r = 3: σ(2 τ) · 4 / τ.
  ("sapo", one(3.0, 1.0), -4 / (1 + math.exp(-2))),
  ("sapo", one(3.0, -1.0, tau_negative=2.0), 2 / (1 + math.exp(-4))),
  # φ(2) = e^{3 − 6} 2², and e^{2 − 4} 2³ where A < 0.
  ("vespo", one(2.0, 1.0), -4 * math.exp(-3) * LN2),
  ("vespo", one(2.0, -1.0), 8 * math.exp(-2) * LN2),
  # 30 is limited to 20, 20 − 20 = 0 and φ = 1; then −(30 − 20) / 2.
  ("vespo", {"logp": [[30.0, -20.0]], **TWO_SLOTS}, -5),
  # −40 is limited to ln 1e-8: φ = e³ 1e-8^{0.1} up to 3e-8.
  ("vespo", TINY, 20 * math.exp(3) * 10**-0.8, 1e-6),
  ("reinforce_pp", BY_TOKEN, (-2.4 + 0.8 + 1.5) / 3),
  ("grpo_ps deepseek_v32", BY_TOKEN, (-2.4 + 0.8) / 2 / 2 + 1.5 / 2),
  # −2 s and 0.9997, as s = 0.866.
  ("gspo_token", BY_TOKEN, (-2 * math.sqrt(0.75) + 0.9997) / 2 / 2 + 1.5 / 2),
  ("deepseek_v32", off(), (2 - 3) / 3),
  ("deepseek_v32", off(off_policy_threshold=0.7), (1 + 2 - 3) / 3),
  ("deepseek_v32", off(UNSCORED), (0 + 2 - 3) / 3),
  ("deepseek_v32", WITH_KL, (0 + 0 - 3) / 3 + 0.1 * (math.e - 2)),
  # By default the start of the update stands in: mean(0.6) on both A < 0.
  ("deepseek_v32", off(None, old_logp=SAMPLED + 0.6), -3 * math.exp(-0.6) / 3),
  # r = 2, u = ln 4: r k3 = 2 (1/4 − 1 + ln 4).
  ("deepseek_v32", AT_TWO, 0.1 * 2 * (0.25 - 1 + 2 * LN2)),
  ("dpo", two(ref_logp=NEAR), NEAR_LOSS),
  ("two_grpo_dpo", two(ref_logp=NEAR), CLIP_ROWS + 0.1 * NEAR_LOSS),
  ("dpo", TWO_PAIRS, (math.log1p(math.exp(-2)) + math.log1p(math.e)) / 2),
  ("dpo", two(rewards=EQUAL), 0.0),
  ("two_grpo_dpo", two(rewards=EQUAL), CLIP_ROWS),
  ("two_grpo_dpo", two(dpo_coef=2.0, beta=0.0), CLIP_ROWS + 2 * LN2),
  # Scores 1 and −1: −log σ(2 − 2) and a sum of 0; then 1 and 0.
  ("bradley_terry", two(margin=2.0, center_coef=1.0), LN2),
  ("bradley_terry", OFF_CENTRE, math.log1p(math.exp(-1)) + 0.01),
  ("ppo", two(value_clip=0.0), CLIP_TOKENS + PLAIN_VALUES),
  ("ppo", CRITIC, 0.5 * 0.64),
  ("lambda_grpo", two(lam=np.array(1.0)), WEIGHED),
  # The divergence is not weighed.
  ("lambda_grpo", two(lam=1.0, **KL), WEIGHED + LN2 - 0.5),
  # Without row 1's 1.5; all three tokens still count.
  ("clip_cov", two(dropped=DROPPED), -(1.2 + 0.5) / 3),
  ("clip_cov", two(dropped=DROPPED, **KL), -(1.2 + 0.5) / 3 + LN2 - 0.5),
  # Δ = 30, and every ratio e^20 after the clamp, of which −2 − 2 + 4 = 0 are
  # left; the chosen token pays its 30 nats, half a nat each.
  ("kl_cov", COV | {"logp": COV_LOGP + 30.0, "cov_kl_coef": 0.5}, 15 / 3),
]

# At fixed `frozen_logp`, off-policy: −weight × constant × A.
BAND = {"ratio_min": 0.7, "ratio_max": 1.2}
GRADIENTS = [
  ("gspo_token", {}, [[-math.sqrt(0.75) / 4] * 2 + [0], [1.5 / 2, 0, 0]]),
  ("cispo", BAND, [[-1.2 / 3, -0.7 / 3, 0], [1.2 / 3, 0, 0]]),
  ("vespo", {}, [[-PHI[0] / 3, -PHI[0] / 3, 0], [PHI[1] / 3, 0, 0]]),
]


def group(rewards, group_id=0, **more) -> dict[str, Any]:
  """Rows with these rewards, of which NaN are not scored."""
  rewards = np.array(rewards, float)
  names = np.broadcast_to(group_id, rewards.shape)
  return {
    **{"rewards": rewards, "valid": ~np.isnan(rewards), "group_id": names},
    **more,
  }


def bits(rows: str) -> np.ndarray:  # [B, T] bool
  """Mask of such rows as "110"."""
  return np.array([[bit == "1" for bit in row] for row in rows.split()])


# Groups 7, 2 and 5, interleaved. Group 7: rewards 1 and 3, μ = 2, σ = √2.
# Group 2: rewards 0, 0, 1 and an unscored row, μ = 1/3, σ² = 1/3. Group 5: one.
GROUPS = group(
  *([1.0, 0.0, 3.0, 0.0, NAN, 1.0, 0.9], [7, 2, 7, 2, 2, 2, 5]),
  mask=bits("100 110 111 100 111 100 110"),
)
STANDARDIZED = (
  "grpo dapo gspo gspo_token gmpo cispo tic_grpo sapo luspo vespo lambda_grpo"
  " clip_cov kl_cov two_grpo two_grpo_dpo"
)
S2, S3 = math.sqrt(2) + 1e-6, math.sqrt(1 / 3) + 1e-6
LOW, TOP = -1 / 3 / S3, 2 / 3 / S3
# Equal rewards and an unscored row.
SAME = group([1, 0.7, 3, NAN, 0.7], [7, 2, 7, 2, 2], mask=np.ones((5, 2), bool))
LONE = group([0.9])
# R / n = 2 / 2 and 3 / 1: μ = 2, σ = √2. An empty row is divided by 1.
BY_LENGTH = group([2, 3, 5], [0, 0, 1], mask=bits("11 10 00"))
BY_LENGTH["length_corrected"] = True
# Returns 2 and 1.5 across the hole, −0.5: mean 1, variance 3.5 / 2.
HOLE = group([2, 0, NAN], mask=bits("101 100 111"))
NONE = [NAN] * 3
DENSE = HOLE | {"token_rewards": [[0.5, NAN, -0.5], [-0.5, NAN, NAN], NONE]}
RETURN = np.array([[1, 0, 0.5], [-1.5, 0, 0], [0] * 3])
# γ = ½, once across the hole: 0.5 + 1.5 / 2 = 1.25; mean 0.75.
DISCOUNTED = np.array([[0.5, 0, 0.75], [-1.25, 0, 0], [0] * 3])
# Outcomes only: 2, 2, 0 with mean 4/3 and variance 4/3.
OUTCOME = np.array([[2, 0, 2], [-4, 0, 0], [0] * 3]) / 3
# Tokens −1, −1, 1 and 0: mean −1/4, squares 9/16, 9/16, 25/16, 1/16. With the
# lone row's reward 0.9, mean −0.025.
WHITE = group([1, 3, 0.9, NAN], [4, 4, 1, 1], mask=bits("11 01 10 11"))
WHITENED = np.array([[-0.75, -0.75], [0, 1.25], [0.25, 0], [0, 0]])
RAW = np.array([[-0.975, -0.975], [0, 1.025], [0.925, 0], [0, 0]])
# w = 1 − 2π + Σπ². Row 0: 1 − 1 + ½ = ½ and 1 − ½ + ½ = 1, so W = ½, 3/2.
# Row 1: 1 − 1 + 1 = 1, W = 1, then a hole, then 1 − ½ + ½ = 1, W = 2.
# Slot 0: b = (½ · 1 + 1 · 0) / (3/2) = 1/3. Alone in slots 1 and 2, and in its
# group, a row is its own baseline.
ENERGY = group(
  *([1, 0, NAN, 3], [6, 6, 6, 0]),
  old_logp=np.log([[0.5, 0.25, NAN], [0.5, NAN, 0.25], NONE, [1] * 3]),
  sum_pi_squared=[[0.5, 0.5, NAN], [1, NAN, 0.5], NONE, [1.5] * 3],
  mask=bits("110 101 111 111"),
)
# Steps 0 and 3 of row 0, 3 of row 1: μ = 2, σ² = (4 + 1 + 1) / 2 = 3.
# Row 0: 1 from the last step, −2 + 1 before the first ends, a hole between.
# Row 1: 1, 1 and nothing after its last step. Row 3: a lone step.
STEPS = group(
  *([NAN] * 4, [3, 3, 3, 0]),
  step_mask=bits("101 010 111 001"),
  step_rewards=[[0, NAN, 3], [NAN, 3, NAN], NONE, [NAN, NAN, 4]],
  mask=bits("101 111 111 111"),
)
STEPS["valid"] = [True, True, False, True]
OF_STEPS = np.array([[-1, 0, 1], [1, 1, 0], [0] * 3, [0] * 3])
# Group 4: best row 0 (first of two), worst row 3; row 5 is unscored, row 6 has
# no tokens. Group 9: equal. Group 1: alone.
PAIRS = group(
  *([1, 0.5, 0.5, 0, 1, NAN, 2, 0.3, 0.4], [4, 9, 9, 4, 4, 4, 4, 1, 4]),
  mask=bits("11 11 11 11 11 11 00 11 11"),
)
# Row 0: a hole at slot 1; δ = 0.25 − 0.5 = −0.25 and 1 − 0.25 = 0.75; Â_0 =
# −0.25 + 0.95·0.75 = 0.4625. Row 1: 2 − 1 = 1. Row 2 is unscored. Mean 2.2125/3
# = 0.7375; deviations −0.275, 0.0125, 0.2625; var = (0.075625 + 0.00015625 +
# 0.06890625)/2 = 0.07234375.
OLD_VALUES = [[0.5, NAN, 0.25], [1, NAN, NAN], [3, 4, 5]]
GAE = HOLE | {"rewards": [1, 2, NAN], "old_values": OLD_VALUES}
GAES = np.array([[-0.275, 0, 0.0125], [0.2625, 0, 0], [0] * 3])
LONE_VALUE = LONE | {"mask": [[True]], "old_values": [[0.0]]}
# λ = 1: the return itself, 1 discounted once over the hole, and the dense
# reward of a masked slot is not paid.
TO_GO = GAE | {"token_rewards": [[0.1, NAN, 0.2], [0.3, NAN, NAN], NONE]}
TO_GO |= {"gamma": 0.5, "lam_critic": 1.0}


def of_lambda(first: float) -> np.ndarray:  # [3, 3]
  """PPO's advantages if Â_0 of row 0 is this."""
  raw = np.array([first, 0.75, 1.0])
  a, b, c = (raw - raw.mean()) / math.sqrt(raw.var(ddof=1) + 1e-8)
  return np.array([[a, 0, b], [c, 0, 0], [0, 0, 0]])


# Two right rows of 3 and 2 tokens, two wrong rows of 2.
SHAPED = group([1, 1, 0, 0], 6, mask=bits("111 110 110 110"))
SHAPED["correct"] = [True, True, False, False]
SHAPED["behavior_entropy"] = np.array(
  [[0.1, 0.3, 0.5], [0.3, 0.1, NAN], [0.5, 0.25, NAN], [0.25, 0.25, NAN]]
)
RAW_SHAPED = SHAPED | {"normalization": "none"}
SPLIT_SHAPED = SHAPED | {"normalization": "split"}
# t = 0: 1 + 0.1 · 2 · 0.1/0.4 = 1.05 and 1.15; −1 − 0.1 · 2 · 2/6 and 4/6.
GTPO = np.array(
  [[1.05, 1.15, 1.1], [1.15, 1.05, 0], [-16 / 15, -1.1, 0], [-17 / 15, -1.1, 0]]
)
# Right 5.5, wrong −4.4 over nine tokens: mean 1.1/9.
JOINT = np.where(SHAPED["mask"], GTPO - 1.1 / 9, 0)
JOINT /= math.sqrt((JOINT**2).sum() / 9) + 1e-6
# H̄ = 0.3, 0.2: 1 + 0.2 · 0.6; H̄ = 0.375, 0.25: −1 − 0.2 · 0.4 and 0.6. Mean 0,
# σ² = (1.12² + 1.08²)/2 = 1.2104.
GRPO_S = np.array([1.12, 1.08, -1.08, -1.12])
# Right: deviations ∓.05, ±.05, 0, σ² = 0.01/5; wrong: mean −1.1, ±1/30, 0, 0,
# σ² = 2/900/4.
R, W = 0.05 / math.sqrt(0.002), 1 / 30 / math.sqrt(2 / 900 / 4)
NO_ENTROPY = RAW_SHAPED | {"behavior_entropy": np.zeros((4, 3))}
# α2 = 0 leaves ±α1; with one value in a pool the advantage is exactly 0.
FLAT = {"alpha2": 0.0}
RIGHT = SHAPED | {"correct": [True] * 4, **FLAT}
SIGNS = np.array([[1, 1, 1], [1, 1, 0], [-1, -1, 0], [-1, -1, 0]])


def edge(row_entropies, **options) -> dict[str, Any]:
  """Rewards 1, 0, 1, 0: ±√3/2 (ddof 1) times the factor."""
  entropy = [[h, NAN] for h in row_entropies]
  mask = bits("10 10 10 10")
  return group([1, 0, 1, 0], behavior_entropy=entropy, mask=mask, **options)


EDGE = np.array([1, -1, 1, -1]) / 2 / (math.sqrt(1 / 3) + 1e-6)
# One of 20 rows has entropy, 20 times the mean: 1/20 becomes 1/10. 1/0 becomes
# 10. σ² = 5/19.
ONE_OF_20 = group(np.arange(20) % 2, mask=np.ones((20, 1), bool))
ONE_OF_20["behavior_entropy"] = np.eye(20)[:, :1]
OF_20 = np.array([-0.1] + [10, -10] * 9 + [10]) / 2 / (math.sqrt(5 / 19) + 1e-6)
# Mean 10: factors 20 and 10/38.5, limited to 2 and to 1/2.
LIMITED = edge([0.5, 0.5, 0.5, 38.5], factor_min=0.5, factor_max=2.0)
OBJECTIVES = group(np.zeros(4), components=[[1, 10], [0, 20], [1, 30], [0, 40]])
EXACT = OBJECTIVES | {"ddof": 0, "eps": 0.0, "batch_eps": 0.0}
# ddof 0: 1, −1, 1, −1 plus (−15, −5, 5, 15)/√125. ddof 1 is √(3/4) of it.
MO = np.array([-0.341641, -1.447214, 1.447214, 0.341641])
# One group: the sums have mean 0 and, with ddof 0, σ² = (0.341641² +
# 1.447214²)/2 = 1.105573; with ddof 1 the two factors √(3/4) remain one.
GDPO = np.array([-0.32492, -1.376382, 1.376382, 0.32492])
# Over the batch. Group 0: ±1/√2; group 1: equal, 0; one unscored row. Mean 0,
# var 1/3.
OVER_BATCH = group([0, 0, 0, NAN, 0], [0, 1, 0, 1, 1])
OVER_BATCH["components"] = [[3.0], [2.0], [1.0], [NAN], [2.0]]
OF_BATCH = np.array([1, 0, -1, 0, 0]) / S2 / (math.sqrt(2 / S2**2 / 3) + 1e-4)
# Component 0 applies to rows 0 and 1; 1 is constant; 2 applies to one row.
PARTLY = group([0, 0, 0, NAN])
PARTLY["components"] = [[2, 0.7, NAN], [4, 0.7, NAN], [NAN, 0.7, 5], [9] * 3]
GAPS = group(
  [0, 0, NAN],
  ref_logp=[[-1.5, -80.0, NAN], [-0.5, 7, 7], [-3.0, -3, -3]],
  old_logp=[[-1.0, -1.0, NAN], [-2.0, NAN, 7], [-1.0, -1, -1]],
  mask=bits("110 100 111"),
)
FAR_TEACHER = {"ref_logp": [[-9.0]], "old_logp": [[-1.0]], "mask": [[True]]}
# Eight completions of one prompt, of which four are kept. The shortest are rows
# 0, 2, 3 and 5, half of them right: mean ½, σ ½. The most efficient are the
# right ones: equal rewards, no advantage.
KEPT = group([1, 1, 0, 1, 0, 0, 1, 0], num_kept=4)
KEPT["mask"] = np.arange(30) < np.c_[[5, 12, 3, 8, 20, 6, 30, 9]]
GREEDY = {"greedy_rewards": [0.5, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0]}
COUNTED = {"baseline": np.arange(7.0)}

ADVANTAGES = [
  (STANDARDIZED, {}, [-1 / S2, LOW, 1 / S2, LOW, 0, TOP, 0]),
  (STANDARDIZED, SAME, [-1 / S2, 0, 1 / S2, 0, 0]),
  ("dr_grpo deepseek_v32", {}, [-1, -1 / 3, 1, -1 / 3, 0, 2 / 3, 0]),
  ("grpo dr_grpo", LONE, [0.0]),
  ("grpo dr_grpo", LONE | {"singleton": "raw"}, [0.9]),
  ("reinforce", {}, [1, 0, 3, 0, 0, 1, 0.9]),
  ("reinforce", {"baseline": 0.5}, [0.5, -0.5, 2.5, -0.5, 0, 0.5, 0.4]),
  ("reinforce", COUNTED, [1, -1, 1, -3, 0, -4, -5.1]),
  ("sft opd_full opd_topk", {}, [1, 1, 1, 1, 0, 1, 1]),
  ("tic_grpo", BY_LENGTH, [-1 / S2, 1 / S2, 0]),
  # 1 − 3, 3 − 1; 0 − (0 + 1)/2 twice, 1 − 0.
  ("rloo", {}, [-2, -0.5, 2, -0.5, 0, 1, 0]),
  # 3 leads by 2, 1 leads by 1. Then there is a tie.
  ("passk", {}, [0, 0, 2, 0, 0, 1, 0]),
  ("passk", group([1, 1, 0]), [0, 0, 0]),
  # Six valid rows, four of them not 0: α = 1.5.
  ("gpg", {}, [-1.5, -0.5, 1.5, -0.5, 0, 1, 0]),
  ("gpg", {"normalizer": 2.0}, [-0.75, -0.25, 0.75, -0.25, 0, 0.5, 0]),
  ("gpg", group([0, 0, 0], [0, 0, 1]), [0, 0, 0]),
  ("remax", GREEDY, [0.5, -1, 2, 0, 0, 1, -0.1]),
  # Group 7: (1·1 + 3·3) / 4 = 2.5. Group 2: (2·0 + 1·0 + 1·1) / 4.
  ("opo", {}, [-1.5, -0.25, 0.5, -0.25, 0, 0.75, 0]),
  # Without tokens there is no baseline.
  ("opo", group([2], mask=bits("000")), [2]),
  ("reinforce_pp", DENSE, RETURN / math.sqrt(1.75 + 1e-8)),
  ("reinforce_pp", DENSE | {"gamma": 0.5}, DISCOUNTED / (1.1875 + 1e-8) ** 0.5),
  ("reinforce_pp", HOLE, OUTCOME / math.sqrt(4 / 3 + 1e-8)),
  ("reinforce_pp", group([5], mask=bits("10")), [[0, 0]]),
  ("reinforce_pp_baseline", WHITE, WHITENED / math.sqrt(2.75 / 3 + 1e-8)),
  (
    *("reinforce_pp_baseline", WHITE | {"singleton": "raw"}),
    RAW / math.sqrt((RAW**2).sum() / 3 + 1e-8),
  ),
  ("otb", ENERGY, [[2 / 3, 0, 0], [-1 / 3, 0, 0], [0] * 3, [0] * 3], 1e-7),
  ("grpo_ps", STEPS, OF_STEPS / (math.sqrt(3) + 1e-6)),
  ("grpo_ps", STEPS | {"ddof": 0, "eps": 0.0}, OF_STEPS / math.sqrt(2)),
  ("dpo bradley_terry", PAIRS, [1, 0, 0, -1, 0, 0, 0, 0, 0]),
  ("ppo", GAE, GAES / math.sqrt(0.07234375 + 1e-8)),
  # α = 1: λ = 1 − 1/2 for row 0: −0.25 + 0.5 · 0.75 = 0.125; row 1, λ = 0: 1.
  # α = 0.05: λ = 1 − 10 < 0, limited to 0: −0.25.
  ("ppo", GAE | {"length_adaptive_alpha": 1.0}, of_lambda(0.125)),
  ("ppo", GAE | {"length_adaptive_alpha": 0.05}, of_lambda(-0.25)),
  ("ppo", LONE_VALUE, [[0.0]]),
  ("gtpo", RAW_SHAPED, GTPO, 1e-6),
  ("grpo_s", RAW_SHAPED, GRPO_S, 1e-6),
  ("gtpo", SHAPED, JOINT, 1e-5),
  ("grpo_s", SHAPED, GRPO_S / math.sqrt(1.2104), 1e-5),
  # 1.12 and 1.08 are ±1, and so are −1.08 and −1.12. σ + 1e-6, σ = 0.02.
  ("grpo_s", SPLIT_SHAPED, [1, -1, 1, -1], 1e-4),
  # 1/(H + 1e-6), divided by σ.
  ("gtpo", SPLIT_SHAPED, [[-R, R, 0], [R, -R, 0], [W, 0, 0], [-W, 0, 0]], 1e-3),
  ("gtpo", RAW_SHAPED | FLAT | {"alpha1": 2.0}, 2 * SIGNS),
  ("gtpo", RIGHT, 0 * SIGNS),
  ("gtpo", SPLIT_SHAPED | FLAT, 0 * SIGNS),
  ("grpo_s", RIGHT, np.zeros(4)),
  ("grpo_s", SPLIT_SHAPED | FLAT, np.zeros(4)),
  # It is shared equally.
  ("grpo_s", NO_ENTROPY, [1.1, 1.1, -1.1, -1.1]),
  ("gtpo", NO_ENTROPY, 1.1 * SIGNS),
  # Mean entropy 0.5 over 0.2, 0.4, 0.4 and 1.
  ("edge_grpo", edge([0.2, 0.4, 0.4, 1]), EDGE * [2.5, 1.25, 1.25, 0.5]),
  ("edge_grpo", edge([0.3] * 4), EDGE),
  # Mean 1: factors 1/0 limited to 10, and 1/4.
  ("edge_grpo", edge([0, 0, 0, 4]), EDGE * [10, 10, 10, 0.25]),
  ("edge_grpo", LIMITED, EDGE * [2, 2, 2, 0.5]),
  ("edge_grpo", ONE_OF_20, OF_20),
  ("mo_grpo", EXACT, MO, 1e-6),
  ("mo_grpo", OBJECTIVES, math.sqrt(0.75) * MO, 3e-6),
  ("mo_grpo", EXACT | {"component_weights": [2.0, 0.0]}, [2, -2, 2, -2]),
  ("gdpo", EXACT, GDPO, 1e-6),
  ("gdpo", OBJECTIVES, math.sqrt(0.75) * GDPO, 3e-4),
  ("gdpo", OVER_BATCH, OF_BATCH),
  ("mo_grpo", PARTLY, [-1 / S2, 1 / S2, 0, 0]),
  ("opd_token", GAPS, [[-0.5, -20, 0], [1.5, 0, 0], [0, 0, 0]]),
  ("opd_token", LONE | FAR_TEACHER | {"opd_clamp": 2.0}, [[-2.0]]),
  ("gfpo", KEPT, [1, 0, -1, 1, 0, -1, 0, 0], 1e-5),
  ("gfpo", KEPT | {"metric": "efficiency"}, np.zeros(8)),
]

# What a critic learns.
RETURNS = [
  ("ppo", GAE, [[0.9625, 0, 1], [2, 0, 0], [0, 0, 0]]),
  ("ppo", TO_GO, [[0.1 + 0.5 * 1.2, 0, 1.2], [2.3, 0, 0], [0, 0, 0]]),
]
