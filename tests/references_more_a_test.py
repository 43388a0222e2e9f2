"""Hand-worked answers for the references of the critic-free algorithms."""

import inspect
import math

import numpy as np
import pytest

from tests.references import (
  cispo,
  common,
  deepseek_v32,
  gmpo,
  gpg,
  grpo_ps,
  gspo_token,
  luspo,
  more_a,
  opo,
  otb,
  passk,
  reinforce_pp,
  reinforce_pp_baseline,
  remax,
  rloo,
  sapo,
  tic_grpo,
  vespo,
)

NAN = float("nan")
LN2 = math.log(2)

# Two completions of 2 and 1 tokens, three slots; ratios 1.5 and 0.5, then 1.5.
# Whole rows: w = 0.75 and 1.5, length-normalised s = √0.75 and 1.5.
MASK = np.array([[True, True, False], [True, False, False]])
OLD_LOGP = np.full((2, 3), -1.0)
LOGP = OLD_LOGP + np.log([[1.5, 0.5, 1.0], [1.5, 1.0, 1.0]])
ADVANTAGES = np.array([1.0, -1.0])

# min(1.5, 1.2) = 1.2 and min(0.5, 0.8) = 0.5; then min(−1.5, −1.2) = −1.5.
TOKEN_CLIP = (-(1.2 + 0.5) + 1.5) / 3
# −[−2 + ln 0.75] + [−1 + ln 1.5] = 1 + ln 2, before it is averaged.
LOG_LIKELIHOOD = 1 + LN2

POLICY_LOSS = {
  rloo: (-0.75 + 1.5) / 2,  # min(w, 0.8) = 0.75; min(−1.5, −1.2)
  reinforce_pp: TOKEN_CLIP,
  reinforce_pp_baseline: TOKEN_CLIP,
  passk: TOKEN_CLIP,
  otb: TOKEN_CLIP,
  remax: LOG_LIKELIHOOD / 2,
  opo: LOG_LIKELIHOOD / 2,
  gpg: LOG_LIKELIHOOD / 3,
  grpo_ps: (-(1.2 + 0.5) / 2 + 1.5) / 2,
  deepseek_v32: (-(1.2 + 0.5) / 2 + 1.5) / 2,
  # min(s, 0.9997) = s on both tokens of row 0.
  gspo_token: (-math.sqrt(0.75) + 1.5) / 2,
  # Row 0: min(ln 1.5, 0.4) = 0.4 and min(−ln 2, −0.4) = −ln 2. Row 1:
  # max(ln 1.5, 0.4) = ln 1.5, as ln 1.5 = 0.405.
  gmpo: (-math.exp((0.4 - LN2) / 2) + 1.5) / 2,
  # −1.5 (ln 1.5 − 1) − 0.5 (−ln 2 − 1) + 1.5 (ln 1.5 − 1) = (1 + ln 2) / 2.
  cispo: (1 + LN2) / 2 / 3,
  tic_grpo: (-0.75 + 1.5) / 2,
  # 4 (σ(½) + σ(−½)) / 2 = 2; row 1 has τ = 1.05 and r − 1 = ½.
  sapo: (-2 + (4 / 1.05) / (1 + math.exp(-0.525))) / 2,
  luspo: (-2 * math.sqrt(0.75) + 1.5) / 2,
  # φ(0.75) = e^{3 − 2.25} 0.75², φ(1.5) = e^{2 − 3} 1.5³.
  vespo: (
    math.exp(0.75) * 0.5625 * (2 - math.log(0.75))
    + math.exp(-1) * 3.375 * (math.log(1.5) - 1)
  )
  / 3,
}
ALL = tuple(POLICY_LOSS)

# How each averages tokens; also where a divergence goes.
ROW_MEAN = (rloo, grpo_ps, deepseek_v32, gspo_token, gmpo, tic_grpo, sapo)
ROW_SUM = (remax, opo, luspo)
TOKEN_MEAN = tuple(a for a in ALL if a not in ROW_MEAN + ROW_SUM)
# Those with a constant part, and those with a clipped ratio.
FROZEN = (gspo_token, cispo, vespo)
CLIPPED = (
  rloo,
  reinforce_pp,
  reinforce_pp_baseline,
  passk,
  otb,
  grpo_ps,
  deepseek_v32,
  gspo_token,
  tic_grpo,
  luspo,
)


def name(algorithm):
  return algorithm.__name__.rsplit(".", 1)[1]


def each(algorithms):
  return pytest.mark.parametrize("algorithm", algorithms, ids=name)


def loss_of(algorithm, logp=LOGP, old_logp=OLD_LOGP, mask=MASK, **options):
  options = {"kl_coef": 0.0, **options}
  return algorithm.loss(logp, old_logp, mask, ADVANTAGES, **options)


def one_token(algorithm, ratio, advantage, **options):
  """The loss of a batch of one token."""
  options = {"kl_coef": 0.0, **options}
  return algorithm.loss(
    [[math.log(ratio)]], [[0.0]], np.ones((1, 1), bool), [advantage], **options
  )


# --- losses ------------------------------------------------------------------


@each(ALL)
def test_policy_loss_by_hand(algorithm):
  np.testing.assert_allclose(loss_of(algorithm), POLICY_LOSS[algorithm])


@each(ALL)
def test_divergence_and_entropy_by_hand(algorithm):
  # u = ln 2 at row 0, 0 at row 1: two of three tokens have k3 = 1/2 − 1 + ln 2.
  ref_logp = LOGP - np.array([[LN2], [0.0]])
  k = LN2 - 0.5
  if algorithm is reinforce_pp_baseline:
    k = LN2**2 / 2  # k2
  if algorithm in ROW_MEAN:
    # Also with the ratios of deepseek_v32, whose mean is (1.5 + 0.5) / 2 = 1.
    divergence = (k + 0) / 2
  elif algorithm in ROW_SUM:
    divergence = (2 * k + 0) / 2
  else:
    divergence = 2 * k / 3
  loss = loss_of(
    algorithm,
    ref_logp=ref_logp,
    kl_coef=0.1,
    entropy=np.array([[1.0, 2.0, NAN], [4.5, NAN, NAN]]),  # mean 2.5
    entropy_coef=0.01,
  )
  expected = POLICY_LOSS[algorithm] + 0.1 * divergence - 0.01 * 2.5
  np.testing.assert_allclose(loss, expected)


@pytest.mark.parametrize("garbage", [NAN, math.inf, -math.inf, 1e9])
@each(ALL)
def test_masked_positions_and_empty_rows_do_not_count(algorithm, garbage):
  mask = np.pad(MASK, ((0, 1), (0, 1)))

  def pad(x):
    x = np.pad(x, ((0, 1), (0, 1)))
    return np.where(mask, x, garbage)

  options = {"kl_coef": 0.1, "entropy_coef": 0.1}
  extra = {"behavior_logp": OLD_LOGP} if algorithm is deepseek_v32 else {}
  ones = np.ones((2, 3))
  loss = algorithm.loss(
    pad(LOGP),
    pad(OLD_LOGP),
    mask,
    np.append(ADVANTAGES, garbage),
    ref_logp=pad(OLD_LOGP),
    entropy=pad(ones),
    **{key: pad(value) for key, value in extra.items()},
    **options,
  )
  expected = loss_of(
    algorithm, ref_logp=OLD_LOGP, entropy=ones, **extra, **options
  )
  np.testing.assert_allclose(loss, expected, rtol=1e-12)


@each(ALL)
def test_without_tokens_the_loss_is_zero(algorithm):
  assert loss_of(algorithm, mask=np.zeros((2, 3), bool)) == 0.0


@each(ALL)
def test_on_policy_gradient_is_the_policy_gradient(algorithm):
  # At ratio 1, ∂L/∂ℓ_it = −w_it A_i with the weight of the aggregation.
  n = MASK.sum(axis=1, keepdims=True)
  if algorithm in (rloo, tic_grpo):  # every token moves the whole row's ratio
    weight = 1 / 2
  elif algorithm in ROW_MEAN:
    weight = 1 / (2 * n)
  else:
    weight = 1 / 2 if algorithm in ROW_SUM else 1 / 3
  frozen = {"frozen_logp": LOGP} if algorithm in FROZEN else {}
  gradient = common.finite_difference(
    lambda logp: loss_of(algorithm, logp, LOGP, **frozen), LOGP
  )
  expected = -weight * ADVANTAGES[:, None] * MASK
  np.testing.assert_allclose(gradient, expected, atol=1e-8)


def test_constant_parts_by_hand():
  # Off-policy gradients: −weight × constant × A.
  def gradient(algorithm, **options):
    return common.finite_difference(
      lambda logp: loss_of(algorithm, logp, frozen_logp=LOGP, **options), LOGP
    )

  s = math.sqrt(0.75)
  np.testing.assert_allclose(
    gradient(gspo_token), [[-s / 4, -s / 4, 0], [1.5 / 2, 0, 0]], atol=1e-8
  )
  np.testing.assert_allclose(
    gradient(cispo, ratio_min=0.7, ratio_max=1.2),
    [[-1.2 / 3, -0.7 / 3, 0], [1.2 / 3, 0, 0]],
    atol=1e-8,
  )
  positive, negative = math.exp(0.75) * 0.5625, math.exp(-1) * 3.375
  np.testing.assert_allclose(
    gradient(vespo),
    [[-positive / 3, -positive / 3, 0], [negative / 3, 0, 0]],
    atol=1e-8,
  )


@pytest.mark.parametrize(
  ("algorithm", "expected"),
  [
    # Both rows 100 nats up. Row 0 is clipped above, row 1 is not.
    (rloo, (math.exp(20) - 1.2) / 2),
    (tic_grpo, (math.exp(20) - 1.28) / 2),
    (reinforce_pp, (math.exp(20) - 2 * 1.2) / 3),
    (grpo_ps, (math.exp(20) - 1.2) / 2),
    (gspo_token, (math.exp(10) - 1.0004) / 2),
    (luspo, (math.exp(10) - 2 * 1.0025) / 2),
    (gmpo, (math.exp(20) - math.exp(0.4)) / 2),
    (sapo, (4 / 1.05 - 4) / 2),  # the gates are open
    (vespo, 0.0),  # exp(−λ e^{20})
  ],
  ids=lambda x: name(x) if inspect.ismodule(x) else "",
)
def test_log_ratio_is_clamped(algorithm, expected):
  loss = loss_of(algorithm, old_logp=LOGP - 100.0)
  np.testing.assert_allclose(loss, expected, rtol=1e-12)


@pytest.mark.parametrize(
  ("algorithm", "low", "high"),
  [
    (rloo, 0.8, 1.2),
    (reinforce_pp, 0.8, 1.2),
    (reinforce_pp_baseline, 0.8, 1.2),
    (passk, 0.8, 1.2),
    (otb, 0.8, 1.2),
    (grpo_ps, 0.8, 1.2),
    (deepseek_v32, 0.8, 1.2),
    (gspo_token, 0.9997, 1.0004),
    (gmpo, math.exp(-0.4), math.exp(0.4)),
    (tic_grpo, 0.65, 1.28),  # no lower bound
    (luspo, 0.998, 1.0025),
  ],
  ids=lambda x: name(x) if inspect.ismodule(x) else "",
)
def test_clip_bounds_by_default(algorithm, low, high):
  # 0.65 is above e^{−0.5}, below which deepseek_v32 drops the row.
  assert one_token(algorithm, 2.0, 1.0) == pytest.approx(-high, rel=1e-12)
  assert one_token(algorithm, 0.65, -1.0) == pytest.approx(low, rel=1e-12)


@each(CLIPPED)
def test_dual_clip_and_ratio_cap_by_hand(algorithm):
  # r = 5, A = −2: 10, at most 3 · 2 with dual clip, 4 · 2 with the cap.
  assert one_token(algorithm, 5.0, -2.0) == pytest.approx(10)
  assert one_token(algorithm, 5.0, -2.0, dual_clip=3.0) == pytest.approx(6)
  assert one_token(algorithm, 5.0, -2.0, ratio_cap=4.0) == pytest.approx(8)
  # A > 0 feels neither.
  assert one_token(
    algorithm, 5.0, 2.0, dual_clip=3.0, ratio_cap=4.0
  ) == pytest.approx(one_token(algorithm, 5.0, 2.0))


def test_other_bounds_by_default():
  # −clip(r, 0, 5) ln r at r = 8 and r = 1/8.
  assert one_token(cispo, 8.0, 1.0) == pytest.approx(-5 * 3 * LN2)
  assert one_token(cispo, 1 / 8, 1.0) == pytest.approx(3 * LN2 / 8)
  # Gates at r = 3: σ(2 τ) · 4 / τ.
  assert one_token(sapo, 3.0, 1.0) == pytest.approx(-4 / (1 + math.exp(-2)))
  assert one_token(sapo, 3.0, -1.0, tau_negative=2.0) == pytest.approx(
    2 / (1 + math.exp(-4))
  )
  # φ(2) = e^{3 − 6} 2², and e^{2 − 4} 2³ where A < 0.
  assert one_token(vespo, 2.0, 1.0) == pytest.approx(-4 * math.exp(-3) * LN2)
  assert one_token(vespo, 2.0, -1.0) == pytest.approx(8 * math.exp(-2) * LN2)


@each(ALL)
def test_divergence_by_default(algorithm):
  coefficient = {
    grpo_ps: 0.04,
    deepseek_v32: 1e-3,
    reinforce_pp_baseline: 1e-3,
  }.get(algorithm, 0.0)
  # One token at ratio 1 and A = 0, e below the reference: u = −1.
  one = np.ones((1, 1), bool)
  loss = algorithm.loss([[0.0]], [[0.0]], one, [0.0], ref_logp=[[1.0]])
  k = 0.5 if algorithm is reinforce_pp_baseline else math.e - 2
  assert loss == pytest.approx(coefficient * k)


@each(ALL)
def test_missing_arrays_are_reported(algorithm):
  with pytest.raises(ValueError, match="ref_logp is None"):
    loss_of(algorithm, kl_coef=0.1)
  with pytest.raises(ValueError, match="entropy is None"):
    loss_of(algorithm, entropy_coef=0.1)


@each((reinforce_pp, grpo_ps, gspo_token, deepseek_v32))
def test_advantages_may_differ_by_token(algorithm):
  advantages = np.array([[2.0, -1.0, NAN], [-1.0, NAN, NAN]])
  loss = algorithm.loss(LOGP, OLD_LOGP, MASK, advantages, kl_coef=0.0)
  # Tokens: −2 · 1.2, 0.8 and 1.5, as min(−0.5, −0.8) = −0.8.
  expected = (-2.4 + 0.8) / 2 / 2 + 1.5 / 2
  if algorithm is reinforce_pp:
    expected = (-2.4 + 0.8 + 1.5) / 3
  if algorithm is gspo_token:  # −2 s and 0.9997, as s = 0.866
    expected = (-2 * math.sqrt(0.75) + 0.9997) / 2 / 2 + 1.5 / 2
  np.testing.assert_allclose(loss, expected)


def test_off_policy_rows_by_hand():
  # Ratio 1. Row 0: A < 0, mean(0.2, 1.0) = 0.6 > 0.5, dropped. Row 1: A < 0,
  # 0.4, kept. Row 2: A > 0, 9, kept. Terms −A = (0), 2, −3 over three rows.
  mask = np.array([[1, 1], [1, 0], [1, 0]], bool)
  logp = np.full((3, 2), -2.0)
  behavior_logp = logp + np.array([[0.2, 1.0], [0.4, NAN], [9.0, NAN]])
  args = (logp, logp, mask, [-1.0, -2.0, 3.0])

  def loss(behavior_logp=behavior_logp, **options):
    return deepseek_v32.loss(
      *args, behavior_logp=behavior_logp, **{"kl_coef": 0.0, **options}
    )

  np.testing.assert_allclose(loss(), (0 + 2 - 3) / 3)
  np.testing.assert_allclose(
    loss(off_policy_threshold=0.7), (1 + 2 - 3) / 3, atol=1e-15
  )
  # A token that the engine did not score counts 0: mean(0, 1.2) = 0.6, dropped.
  behavior_logp = logp + np.array([[NAN, 1.2], [0.4, NAN], [9.0, NAN]])
  np.testing.assert_allclose(loss(behavior_logp), (0 + 2 - 3) / 3)
  # The divergence stays on the dropped row: k3 = e − 2 on all rows.
  behavior_logp = logp + 0.6
  np.testing.assert_allclose(
    loss(behavior_logp, ref_logp=logp + 1.0, kl_coef=0.1),
    (0 + 0 - 3) / 3 + 0.1 * (math.e - 2),
  )
  # By default the start of the update stands in: mean(0.6) on both A < 0.
  old = deepseek_v32.loss(logp, logp + 0.6, *args[2:], kl_coef=0.0)
  np.testing.assert_allclose(old, -3 * math.exp(-0.6) / 3)


def test_limits_of_the_trajectory_weight():
  two = np.ones((1, 2), bool)

  def loss(*logp, **options):
    return vespo.loss([logp], np.zeros((1, 2)), two, [1.0], **options)

  # 30 is limited to 20, 20 − 20 = 0 and φ = 1; then −(30 − 20) / 2.
  assert loss(30.0, -20.0) == pytest.approx(-5)
  # −40 is limited to ln 1e-8: φ = e³ 1e-8^{0.1} up to 3e-8.
  assert loss(-20.0, -20.0, k_positive=0.1) == pytest.approx(
    20 * math.exp(3) * 10**-0.8
  )


def test_unbiased_divergence_by_hand():
  # r = 2, u = ln 4: r k3 = 2 (1/4 − 1 + ln 4).
  one = np.ones((1, 1), bool)
  loss = deepseek_v32.loss(
    [[0.0]], [[-LN2]], one, [0.0], ref_logp=[[-2 * LN2]], kl_coef=0.1
  )
  assert loss == pytest.approx(0.1 * 2 * (0.25 - 1 + 2 * LN2))


# --- advantages --------------------------------------------------------------

# Groups 7, 2 and 5, interleaved. Group 7: rewards 1 and 3, μ = 2, σ = √2.
# Group 2: rewards 0, 0, 1 and an unscored row, μ = 1/3, σ² = 1/3. Group 5: one.
REWARDS = np.array([1.0, 0.0, 3.0, 0.0, NAN, 1.0, 0.9])
VALID = np.array([1, 1, 1, 1, 0, 1, 1], bool)
GROUP_ID = np.array([7, 2, 7, 2, 2, 2, 5])
BATCH = (REWARDS, VALID, GROUP_ID)
LENGTHS = np.array([1, 2, 3, 1, 3, 1, 2])
ROWS = np.arange(3) < LENGTHS[:, None]  # [7, 3]


@each((gspo_token, gmpo, cispo, tic_grpo, sapo, luspo, vespo))
def test_standardized_advantages_by_hand(algorithm):
  extra = {"mask": ROWS} if algorithm is tic_grpo else {}
  s2, s3 = math.sqrt(2) + 1e-6, math.sqrt(1 / 3) + 1e-6
  low, high = -1 / 3 / s3, 2 / 3 / s3
  np.testing.assert_allclose(
    algorithm.advantages(*BATCH, **extra),
    [-1 / s2, low, 1 / s2, low, 0, high, 0],
  )


def test_length_corrected_advantages_by_hand():
  # R / n = 2 / 2 and 3 / 1: μ = 2, σ = √2. An empty row is divided by 1.
  mask = np.array([[1, 1], [1, 0], [0, 0]], bool)
  scale = 1 / (math.sqrt(2) + 1e-6)
  np.testing.assert_allclose(
    tic_grpo.advantages(
      [2.0, 3.0, 5.0], [True] * 3, [0, 0, 1], mask=mask, length_corrected=True
    ),
    [-scale, scale, 0],
  )


def test_centred_advantages_by_hand():
  np.testing.assert_allclose(
    deepseek_v32.advantages(*BATCH), [-1, -1 / 3, 1, -1 / 3, 0, 2 / 3, 0]
  )


def test_leave_one_out_by_hand():
  # 1 − 3, 3 − 1; 0 − (0 + 1)/2 twice, 1 − 0.
  np.testing.assert_allclose(
    rloo.advantages(*BATCH), [-2, -0.5, 2, -0.5, 0, 1, 0]
  )


def test_pass_at_k_advantages_by_hand():
  # 3 leads by 2, 1 leads by 1.
  np.testing.assert_array_equal(passk.advantages(*BATCH), [0, 0, 2, 0, 0, 1, 0])
  tie = passk.advantages([1.0, 1.0, 0.0], [True] * 3, [0, 0, 0])
  np.testing.assert_array_equal(tie, 0.0)


def test_gpg_advantages_by_hand():
  # Six valid rows, four of them not 0: α = 1.5.
  expected = np.array([-1.5, -0.5, 1.5, -0.5, 0, 1, 0])
  np.testing.assert_allclose(gpg.advantages(*BATCH), expected, atol=1e-15)
  np.testing.assert_allclose(
    gpg.advantages(*BATCH, normalizer=2.0), expected / 2, atol=1e-15
  )
  nothing = gpg.advantages(np.zeros(3), [True] * 3, [0, 0, 1])
  np.testing.assert_array_equal(nothing, 0.0)


def test_remax_advantages_by_hand():
  greedy_rewards = [0.5, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0]
  np.testing.assert_allclose(
    remax.advantages(*BATCH, greedy_rewards=greedy_rewards),
    [0.5, -1, 2, 0, 0, 1, -0.1],
  )


def test_length_weighted_baseline_by_hand():
  # Group 7: (1·1 + 3·3) / 4 = 2.5. Group 2: (2·0 + 1·0 + 1·1) / 4.
  np.testing.assert_allclose(
    opo.advantages(*BATCH, mask=ROWS),
    [-1.5, -0.25, 0.5, -0.25, 0, 0.75, 0],
  )
  # Without tokens there is no baseline.
  empty = opo.advantages([2.0], [True], [0], mask=np.zeros((1, 3), bool))
  np.testing.assert_array_equal(empty, [2.0])


def test_whitened_returns_by_hand():
  mask = np.array([[1, 0, 1], [1, 0, 0], [1, 1, 1]], bool)
  args = ([2.0, 0.0, NAN], [True, True, False], [0, 0, 0])
  token_rewards = [[0.5, NAN, -0.5], [-0.5, NAN, NAN], [NAN, NAN, NAN]]
  # Returns 2 and 1.5 across the hole, −0.5: mean 1, variance 3.5 / 2.
  np.testing.assert_allclose(
    reinforce_pp.advantages(*args, mask=mask, token_rewards=token_rewards),
    np.array([[1, 0, 0.5], [-1.5, 0, 0], [0, 0, 0]]) / math.sqrt(1.75 + 1e-8),
  )
  # γ = ½, once across the hole: 0.5 + 1.5 / 2 = 1.25; mean 0.75.
  np.testing.assert_allclose(
    reinforce_pp.advantages(
      *args, mask=mask, token_rewards=token_rewards, gamma=0.5
    ),
    np.array([[0.5, 0, 0.75], [-1.25, 0, 0], [0, 0, 0]])
    / math.sqrt(2.375 / 2 + 1e-8),
  )
  # Outcomes only: 2, 2, 0 with mean 4/3 and variance 4/3.
  np.testing.assert_allclose(
    reinforce_pp.advantages(*args, mask=mask),
    np.array([[2, 0, 2], [-4, 0, 0], [0, 0, 0]]) / 3 / math.sqrt(4 / 3 + 1e-8),
  )
  lone = reinforce_pp.advantages([5.0], [True], [0], mask=[[True, False]])
  np.testing.assert_array_equal(lone, 0.0)


def test_whitened_baseline_by_hand():
  mask = np.array([[1, 1], [0, 1], [1, 0], [1, 1]], bool)
  args = ([1.0, 3.0, 0.9, NAN], [True, True, True, False], [4, 4, 1, 1])
  # Tokens −1, −1, 1 and 0: mean −1/4, squares 9/16, 9/16, 25/16, 1/16.
  np.testing.assert_allclose(
    reinforce_pp_baseline.advantages(*args, mask=mask),
    np.array([[-0.75, -0.75], [0, 1.25], [0.25, 0], [0, 0]])
    / math.sqrt(2.75 / 3 + 1e-8),
  )
  # Tokens −1, −1, 1 and 0.9: mean −0.025.
  raw = np.array([[-0.975, -0.975], [0, 1.025], [0.925, 0], [0, 0]])
  np.testing.assert_allclose(
    reinforce_pp_baseline.advantages(*args, mask=mask, singleton="raw"),
    raw / math.sqrt((raw**2).sum() / 3 + 1e-8),
  )


def test_token_baseline_by_hand():
  # w = 1 − 2π + Σπ². Row 0: 1 − 1 + ½ = ½ and 1 − ½ + ½ = 1, so W = ½, 3/2.
  # Row 1: 1 − 1 + 1 = 1, W = 1, then a hole, then 1 − ½ + ½ = 1, W = 2.
  mask = np.array([[1, 1, 1], [1, 0, 1], [1, 1, 1], [1, 1, 1]], bool)
  mask[0, 2] = False
  old_logp = np.log([[0.5, 0.25, 1], [0.5, 1, 0.25], [1, 1, 1], [1, 1, 1]])
  sum_pi_squared = np.array(
    [[0.5, 0.5, NAN], [1.0, NAN, 0.5], [NAN] * 3, [1.5, 1.5, 1.5]]
  )
  old_logp = np.where(mask & [[1], [1], [0], [1]], old_logp, NAN)
  advantages = otb.advantages(
    [1.0, 0.0, NAN, 3.0],
    [True, True, False, True],
    [6, 6, 6, 0],
    old_logp=old_logp,
    sum_pi_squared=sum_pi_squared,
    mask=mask,
  )
  # Slot 0: b = (½ · 1 + 1 · 0) / (3/2) = 1/3. Alone in slots 1 and 2, and in
  # its group, a row is its own baseline.
  np.testing.assert_allclose(
    advantages,
    [[2 / 3, 0, 0], [-1 / 3, 0, 0], [0, 0, 0], [0, 0, 0]],
    atol=1e-7,
  )


def test_process_supervision_by_hand():
  # Steps 0 and 3 of row 0, 3 of row 1: μ = 2, σ² = (4 + 1 + 1) / 2 = 3.
  step_mask = np.array([[1, 0, 1], [0, 1, 0], [1, 1, 1], [0, 0, 1]], bool)
  step_rewards = [[0, NAN, 3], [NAN, 3, NAN], [NAN] * 3, [NAN, NAN, 4]]
  mask = np.array([[1, 0, 1], [1, 1, 1], [1, 1, 1], [1, 1, 1]], bool)
  args = (np.full(4, NAN), [True, True, False, True], [3, 3, 3, 0])
  arrays = {"step_rewards": step_rewards, "step_mask": step_mask, "mask": mask}
  # Row 0: 1 from the last step, −2 + 1 before the first ends, a hole between.
  # Row 1: 1, 1 and nothing after its last step. Row 3: a lone step.
  shape = np.array([[-1, 0, 1], [1, 1, 0], [0, 0, 0], [0, 0, 0]])
  np.testing.assert_allclose(
    grpo_ps.advantages(*args, **arrays), shape / (math.sqrt(3) + 1e-6)
  )
  np.testing.assert_allclose(
    grpo_ps.advantages(*args, **arrays, ddof=0, eps=0.0), shape / math.sqrt(2)
  )


@pytest.mark.parametrize(("reward", "size"), [(0.7, 12), (0.1, 7), (0.7, 16)])
@each(tuple(a for a in ALL if a not in (remax, otb)))
def test_equal_rewards_give_exactly_zero(algorithm, reward, size):
  mask = np.ones((size, 1), bool)
  available = {
    "mask": mask,
    "step_mask": mask,
    "step_rewards": np.full((size, 1), reward),
  }
  wanted = inspect.signature(algorithm.advantages).parameters
  advantages = algorithm.advantages(
    np.full(size, reward),
    np.ones(size, bool),
    np.zeros(size, int),
    **{key: value for key, value in available.items() if key in wanted},
  )
  np.testing.assert_array_equal(advantages, 0.0)


@pytest.mark.parametrize("garbage", [NAN, math.inf, -math.inf, 1e9])
@each(ALL)
def test_masked_slots_and_invalid_rows_do_not_reach_advantages(
  algorithm, garbage
):
  keep = ROWS & VALID[:, None]
  slots = np.linspace(-1.0, -0.1, ROWS.size).reshape(ROWS.shape)
  available = {
    "old_logp": slots,
    "sum_pi_squared": -0.5 * slots,
    "token_rewards": slots,
    "step_rewards": slots,
    "greedy_rewards": np.linspace(0.0, 1.0, len(VALID)),
  }
  wanted = inspect.signature(algorithm.advantages).parameters
  masks = {key: ROWS for key in ("mask", "step_mask") if key in wanted}

  def advantages(fill):
    arrays = {
      key: np.where(keep if value.ndim == 2 else VALID, value, fill)
      for key, value in available.items()
      if key in wanted
    }
    rewards = np.where(VALID, REWARDS, fill)
    return algorithm.advantages(rewards, VALID, GROUP_ID, **arrays, **masks)

  with_garbage = advantages(garbage)
  np.testing.assert_array_equal(with_garbage, advantages(0.0))
  assert np.isfinite(with_garbage).all()
  np.testing.assert_array_equal(with_garbage[~VALID], 0.0)


# --- shared pieces -----------------------------------------------------------


def test_whitening_by_hand():
  # 1, 2, 6: mean 3, variance (4 + 1 + 9) / 2 = 7.
  x = [[1.0, NAN, 2.0], [6.0, NAN, NAN]]
  mask = [[True, False, True], [True, False, False]]
  np.testing.assert_allclose(
    more_a.whiten(x, mask, eps=2.0), np.array([[-2, 0, -1], [3, 0, 0]]) / 3
  )
  equal = more_a.whiten(np.full((3, 4), 0.1), np.ones((3, 4), bool))
  np.testing.assert_array_equal(equal, 0.0)


def test_trajectory_ratio_by_hand():
  assert more_a.trajectory_ratio(
    [LN2, NAN, LN2], [0.0, NAN, 0.5], [True, False, True], 20.0
  ) == pytest.approx(4 * math.exp(-0.5))
  # The sum is limited, not its terms: 30 − 30 + 1.
  assert more_a.trajectory_ratio(
    [30.0, -30.0, 1.0], [0.0] * 3, [True] * 3, 20.0
  ) == pytest.approx(math.e)
  assert more_a.trajectory_ratio([30.0], [0.0], [True], 20.0) == pytest.approx(
    math.exp(20)
  )
