"""Hand-worked answers for the references of the second group of algorithms."""

import math

import numpy as np
import pytest

from tests.references import (
  bradley_terry,
  clip_cov,
  common,
  dpo,
  edge_grpo,
  gdpo,
  gfpo,
  grpo_s,
  gtpo,
  kl_cov,
  lambda_grpo,
  mo_grpo,
  more_b,
  opd_full,
  opd_token,
  opd_topk,
  ppo,
  two_grpo,
  two_grpo_dpo,
)

NAN = float("nan")
LN2 = math.log(2)

# Two completions of 2 and 1 tokens, three slots; ratios 1.5 and 0.5, then 1.5.
MASK = np.array([[True, True, False], [True, False, False]])
OLD_LOGP = np.full((2, 3), -1.0)
LOGP = OLD_LOGP + np.log([[1.5, 0.5, 1.0], [1.5, 1.0, 1.0]])
ADVANTAGES = np.array([1.0, -1.0])
PAIR = {
  "rewards": np.array([1.0, 0.0]),
  "valid": np.array([True, True]),
  "group_id": np.array([3, 3]),
}
# The arrays that a loss needs beside those that all take.
CRITIC = {
  "values": np.array([[0.5, 1.0, NAN], [-1.0, NAN, NAN]]),
  "old_values": np.array([[0.0, 1.0, NAN], [0.0, NAN, NAN]]),
  "returns": np.array([[1.0, 1.0, NAN], [0.0, NAN, NAN]]),
}
TOPK = {
  "topk_logp": np.log(np.full((2, 3, 2), 0.25)),
  "ref_topk_logp": np.log(np.broadcast_to([0.5, 0.25], (2, 3, 2))),
}
ARRAYS = {
  lambda_grpo: {"group_id": PAIR["group_id"]},
  dpo: {**PAIR, "ref_logp": OLD_LOGP},
  two_grpo_dpo: {**PAIR, "ref_logp": OLD_LOGP},
  ppo: CRITIC,
  opd_full: {"ref_kl": np.array([[0.3, 0.6, NAN], [0.0, NAN, NAN]])},
  opd_topk: TOPK,
  bradley_terry: {**PAIR, "values": CRITIC["values"]},
}

# By hand, without divergence or entropy. Row 0, A = 1: min(1.5, 1.2) = 1.2, or
# 1.28, and min(0.5, 0.8) = 0.5. Row 1, A = −1: min(−1.5, −1.2) = −1.5.
TOKEN_MEAN = (-(1.2 + 0.5) + 1.5) / 3
TOKEN_MEAN_HIGH = (-(1.28 + 0.5) + 1.5) / 3
ROW_MEAN = (-(1.2 + 0.5) / 2 + 1.5) / 2
# d = ln 0.75 − ln 1.5 = −ln 2, and −log σ(−0.1 ln 2) = log(1 + 2^0.1).
PAIR_LOSS = math.log(1 + 2**0.1)
POLICY_LOSS = {
  lambda_grpo: TOKEN_MEAN_HIGH,  # λ = 0: every weight is 1
  clip_cov: TOKEN_MEAN,
  # ℓ_old is constant: all covariances tie at 0 and the first token is chosen.
  kl_cov: (-1.5 + math.log(1.5) - 0.5 + 1.5) / 3,
  two_grpo: ROW_MEAN,
  dpo: PAIR_LOSS,
  two_grpo_dpo: ROW_MEAN + 0.1 * PAIR_LOSS,
  # ½ max: v = 0.5, clipped 0.2, R = 1: 0.64; v = R = 1: 0; v = −1, clipped
  # −0.2, R = 0: 1.
  ppo: TOKEN_MEAN + (0.5 * 0.64 + 0.5 * 1) / 3,
  gtpo: TOKEN_MEAN_HIGH,
  grpo_s: (-1 + 1.5) / 2,  # mean ratios 1 and 1.5
  edge_grpo: ROW_MEAN,
  mo_grpo: ROW_MEAN,
  gdpo: ROW_MEAN,
  opd_token: TOKEN_MEAN,
  opd_full: 0.3,
  # ¼ ln ½ + ¼ ln 1 + ½ ln 2.
  opd_topk: 0.25 * LN2,
  # Last tokens: 1 and −1; −log σ(2).
  bradley_terry: math.log(1 + math.exp(-2)),
}
ALL = list(POLICY_LOSS)
ROW_LOSSES = (two_grpo, two_grpo_dpo, grpo_s, edge_grpo, mo_grpo, gdpo)


def named(algorithm):
  return algorithm.__name__.rsplit(".")[-1]


def loss_of(algorithm, logp=LOGP, mask=MASK, **options):
  options = {**ARRAYS.get(algorithm, {}), **options}
  return algorithm.loss(logp, OLD_LOGP, mask, ADVANTAGES, **options)


# --- losses ------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALL, ids=named)
def test_policy_loss_by_hand(algorithm):
  np.testing.assert_allclose(
    loss_of(algorithm), POLICY_LOSS[algorithm], rtol=1e-11
  )


@pytest.mark.parametrize(
  "algorithm", [a for a in ALL if a is not bradley_terry], ids=named
)
def test_divergence_and_entropy_by_hand(algorithm):
  # u = ln 2 at row 0 and 0 at row 1: k3 = 1/2 − 1 + ln 2 at two of 3 tokens.
  # DPO's own margin with this reference: d = 2 ln 2 − 0.
  pair = math.log(1 + 4**-0.1)
  policy = {dpo: pair, two_grpo_dpo: ROW_MEAN + 0.1 * pair}.get(
    algorithm, POLICY_LOSS[algorithm]
  )
  mean_k3 = (LN2 - 0.5) * (1 / 2 if algorithm in ROW_LOSSES else 2 / 3)
  loss = loss_of(
    algorithm,
    ref_logp=LOGP - np.array([[LN2], [0.0]]),
    kl_coef=0.1,
    entropy=np.array([[1.0, 2.0, NAN], [4.5, NAN, NAN]]),  # mean 2.5
    entropy_coef=0.01,
  )
  np.testing.assert_allclose(
    loss, policy + 0.1 * mean_k3 - 0.01 * 2.5, rtol=1e-11
  )


@pytest.mark.parametrize("garbage", [NAN, math.inf, -math.inf, 1e9])
@pytest.mark.parametrize("algorithm", ALL, ids=named)
def test_masked_positions_and_empty_rows_do_not_count(algorithm, garbage):
  mask = np.pad(MASK, ((0, 1), (0, 1)))

  def pad(x):  # [B, ...] or [B, T, ...], with garbage where masked
    if x.ndim == 1:
      return np.append(x, x[-1])
    ends = [(0, 1), (0, 1)] + [(0, 0)] * (x.ndim - 2)
    keep = mask.reshape(mask.shape + (1,) * (x.ndim - 2))
    return np.where(keep, np.pad(x, ends), garbage)

  arrays = {k: pad(v) for k, v in ARRAYS.get(algorithm, {}).items()}
  if algorithm is not bradley_terry:
    arrays.update(ref_logp=pad(OLD_LOGP), kl_coef=0.1)
    arrays.update(entropy=pad(np.ones((2, 3))), entropy_coef=0.1)
  if "rewards" in arrays:
    arrays["rewards"][2] = 9.0  # the best of its group, but without tokens
  loss = algorithm.loss(
    pad(LOGP), pad(OLD_LOGP), mask, np.append(ADVANTAGES, garbage), **arrays
  )
  plain = {}
  if algorithm is not bradley_terry:
    plain = {"ref_logp": OLD_LOGP, "kl_coef": 0.1}
    plain |= {"entropy": np.ones((2, 3)), "entropy_coef": 0.1}
  np.testing.assert_allclose(loss, loss_of(algorithm, **plain), rtol=1e-12)


@pytest.mark.parametrize("algorithm", ALL, ids=named)
def test_without_tokens_the_loss_is_zero(algorithm):
  assert loss_of(algorithm, mask=np.zeros((2, 3), bool)) == 0.0


CLIPPED = {a: 0.2 for a in (clip_cov, two_grpo, two_grpo_dpo, edge_grpo)}
CLIPPED |= {a: 0.2 for a in (mo_grpo, gdpo, ppo, opd_token)}
CLIPPED |= {a: 0.28 for a in (lambda_grpo, gtpo, grpo_s)}


@pytest.mark.parametrize("algorithm", CLIPPED, ids=named)
def test_bounds_of_the_ratio(algorithm):
  # One token, without pair and critic error. Clip: r = 2, A = 1 gives
  # −(1 + high); r = ½, A = −1 gives 1 − 0.2. Dual clip: r = 5, A = −2 gives
  # min(10, 3 · 2). Cap: min(5, 2) · 2 = 4. Clamp: e^20, or e^30 without.
  one = np.ones((1, 1), bool)
  arrays = {
    two_grpo_dpo: {
      "rewards": [1.0],
      "valid": [True],
      "group_id": [0],
      "ref_logp": [[0.0]],
    },
    lambda_grpo: {"group_id": [0]},
    ppo: {k: [[0.0]] for k in ("values", "old_values", "returns")},
  }.get(algorithm, {})
  for log_ratio, advantage, options, expected in (
    (LN2, 1, {}, -1 - CLIPPED[algorithm]),
    (-LN2, -1, {}, 0.8),
    (LN2, 1, {"clip_high": 0.5}, -1.5),
    (-LN2, -1, {"clip_low": 0.4}, 0.6),
    (math.log(5), -2, {}, 10.0),
    (math.log(5), -2, {"dual_clip": 3.0}, 6.0),
    (math.log(5), 2, {"dual_clip": 3.0, "clip_high": 9.0}, -10.0),
    (math.log(5), -2, {"ratio_cap": 2.0}, 4.0),
    (30.0, -1, {}, math.exp(20)),
    (30.0, -1, {"log_ratio_clamp": None}, math.exp(30)),
  ):
    loss = algorithm.loss(
      [[log_ratio]], [[0.0]], one, [advantage], **arrays, **options
    )
    assert loss == pytest.approx(expected, rel=1e-12)


# --- group-standardised ------------------------------------------------------


@pytest.mark.parametrize(
  "algorithm",
  [lambda_grpo, clip_cov, kl_cov, two_grpo, two_grpo_dpo],
  ids=named,
)
def test_standardized_advantages_by_hand(algorithm):
  # Group 7: 1 and 3, σ = √2. Group 2: equal rewards and an unscored row.
  advantages = algorithm.advantages(
    [1.0, 0.7, 3.0, NAN, 0.7], [1, 1, 1, 0, 1], [7, 2, 7, 2, 2]
  )
  unit = 1 / (math.sqrt(2) + 1e-6)
  np.testing.assert_allclose(advantages, [-unit, 0, unit, 0, 0], rtol=1e-14)


# --- λ-GRPO ------------------------------------------------------------------


def test_length_weights_by_hand():
  # Lengths 1 and 3: z = ∓1, h = 8/9 and 10/9. At λ = 2, h² = 64/81, 100/81;
  # their difference is 4/9. The empty row and the lone row change nothing.
  mask = np.array([[1, 0, 0], [0, 1, 0], [1, 1, 1], [0, 0, 0]], bool)
  group_id = [5, 1, 5, 5]
  short = 2 / (1 + math.exp(4 / 9))
  np.testing.assert_allclose(
    lambda_grpo.length_weights(mask, group_id, 2.0),
    [short, 1.0, 2 - short, 0.0],
    rtol=1e-6,  # std + 1e-6
  )
  assert lambda_grpo.length_weights(mask, group_id, 0.0) == [1, 1, 1, 0]
  # ρ = 2: h = −1, limited to h_min, and 3.
  short = 2 / (1 + math.exp(3 - 1e-3))
  weights = lambda_grpo.length_weights(mask, group_id, 1.0, rho=2.0)
  np.testing.assert_allclose(weights[0], short, rtol=1e-5)


def test_lambda_grpo_weighs_rows_by_length():
  # Lengths 2 and 1: z = ±1, h = 10/9 and 8/9, difference 2/9 at λ = 1. The
  # divergence is not weighed.
  long = 2 / (1 + math.exp(-2 / 9))
  loss = loss_of(lambda_grpo, lam=np.array(1.0))
  expected = (-(1.28 + 0.5) * long + 1.5 * (2 - long)) / 3
  np.testing.assert_allclose(loss, expected, rtol=1e-5)
  ref_logp = LOGP - LN2
  with_kl = loss_of(lambda_grpo, lam=1.0, ref_logp=ref_logp, kl_coef=1.0)
  np.testing.assert_allclose(with_kl - loss, LN2 - 0.5)


# --- Clip-Cov and KL-Cov -----------------------------------------------------

# Advantages 2, 2 and −4, mean 0; ℓ_old −1, −2 and −3, mean −2: covariances
# 2 · 1, 2 · 0 and −4 · −1.
COV_LOGP = np.array([[-1.0, -2.0, NAN], [-3.0, NAN, NAN]])
COV = np.array([[2.0, 0.0, 0.0], [4.0, 0.0, 0.0]])


def test_covariance_by_hand():
  np.testing.assert_allclose(
    more_b.covariance(COV_LOGP, MASK, [2.0, -4.0]), COV
  )


def test_clip_cov_by_hand():
  arguments = (COV_LOGP, MASK, [2.0, -4.0])
  np.testing.assert_array_equal(
    clip_cov.candidates(*arguments), [[1, 0, 0], [1, 0, 0]]
  )
  # The interval is open.
  np.testing.assert_array_equal(
    clip_cov.candidates(*arguments, cov_low=2.0, cov_high=4.0), False
  )
  assert clip_cov.num_dropped(*arguments) == 1
  assert clip_cov.num_dropped(*arguments, cov_fraction=1.0) == 2
  assert clip_cov.num_dropped(*arguments, cov_low=2.0, cov_high=4.0) == 0


def test_covariance_options_by_default():
  # A = ±1 and ℓ_old symmetric about 0: the covariances are |ℓ_old|.
  row = np.array([0.9, 1.1, 4.9, 5.1])
  np.testing.assert_array_equal(
    clip_cov.candidates([row, -row], np.ones((2, 4), bool), [1.0, -1.0]),
    [[0, 1, 1, 0]] * 2,
  )
  # 2e-4 of 10,000 tokens, the outermost of a line on which A = ℓ_old.
  line = np.linspace(-3.0, 3.0, 10_000)[None]
  many = (line, np.ones(line.shape, bool), line)
  assert clip_cov.num_dropped(*many) == 2
  np.testing.assert_array_equal(
    np.flatnonzero(kl_cov.chosen(*many)), [0, 9_999]
  )


def test_clip_cov_drops_only_the_policy_term():
  # Without row 1's 1.5; all three tokens still count.
  dropped = np.array([[False] * 3, [True] * 3])
  loss = loss_of(clip_cov, dropped=dropped)
  np.testing.assert_allclose(loss, -(1.2 + 0.5) / 3)
  with_kl = loss_of(clip_cov, dropped=dropped, ref_logp=LOGP - LN2, kl_coef=1.0)
  np.testing.assert_allclose(with_kl - loss, LN2 - 0.5)


def test_kl_cov_by_hand():
  arguments = (COV_LOGP, MASK, [2.0, -4.0])
  np.testing.assert_array_equal(
    kl_cov.chosen(*arguments), [[0, 0, 0], [1, 0, 0]]
  )
  np.testing.assert_array_equal(
    kl_cov.chosen(*arguments, cov_fraction=0.7), [[1, 0, 0], [1, 0, 0]]
  )
  np.testing.assert_array_equal(
    kl_cov.chosen(*arguments, cov_fraction=0.6), [[0, 0, 0], [1, 0, 0]]
  )
  # Δ = 30, and every ratio e^20 after the clamp, of which −2 − 2 + 4 = 0 are
  # left; the chosen token pays its 30 nats, half a nat each.
  loss = kl_cov.loss(COV_LOGP + 30.0, *arguments, cov_kl_coef=0.5)
  np.testing.assert_allclose(loss, 15 / 3)


# --- pairs -------------------------------------------------------------------


def test_pairs_by_hand():
  # Group 4: best row 0 (first of two), worst row 3; row 5 is unscored, row 6
  # has no tokens. Group 9: equal. Group 1: alone.
  rewards = np.array([1.0, 0.5, 0.5, 0.0, 1.0, NAN, 2.0, 0.3, 0.4])
  valid = np.array([1, 1, 1, 1, 1, 0, 1, 1, 1], bool)
  group_id = np.array([4, 9, 9, 4, 4, 4, 4, 1, 4])
  mask = np.ones((9, 2), bool)
  mask[6] = False
  assert more_b.pairs(rewards, valid, group_id, mask) == [(0, 3)]
  for algorithm in (dpo, bradley_terry):
    np.testing.assert_array_equal(
      algorithm.advantages(rewards, valid, group_id, mask=mask),
      [1, 0, 0, -1, 0, 0, 0, 0, 0],
    )


def test_dpo_is_the_mean_over_pairs():
  # Two pairs: d = 2 with the better row second, and d = −1, at β = 1.
  loss = dpo.loss(
    [[0.0], [2.0], [0.0], [1.0]],
    None,
    np.ones((4, 1), bool),
    None,
    rewards=[0, 1, 1, 0],
    valid=[True] * 4,
    group_id=[0, 0, 1, 1],
    ref_logp=np.zeros((4, 1)),
    beta=1.0,
  )
  expected = (math.log1p(math.exp(-2)) + math.log1p(math.exp(1))) / 2
  np.testing.assert_allclose(loss, expected)
  equal = {**PAIR, "rewards": [1.0, 1.0]}
  assert loss_of(dpo, **equal) == 0.0
  assert loss_of(two_grpo_dpo, **equal) == pytest.approx(ROW_MEAN)
  assert loss_of(two_grpo_dpo, dpo_coef=2.0, beta=0.0) == pytest.approx(
    ROW_MEAN + 2 * LN2
  )


def test_log_sigmoid_does_not_overflow():
  assert more_b.negative_log_sigmoid(0.0) == pytest.approx(LN2)
  assert more_b.negative_log_sigmoid(-1000.0) == 1000.0
  assert more_b.negative_log_sigmoid(50.0) == pytest.approx(math.exp(-50))


def test_bradley_terry_margin_and_centre_by_hand():
  # Scores 1 and −1: −log σ(2 − 2) and a sum of 0; then 1 and 0.
  assert loss_of(bradley_terry, margin=2.0, center_coef=1.0) == pytest.approx(
    LN2
  )
  values = np.array([[NAN, 1.0, NAN], [0.0, NAN, NAN]])
  loss = loss_of(bradley_terry, values=values, center_coef=0.01)
  np.testing.assert_allclose(loss, math.log1p(math.exp(-1)) + 0.01)


# --- PPO ---------------------------------------------------------------------

GAE_ARRAYS = {
  "rewards": [1.0, 2.0, NAN],
  "valid": [True, True, False],
  "group_id": [0, 0, 0],
  # Row 0: a hole at slot 1. Row 2 is unscored.
  "mask": np.array([[1, 0, 1], [1, 0, 0], [1, 1, 1]], bool),
  "old_values": np.array([[0.5, NAN, 0.25], [1.0, NAN, NAN], [3.0, 4.0, 5.0]]),
}


def test_ppo_advantages_by_hand():
  # Row 0: δ = 0.25 − 0.5 = −0.25 and 1 − 0.25 = 0.75; Â_0 = −0.25 + 0.95·0.75
  # = 0.4625. Row 1: 2 − 1 = 1. Mean 2.2125/3 = 0.7375; deviations −0.275,
  # 0.0125, 0.2625; var = (0.075625 + 0.00015625 + 0.06890625)/2 = 0.07234375.
  scale = math.sqrt(0.07234375 + 1e-8)
  np.testing.assert_allclose(
    ppo.advantages(**GAE_ARRAYS),
    np.array([[-0.275, 0, 0.0125], [0.2625, 0, 0], [0, 0, 0]]) / scale,
    rtol=1e-12,
  )


def test_ppo_returns_by_hand():
  expected = np.array([[0.9625, 0, 1], [2, 0, 0], [0, 0, 0]])
  np.testing.assert_allclose(ppo.returns(**GAE_ARRAYS), expected)
  # λ = 1: the return itself, 1 discounted once over the hole, and the dense
  # reward of a masked slot is not paid.
  np.testing.assert_allclose(
    ppo.returns(
      **GAE_ARRAYS,
      token_rewards=np.array([[0.1, NAN, 0.2], [0.3, NAN, NAN], [NAN] * 3]),
      gamma=0.5,
      lam_critic=1.0,
    ),
    [[0.1 + 0.5 * 1.2, 0, 1.2], [2.3, 0, 0], [0, 0, 0]],
  )


def test_ppo_length_adaptive_lambda_by_hand():
  # α = 1: λ = 1 − 1/2 for row 0: −0.25 + 0.5 · 0.75 = 0.125; row 1, λ = 0: 1.
  # α = 0.05: λ = 1 − 10 < 0, limited to 0: −0.25.
  for alpha, first in ((1.0, 0.125), (0.05, -0.25)):
    raw = np.array([first, 0.75, 1.0])
    expected = (raw - raw.mean()) / math.sqrt(raw.var(ddof=1) + 1e-8)
    out = ppo.advantages(**GAE_ARRAYS, length_adaptive_alpha=alpha)
    np.testing.assert_allclose(out[GAE_ARRAYS["mask"]][:3], expected)


def test_ppo_with_one_token_has_no_advantage():
  out = ppo.advantages([1.0], [True], [0], mask=[[True]], old_values=[[0.0]])
  np.testing.assert_array_equal(out, 0.0)


def test_ppo_value_loss_options_by_hand():
  # Not clipped: ½ (0.25 + 0 + 1) / 3.
  np.testing.assert_allclose(
    loss_of(ppo, value_clip=0.0), TOKEN_MEAN + 0.625 / 3
  )
  # v = 0.9 of R = 1, clipped to 0.2 off v_old = 0: the larger error, 0.8².
  one = {"values": [[0.9]], "old_values": [[0.0]], "returns": [[1.0]]}
  loss = ppo.loss([[0.0]], [[0.0]], [[True]], [0.0], **one)
  assert loss == pytest.approx(0.5 * 0.64)


# --- entropy-shaped rewards --------------------------------------------------

# Two right rows of 3 and 2 tokens, two wrong rows of 2.
SHAPED = {
  "rewards": [1.0, 1.0, 0.0, 0.0],
  "valid": [True] * 4,
  "group_id": [6] * 4,
  "correct": [True, True, False, False],
  "behavior_entropy": np.array(
    [[0.1, 0.3, 0.5], [0.3, 0.1, NAN], [0.5, 0.25, NAN], [0.25, 0.25, NAN]]
  ),
  "mask": np.array([[1, 1, 1], [1, 1, 0], [1, 1, 0], [1, 1, 0]], bool),
}
# t = 0: 1 + 0.1 · 2 · 0.1/0.4 = 1.05 and 1.15; −1 − 0.1 · 2 · 2/6 and 4/6.
GTPO = np.array(
  [
    [1.05, 1.15, 1.1],
    [1.15, 1.05, 0],
    [-1 - 1 / 15, -1.1, 0],
    [-1 - 2 / 15, -1.1, 0],
  ]
)
# H̄ = 0.3, 0.2: 1 + 0.2 · 0.6; H̄ = 0.375, 0.25: −1 − 0.2 · 0.4 and 0.6.
GRPO_S = np.array([1.12, 1.08, -1.08, -1.12])


def test_shaped_rewards_by_hand():
  np.testing.assert_allclose(
    gtpo.advantages(**SHAPED, normalization="none"), GTPO, rtol=1e-6
  )
  np.testing.assert_allclose(
    grpo_s.advantages(**SHAPED, normalization="none"), GRPO_S, rtol=1e-6
  )


def test_shaped_rewards_joint_by_hand():
  # GTPO: right 5.5, wrong −4.4 over nine tokens: mean 1.1/9. GRPO-S: mean 0,
  # σ² = (1.12² + 1.08²)/2 = 1.2104.
  mask = SHAPED["mask"]
  mean = 1.1 / 9
  sigma = math.sqrt(((GTPO[mask] - mean) ** 2).sum() / 9)
  expected = np.where(mask, (GTPO - mean) / (sigma + 1e-6), 0)
  np.testing.assert_allclose(gtpo.advantages(**SHAPED), expected, rtol=1e-5)
  np.testing.assert_allclose(
    grpo_s.advantages(**SHAPED), GRPO_S / math.sqrt(1.2104), rtol=1e-5
  )


def test_shaped_rewards_split_by_hand():
  # GRPO-S: 1.12 and 1.08 are ±1, and so are −1.08 and −1.12. GTPO, right:
  # deviations ∓.05, ±.05, 0, σ² = 0.01/5; wrong: mean −1.1, ±1/30, 0, 0,
  # σ² = 2/900/4.
  np.testing.assert_allclose(
    grpo_s.advantages(**SHAPED, normalization="split"),
    [1, -1, 1, -1],
    rtol=1e-4,  # σ + 1e-6 with σ = 0.02
  )
  r, w = 0.05 / math.sqrt(0.002), 1 / 30 / math.sqrt(2 / 900 / 4)
  np.testing.assert_allclose(
    gtpo.advantages(**SHAPED, normalization="split"),
    [[-r, r, 0], [r, -r, 0], [w, 0, 0], [-w, 0, 0]],
    rtol=1e-3,
    atol=1e-4,  # 1/(H + 1e-6), divided by σ
  )


def test_shaped_rewards_options():
  # α2 = 0 leaves ±α1; with one value in a pool the advantage is exactly 0.
  plain = gtpo.advantages(
    **SHAPED, alpha1=2.0, alpha2=0.0, normalization="none"
  )
  np.testing.assert_array_equal(
    plain, [[2, 2, 2], [2, 2, 0], [-2, -2, 0], [-2, -2, 0]]
  )
  right = {**SHAPED, "correct": [True] * 4}
  for algorithm in (gtpo, grpo_s):
    np.testing.assert_array_equal(
      algorithm.advantages(**right, alpha2=0.0), 0.0
    )
    np.testing.assert_array_equal(
      algorithm.advantages(**SHAPED, alpha2=0.0, normalization="split"), 0.0
    )
    with pytest.raises(ValueError, match="normalization is 'both'"):
      algorithm.advantages(**SHAPED, normalization="both")


@pytest.mark.parametrize("algorithm", [gtpo, grpo_s], ids=named)
def test_shaping_without_entropy_is_shared_equally(algorithm):
  shaped = algorithm.advantages(
    **{**SHAPED, "behavior_entropy": np.zeros((4, 3))}, normalization="none"
  )
  first = shaped if shaped.ndim == 1 else shaped[:, 0]
  np.testing.assert_allclose(first, [1.1, 1.1, -1.1, -1.1])


@pytest.mark.parametrize("algorithm", [gtpo, grpo_s, edge_grpo], ids=named)
def test_unscored_empty_and_masked_do_not_shape(algorithm):
  # One unscored row, one without tokens, and another group, interleaved.
  arrays = {k: v for k, v in SHAPED.items() if k != "correct"}
  if algorithm is not edge_grpo:
    arrays["correct"] = SHAPED["correct"]
  expected = algorithm.advantages(**arrays)

  def extend(x, unscored, empty):
    return np.concatenate([[unscored], x[:2], [empty], x[2:]])

  full, none = np.full(3, 0.7), np.full(3, NAN)
  extended = {
    "rewards": extend(arrays["rewards"], NAN, NAN),
    "valid": extend(arrays["valid"], False, False),
    "group_id": extend(arrays["group_id"], 6, 6),
    "behavior_entropy": extend(arrays["behavior_entropy"], full, none),
    "mask": extend(arrays["mask"], full > 0, full < 0),
  }
  if algorithm is not edge_grpo:
    extended["correct"] = extend(arrays["correct"], True, True)
    # A scored row without tokens counts nowhere either.
    extended["rewards"][3] = 1.0
    extended["valid"][3] = True
  out = algorithm.advantages(**extended)
  np.testing.assert_array_equal(out[[1, 2, 4, 5]], expected)
  np.testing.assert_array_equal(out[[0, 3]], 0.0)


def test_groups_are_shaped_apart():
  # The same four rows twice, in two interleaved groups.
  for algorithm in (gtpo, grpo_s):
    twice = {k: np.repeat(v, 2, axis=0) for k, v in SHAPED.items()}
    twice["group_id"] = np.tile([8, -1], 4)
    np.testing.assert_array_equal(
      algorithm.advantages(**twice),
      np.repeat(algorithm.advantages(**SHAPED), 2, axis=0),
    )


# --- EDGE-GRPO ---------------------------------------------------------------


def edge_advantages(row_entropies, **options):
  """Advantages of rewards 1, 0, 1, 0: ±√3/2 (ddof 1) times the factor."""
  out = edge_grpo.advantages(
    [1.0, 0.0, 1.0, 0.0],
    [True] * 4,
    [0] * 4,
    behavior_entropy=np.array([[h, NAN] for h in row_entropies]),
    mask=np.array([[True, False]] * 4),
    **options,
  )
  return out / (0.5 / (math.sqrt(1 / 3) + 1e-6))


def test_edge_advantages_by_hand():
  # Mean entropy 0.5 over 0.2, 0.4, 0.4 and 1.
  np.testing.assert_allclose(
    edge_advantages([0.2, 0.4, 0.4, 1.0]), [2.5, -1.25, 1.25, -0.5]
  )
  np.testing.assert_allclose(edge_advantages([0.3] * 4), [1, -1, 1, -1])
  # Mean 1: factors 1/0 limited to 10, and 1/4.
  np.testing.assert_allclose(
    edge_advantages([0.0, 0.0, 0.0, 4.0]), [10, -10, 10, -0.25]
  )
  # Mean 10: factors 20 and 10/38.5, limited to 2 and to 1/2.
  np.testing.assert_allclose(
    edge_advantages([0.5, 0.5, 0.5, 38.5], factor_min=0.5, factor_max=2.0),
    [2, -2, 2, -0.5],
  )


def test_edge_factor_is_at_least_a_tenth():
  # One row has entropy, 20 times the mean: 1/20 becomes 1/10. 1/0 becomes 10.
  entropies = np.zeros((20, 1))
  entropies[0] = 5.0
  out = edge_grpo.advantages(
    np.arange(20) % 2,
    [True] * 20,
    [0] * 20,
    behavior_entropy=entropies,
    mask=np.ones((20, 1), bool),
  )
  np.testing.assert_allclose(out[0] / out[2], 0.1 / 10)


# --- MO-GRPO and GDPO --------------------------------------------------------

OBJECTIVES = {
  "rewards": np.zeros(4),
  "valid": [True] * 4,
  "group_id": [0] * 4,
  "components": np.array([[1.0, 10], [0, 20], [1, 30], [0, 40]]),
}


def test_mo_grpo_by_hand():
  # ddof 0: 1, −1, 1, −1 plus (−15, −5, 5, 15)/√125. ddof 1 is √(3/4) of it.
  expected = np.array([-0.341641, -1.447214, 1.447214, 0.341641])
  np.testing.assert_allclose(
    mo_grpo.advantages(**OBJECTIVES, ddof=0, eps=0.0), expected, atol=1e-6
  )
  np.testing.assert_allclose(
    mo_grpo.advantages(**OBJECTIVES), math.sqrt(0.75) * expected, atol=3e-6
  )
  np.testing.assert_allclose(
    mo_grpo.advantages(
      **OBJECTIVES, component_weights=[2.0, 0.0], ddof=0, eps=0.0
    ),
    [2, -2, 2, -2],
  )


def test_gdpo_by_hand():
  # One group: the sums have mean 0 and, with ddof 0, σ² = (0.341641² +
  # 1.447214²)/2 = 1.105573; with ddof 1 the two factors √(3/4) remain one.
  expected = np.array([-0.32492, -1.376382, 1.376382, 0.32492])
  np.testing.assert_allclose(
    gdpo.advantages(**OBJECTIVES, ddof=0, eps=0.0, batch_eps=0.0),
    expected,
    atol=1e-6,
  )
  np.testing.assert_allclose(
    gdpo.advantages(**OBJECTIVES), math.sqrt(0.75) * expected, atol=3e-4
  )


def test_gdpo_standardizes_over_the_batch():
  # Group 0: ±1/√2; group 1: equal, 0; one unscored row. Mean 0, var 1/3.
  unit = 1 / (math.sqrt(2) + 1e-6)
  out = gdpo.advantages(
    np.zeros(5),
    [1, 1, 1, 0, 1],
    [0, 1, 0, 1, 1],
    components=np.array([[3.0], [2.0], [1.0], [NAN], [2.0]]),
  )
  scale = math.sqrt(2 * unit**2 / 3) + 1e-4
  np.testing.assert_allclose(
    out, np.array([unit, 0, -unit, 0, 0]) / scale, rtol=1e-12
  )


def test_components_that_do_not_apply_count_nowhere():
  # Component 0 applies to rows 0 and 1; 1 is constant; 2 applies to one row.
  unit = 1 / (math.sqrt(2) + 1e-6)
  out = mo_grpo.advantages(
    np.zeros(4),
    [True, True, True, False],
    [0] * 4,
    components=np.array(
      [[2.0, 0.7, NAN], [4.0, 0.7, NAN], [NAN, 0.7, 5.0], [9.0, 9.0, 9.0]]
    ),
  )
  np.testing.assert_allclose(out, [-unit, unit, 0, 0], rtol=1e-14)


# --- distillation ------------------------------------------------------------


def test_teacher_gap_by_hand():
  advantages = opd_token.advantages(
    [NAN] * 3,
    [True, True, False],
    [0, 0, 0],
    ref_logp=np.array([[-1.5, -80.0, NAN], [-0.5, 7, 7], [-3.0, -3, -3]]),
    old_logp=np.array([[-1.0, -1.0, NAN], [-2.0, NAN, 7], [-1.0, -1, -1]]),
    mask=np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1]], bool),
  )
  np.testing.assert_allclose(
    advantages, [[-0.5, -20, 0], [1.5, 0, 0], [0, 0, 0]]
  )


def test_teacher_clamp_is_an_option():
  advantages = opd_token.advantages(
    [0.0],
    [True],
    [0],
    ref_logp=[[-9.0]],
    old_logp=[[-1.0]],
    mask=[[True]],
    opd_clamp=2.0,
  )
  assert advantages[0, 0] == -2.0


def test_bucketed_divergence_by_hand():
  # Student ½, ¼ | ¼, teacher ¼, ½ | ¼: ½ ln 2 − ¼ ln 2.
  one = opd_topk.bucketed_kl(
    np.log([0.5, 0.25]), np.log([0.25, 0.5]), floor=1e-12
  )
  assert one == pytest.approx(0.25 * LN2)
  # The list of ids is the whole vocabulary: there is no rest.
  whole = opd_topk.bucketed_kl(
    np.log([0.75, 0.25]), np.log([0.25, 0.75]), floor=1e-12
  )
  assert whole == pytest.approx(0.5 * math.log(3))
  # A student that never writes the id: all its weight is on the rest.
  rest = opd_topk.bucketed_kl([-math.inf], [math.log(0.75)], floor=1e-12)
  assert rest == pytest.approx(2 * LN2)


@pytest.mark.parametrize("algorithm", [opd_full, opd_topk], ids=named)
def test_distillation_has_no_advantage(algorithm):
  np.testing.assert_array_equal(
    algorithm.advantages([3.0, NAN], [True, False], [0, 0]), [1, 0]
  )


def test_bucketed_divergence_is_below_the_full_one():
  # Merging symbols into a bucket never increases a divergence.
  logits = np.random.default_rng(0).normal(size=(2, 6))
  p, q = common.log_softmax(logits)
  full = float((np.exp(p) * (p - q)).sum())
  top = [np.argsort(-q)[:k] for k in (1, 3, 6)]
  values = [opd_topk.bucketed_kl(p[ids], q[ids], 1e-12) for ids in top]
  assert 0 <= values[0] <= values[1] <= values[2]
  assert values[2] == pytest.approx(full)


# --- gfpo --------------------------------------------------------------------


def test_gfpo_by_hand():
  """Eight completions of one prompt, of which four are kept."""
  rewards = [1, 1, 0, 1, 0, 0, 1, 0]
  mask = np.arange(30) < np.array([5, 12, 3, 8, 20, 6, 30, 9])[:, None]
  group = (rewards, [True] * 8, [0] * 8)
  # The shortest are rows 0, 2, 3 and 5, half of them right: mean ½, σ ½.
  np.testing.assert_allclose(
    gfpo.advantages(*group, mask=mask, num_kept=4),
    [1, 0, -1, 1, 0, -1, 0, 0],
    atol=1e-5,
  )
  # The most efficient are the right ones: equal rewards, no advantage.
  lengths = mask.sum(axis=1)
  kept = gfpo.kept_rows(*group, lengths, 4, "efficiency")
  assert sorted(kept) == [0, 1, 3, 6]
  np.testing.assert_array_equal(
    gfpo.advantages(*group, mask=mask, num_kept=4, metric="efficiency"), 0
  )
