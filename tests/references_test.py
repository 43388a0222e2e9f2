"""Holds the references themselves: hand-worked answers, and peers' numbers."""

import functools
import itertools
import json
import math

import numpy as np
import pytest

from tests.references import (
  common,
  dapo,
  dr_grpo,
  enumeration,
  grpo,
  gspo,
  metrics,
  reinforce,
  sft,
)

ALL = (grpo, dr_grpo, dapo, gspo, reinforce, sft)
NAN = float("nan")

# Two completions of 2 and 1 tokens, three slots; ratios 1.5 and 0.5, then 1.5.
MASK = np.array([[True, True, False], [True, False, False]])
OLD_LOGP = np.full((2, 3), -1.0)
LOGP = OLD_LOGP + np.log([[1.5, 0.5, 1.0], [1.5, 1.0, 1.0]])
ADVANTAGES = np.array([1.0, -1.0])

# By hand, without divergence or entropy. Row 0, A = 1, clipped at 1.2:
# min(1.5, 1.2) = 1.2 and min(0.5, 0.8) = 0.5. Row 1, A = −1: min(−1.5, −1.2)
# = −1.5.
POLICY_LOSS = {
  grpo: (-(1.2 + 0.5) / 2 + 1.5) / 2,  # 0.325
  dr_grpo: (-(1.2 + 0.5) + 1.5) / (2 * 3),  # two rows, C = T = 3
  dapo: (-(1.28 + 0.5) + 1.5) / 3,  # clip 1.28; three tokens
  # s_0 = √0.75 = 0.866 and min(s, 0.9997) = s; s_1 = 1.5.
  gspo: (-math.sqrt(0.75) + 1.5) / 2,
  # −[−2 + ln 0.75] + [−1 + ln 1.5] = 1 + ln 2, over two rows.
  reinforce: (1 + math.log(2)) / 2,
  sft: 1 - math.log(1.5 * 0.5 * 1.5) / 3,
}


def loss_of(algorithm, logp=LOGP, old_logp=OLD_LOGP, mask=MASK, **options):
  options = {"kl_coef": 0.0, **options}
  return algorithm.loss(logp, old_logp, mask, ADVANTAGES, **options)


# --- losses ------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALL)
def test_policy_loss_by_hand(algorithm):
  np.testing.assert_allclose(loss_of(algorithm), POLICY_LOSS[algorithm])


@pytest.mark.parametrize("algorithm", ALL)
def test_divergence_and_entropy_by_hand(algorithm):
  # u = ln 2 at row 0, 0 at row 1: k3 = 1/2 − 1 + ln 2 at two of three tokens.
  ref_logp = LOGP - np.array([[math.log(2)], [0.0]])
  k3 = math.log(2) - 0.5
  mean_k3 = {
    grpo: k3 / 2,
    dr_grpo: 2 * k3 / (2 * 3),
    dapo: 2 * k3 / 3,
    gspo: k3 / 2,
    reinforce: 2 * k3 / 2,
    sft: 2 * k3 / 3,
  }[algorithm]
  entropy = np.array([[1.0, 2.0, NAN], [4.5, NAN, NAN]])  # mean 2.5
  loss = loss_of(
    algorithm,
    ref_logp=ref_logp,
    kl_coef=0.1,
    entropy=entropy,
    entropy_coef=0.01,
  )
  expected = POLICY_LOSS[algorithm] + 0.1 * mean_k3 - 0.01 * 2.5
  np.testing.assert_allclose(loss, expected)


@pytest.mark.parametrize("garbage", [NAN, math.inf, -math.inf, 1e9])
@pytest.mark.parametrize("algorithm", ALL)
def test_masked_positions_and_empty_rows_do_not_count(algorithm, garbage):
  def pad(x, fill):
    # One more slot, except where C = T is part of the loss; one empty row.
    slots = 0 if algorithm is dr_grpo else 1
    return np.pad(x, ((0, 1), (0, slots)), constant_values=fill)

  mask = pad(MASK, False)
  logp = np.where(mask, pad(LOGP, garbage), garbage)
  old_logp = np.where(mask, pad(OLD_LOGP, garbage), garbage)
  advantages = np.append(ADVANTAGES, garbage)
  loss = algorithm.loss(
    logp,
    old_logp,
    mask,
    advantages,
    ref_logp=old_logp,
    kl_coef=0.1,
    entropy=np.where(mask, 1.0, garbage),
    entropy_coef=0.1,
  )
  expected = loss_of(
    algorithm,
    ref_logp=OLD_LOGP,
    kl_coef=0.1,
    entropy=np.ones((2, 3)),
    entropy_coef=0.1,
  )
  np.testing.assert_allclose(loss, expected, rtol=1e-12)


@pytest.mark.parametrize("algorithm", ALL)
def test_without_tokens_the_loss_is_zero(algorithm):
  assert loss_of(algorithm, mask=np.zeros((2, 3), bool)) == 0.0


@pytest.mark.parametrize("algorithm", [grpo, dr_grpo, dapo, gspo, reinforce])
def test_on_policy_gradient_is_the_policy_gradient(algorithm):
  # At ratio 1, ∂L/∂ℓ_it = −w_it A_i with the weight of the aggregation.
  n = MASK.sum(axis=1, keepdims=True)
  weight = {
    grpo: 1 / (2 * n),
    dr_grpo: 1 / (2 * 3),
    dapo: 1 / 3,
    gspo: 1 / (2 * n),
    reinforce: 1 / 2,
  }[algorithm]
  gradient = common.finite_difference(
    lambda logp: loss_of(algorithm, logp, LOGP), LOGP
  )
  expected = -weight * ADVANTAGES[:, None] * MASK
  np.testing.assert_allclose(gradient, expected, atol=1e-8)


@pytest.mark.parametrize("algorithm", [grpo, dr_grpo, dapo, gspo])
def test_log_ratio_is_clamped(algorithm):
  # Both rows 100 nats up, clamped to 20: row 0 is clipped, row 1 is not.
  old_logp = LOGP - 100.0
  huge = math.exp(20.0)
  top = 1.28 if algorithm is dapo else 1.2
  expected = {
    grpo: (huge - top) / 2,
    dr_grpo: (huge - 2 * top) / 6,
    dapo: (huge - 2 * top) / 3,
    gspo: (huge - 1.0004) / 2,
  }[algorithm]
  np.testing.assert_allclose(
    loss_of(algorithm, old_logp=old_logp), expected, rtol=1e-14
  )
  unclamped = loss_of(algorithm, old_logp=old_logp, log_ratio_clamp=None)
  assert unclamped > math.exp(95.0)


@pytest.mark.parametrize(
  ("algorithm", "low", "high"),
  [
    (grpo, 0.2, 0.2),
    (dr_grpo, 0.2, 0.2),
    (dapo, 0.2, 0.28),
    (gspo, 3e-4, 4e-4),
  ],
)
def test_clip_bounds_by_default(algorithm, low, high):
  # One token: r = 2 with A = 1 gives −(1 + high), r = ½ with A = −1, 1 − low.
  one = np.ones((1, 1), bool)
  for ratio, advantage, expected in ((2, 1, -1 - high), (0.5, -1, 1 - low)):
    loss = algorithm.loss(
      [[math.log(ratio)]], [[0.0]], one, [advantage], kl_coef=0.0
    )
    assert loss == pytest.approx(expected, rel=1e-12)


def test_missing_arrays_are_reported():
  with pytest.raises(ValueError, match="ref_logp is None"):
    grpo.loss(LOGP, OLD_LOGP, MASK, ADVANTAGES)
  with pytest.raises(ValueError, match="entropy is None"):
    loss_of(dapo, entropy_coef=0.1)


def test_dr_grpo_divides_by_its_budget():
  np.testing.assert_allclose(
    loss_of(dr_grpo, budget=30), POLICY_LOSS[dr_grpo] / 10
  )


# --- primitives --------------------------------------------------------------


def test_surrogate_by_hand():
  surrogate = functools.partial(
    common.clipped_surrogate, clip_low=0.2, clip_high=0.28
  )
  assert surrogate(2.0, 3.0) == pytest.approx(1.28 * 3.0)
  assert surrogate(0.5, 3.0) == pytest.approx(1.5)
  assert surrogate(0.5, -3.0) == pytest.approx(-2.4)
  assert surrogate(5.0, -3.0) == pytest.approx(-15.0)
  assert surrogate(5.0, -3.0, dual_clip=4.0) == pytest.approx(-12.0)
  assert surrogate(5.0, 3.0, dual_clip=4.0) == pytest.approx(3.84)


def test_divergence_estimators_by_hand():
  u = math.log(4.0)
  assert common.kl_k1(-1.0, -1.0 - u) == pytest.approx(u)
  assert common.kl_k2(-1.0, -1.0 - u) == pytest.approx(u * u / 2)
  assert common.kl_k3(-1.0, -1.0 - u) == pytest.approx(0.25 - 1 + u)
  # For small u, k3 = u²/2 − u³/6 + …, where e^{−u} − 1 + u has no digits left.
  assert common.kl_k3(1e-6, 0.0) == pytest.approx(
    0.5e-12 - 1e-18 / 6, rel=1e-8, abs=0
  )
  assert common.kl_k3(-100.0, 0.0) == pytest.approx(math.exp(20) - 21)


def test_aggregations_by_hand():
  x = np.array([[1.0, 2.0, 3.0, NAN], [6.0, NAN, NAN, NAN], [NAN] * 4])
  mask = np.array([[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]], bool)
  assert common.seq_mean_token_mean(x, mask) == (2 + 6) / 2
  assert common.token_mean(x, mask) == 12 / 4
  assert common.seq_mean_token_sum(x, mask) == 12 / 2
  assert common.seq_mean_token_sum_norm(x, mask) == 12 / (2 * 4)
  assert common.seq_mean_token_sum_norm(x, mask, budget=6) == 12 / (2 * 6)


def test_logits_by_hand():
  half_quarter_quarter = np.log([4.0, 2.0, 2.0]) + 700.0
  np.testing.assert_allclose(
    common.log_softmax(half_quarter_quarter), np.log([0.5, 0.25, 0.25])
  )
  logits = [half_quarter_quarter, [0, 0, -np.inf], [5, -np.inf, -np.inf]]
  np.testing.assert_allclose(
    common.entropy_from_logits(logits),
    [1.5 * math.log(2), math.log(2), 0.0],
    atol=1e-12,
  )


def test_finite_difference_of_a_cubic():
  x = np.array([[1.0, -2.0], [0.5, 3.0]])
  gradient = common.finite_difference(lambda y: (y**3).sum(), x)
  np.testing.assert_allclose(gradient, 3 * x**2, rtol=1e-7)


# --- advantages --------------------------------------------------------------

# Groups 7, 2 and 5, interleaved. Group 7: rewards 1 and 3, μ = 2, σ = √2.
# Group 2: rewards 0, 0, 1 and an unscored row, μ = 1/3, σ² = 1/3. Group 5: one.
REWARDS = np.array([1.0, 0.0, 3.0, 0.0, NAN, 1.0, 0.9])
VALID = np.array([1, 1, 1, 1, 0, 1, 1], bool)
GROUP_ID = np.array([7, 2, 7, 2, 2, 2, 5])


@pytest.mark.parametrize("algorithm", [grpo, dapo, gspo])
def test_standardized_advantages_by_hand(algorithm):
  s2, s3 = math.sqrt(2) + 1e-6, math.sqrt(1 / 3) + 1e-6
  low, high = -1 / 3 / s3, 2 / 3 / s3
  np.testing.assert_allclose(
    algorithm.advantages(REWARDS, VALID, GROUP_ID),
    [-1 / s2, low, 1 / s2, low, 0, high, 0],
  )


def test_centred_advantages_by_hand():
  np.testing.assert_allclose(
    dr_grpo.advantages(REWARDS, VALID, GROUP_ID),
    [-1, -1 / 3, 1, -1 / 3, 0, 2 / 3, 0],
  )


def test_reinforce_advantages_by_hand():
  np.testing.assert_allclose(
    reinforce.advantages(REWARDS, VALID, GROUP_ID),
    [1, 0, 3, 0, 0, 1, 0.9],
  )
  np.testing.assert_allclose(
    reinforce.advantages(REWARDS, VALID, GROUP_ID, baseline=0.5),
    [0.5, -0.5, 2.5, -0.5, 0, 0.5, 0.4],
  )
  np.testing.assert_allclose(
    reinforce.advantages(REWARDS, VALID, GROUP_ID, baseline=np.arange(7.0)),
    [1, -1, 1, -3, 0, -4, -5.1],
  )


def test_demonstrations_count_the_same():
  np.testing.assert_array_equal(
    sft.advantages(REWARDS, VALID, GROUP_ID), VALID.astype(float)
  )


@pytest.mark.parametrize("algorithm", [grpo, dr_grpo])
@pytest.mark.parametrize(("reward", "size"), [(0.7, 12), (0.1, 7), (0.7, 16)])
def test_equal_rewards_give_exactly_zero(algorithm, reward, size):
  advantages = algorithm.advantages(
    np.full(size, reward), np.ones(size, bool), np.zeros(size, int)
  )
  np.testing.assert_array_equal(advantages, 0.0)


@pytest.mark.parametrize("algorithm", [grpo, dr_grpo])
def test_lone_rows_by_option(algorithm):
  lone = ([0.9], [True], [0])
  assert algorithm.advantages(*lone)[0] == 0.0
  assert algorithm.advantages(*lone, singleton="raw")[0] == 0.9


# --- DAPO's own pieces -------------------------------------------------------


@pytest.mark.parametrize(
  ("length", "penalty"),
  [(0, 0), (16384, 0), (18432, -0.5), (20480, -1), (20481, -1)],
)
def test_soft_overlong_by_hand(length, penalty):
  assert dapo.soft_overlong(length, max_len=20480, cache=4096) == penalty


def test_live_groups_by_hand():
  np.testing.assert_array_equal(
    dapo.live_groups(REWARDS, VALID, GROUP_ID), [1, 1, 1, 1, 0, 1, 0]
  )
  # The only different reward was not scored, so the group is dead.
  np.testing.assert_array_equal(
    dapo.live_groups([1.0, 1.0, 0.0], [True, True, False], [0, 0, 0]), False
  )


def test_overlong_filter_by_hand():
  np.testing.assert_array_equal(
    dapo.overlong_filter(MASK, [False, True]),
    [[False, False, False], [True, False, False]],
  )


# --- metrics -----------------------------------------------------------------


@pytest.mark.parametrize(
  ("n", "c", "k", "expected"),
  [
    (8, 2, 1, 0.25),
    (8, 2, 4, 11 / 14),  # 1 − C(6,4)/C(8,4) = 1 − 15/70
    (16, 3, 8, 0.9),
    (8, 0, 4, 0.0),
    (8, 5, 4, 1.0),
    (2000, 1, 1000, 0.5),
  ],
)
def test_pass_at_k_by_hand(n, c, k, expected):
  assert metrics.pass_at_k(n, c, k) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("n", "c"), itertools.product((1, 3, 6), (0, 1, 2)))
def test_pass_at_k_counts_subsets(n, c):
  c = min(c, n)
  right = [True] * c + [False] * (n - c)
  for k in range(1, n + 1):
    hits = [any(subset) for subset in itertools.combinations(right, k)]
    assert metrics.pass_at_k(n, c, k) == pytest.approx(np.mean(hits))


@pytest.mark.parametrize(
  ("answers", "k", "expected"),
  [
    ("aab", 1, 2 / 3),  # the mean accuracy
    ("aab", 2, 2 / 3),  # aa wins, ab and ab tie: (1 + ½ + ½) / 3
    ("aab", 3, 1.0),
    (["a", None, "b"], 2, 0.5),  # {a,–} wins, {a,b} ties, {–,b} loses
    (["a", None, None], 3, 1.0),  # two invalid answers do not outvote one
    ([None, None], 1, 0.0),
    ("abc", 3, 1 / 3),
    ("bbb", 2, 0.0),
  ],
)
def test_maj_at_k_by_hand(answers, k, expected):
  assert metrics.maj_at_k(answers, "a", k) == pytest.approx(expected)


@pytest.mark.parametrize("k", [0, 4])
def test_subset_sizes_are_checked(k):
  with pytest.raises(ValueError, match=f"k={k}"):
    metrics.pass_at_k(3, 1, k)
  with pytest.raises(ValueError, match=f"k={k}"):
    metrics.maj_at_k("aab", "a", k)


# --- enumeration -------------------------------------------------------------


def random_table(seed, num_symbols, num_slots):
  rows = enumeration.num_prefixes(num_symbols, num_slots)
  return np.random.default_rng(seed).normal(size=(rows, num_symbols))


def test_enumeration_by_hand():
  # Uniform over {end, 1}: y = (end), (1, end), (1, 1) with ½, ¼, ¼.
  table = np.zeros((3, 2))
  completions = enumeration.enumerate_completions(table, 2, end_token=0)
  assert [list(c.tokens) for c in completions] == [[0, 0], [1, 0], [1, 1]]
  assert [list(c.mask) for c in completions] == [
    [True, False],
    [True, True],
    [True, True],
  ]
  np.testing.assert_allclose([c.prob for c in completions], [0.5, 0.25, 0.25])
  # Only (1, end) is rewarded: J = p(1) q(end), with rows 0 and 2 of the table.
  # ∂J/∂z_{0,end} = −p(end) p(1) q(end) = −1/8; ∂J/∂z_{2,end} = p(1)/4 = 1/8.
  rewards = [0.0, 1.0, 0.0]
  assert enumeration.objective(table, 2, 0, rewards) == pytest.approx(0.25)
  np.testing.assert_allclose(
    enumeration.objective_gradient(table, 2, 0, rewards),
    [[-1 / 8, 1 / 8], [0, 0], [1 / 8, -1 / 8]],
    atol=1e-15,
  )


@pytest.mark.parametrize(
  ("num_symbols", "num_slots", "end_token", "count"),
  [
    (3, 2, None, 9),
    (3, 2, 2, 1 + 2 * 3),
    (5, 2, 4, 1 + 4 * 5),
    (3, 3, 1, 1 + 2 + 4 * 3),
  ],
)
def test_enumeration_is_complete(num_symbols, num_slots, end_token, count):
  table = random_table(0, num_symbols, num_slots)
  completions = enumeration.enumerate_completions(table, num_slots, end_token)
  assert len(completions) == count
  assert len({(tuple(c.tokens), tuple(c.mask)) for c in completions}) == count
  np.testing.assert_allclose(sum(c.prob for c in completions), 1.0)
  logp = enumeration.token_logp(
    table, [c.tokens for c in completions], [c.mask for c in completions]
  )
  np.testing.assert_allclose(
    np.exp(logp.sum(axis=1)), [c.prob for c in completions]
  )
  rewards = np.random.default_rng(1).normal(size=count)
  np.testing.assert_allclose(
    enumeration.objective_gradient(table, num_slots, end_token, rewards),
    common.finite_difference(
      lambda z: enumeration.objective(z, num_slots, end_token, rewards),
      table,
    ),
    atol=1e-9,
  )


def test_k1_and_k3_average_to_the_divergence():
  table, reference = random_table(0, 3, 2), random_table(1, 3, 2)
  completions = enumeration.enumerate_completions(table, 2, end_token=2)
  others = enumeration.enumerate_completions(reference, 2, end_token=2)
  pairs = [
    (c.prob, math.log(c.prob), math.log(other.prob))
    for c, other in zip(completions, others, strict=True)
  ]
  divergence = sum(p * (log_p - log_q) for p, log_p, log_q in pairs)
  for estimator in (common.kl_k1, common.kl_k3):
    mean = sum(p * estimator(log_p, log_q) for p, log_p, log_q in pairs)
    np.testing.assert_allclose(mean, divergence, rtol=1e-12)


def test_dr_grpo_and_reinforce_average_to_the_exact_gradient():
  """E[−∇L] over all pairs of completions, G = 2.

  REINFORCE gives ∇J. Dr. GRPO gives (G − 1)/G · ∇J / C, for its mean includes
  the row itself.
  """
  num_slots, end_token = 2, 2
  table = random_table(0, 3, num_slots)
  completions = enumeration.enumerate_completions(table, num_slots, end_token)
  rewards = np.random.default_rng(1).normal(size=len(completions))
  exact = enumeration.objective_gradient(table, num_slots, end_token, rewards)

  # Each loss is linear in the gradients of the two completions' token
  # log-probs: d[b] is ∂ logp_bt / ∂ table, [T, rows, V].
  probs = np.exp(common.log_softmax(table))
  d = []
  for completion in completions:
    jacobian = np.zeros((num_slots, *table.shape))
    for t in range(num_slots):
      if completion.mask[t]:
        row = enumeration.prefix_index(completion.tokens[:t], 3)
        jacobian[t, row] = -probs[row]
        jacobian[t, row, completion.tokens[t]] += 1.0
    d.append(jacobian)

  mean = {dr_grpo: np.zeros_like(table), reinforce: np.zeros_like(table)}
  for a, b in itertools.product(range(len(completions)), repeat=2):
    pair = completions[a], completions[b]
    mask = np.array([c.mask for c in pair])
    logp = enumeration.token_logp(table, [c.tokens for c in pair], mask)
    for algorithm, total in mean.items():
      advantages = algorithm.advantages(rewards[[a, b]], [True, True], [0, 0])
      gradient = common.finite_difference(
        lambda x, f=algorithm, old=logp, m=mask, adv=advantages: f.loss(
          x, old, m, adv
        ),
        logp,
      )
      total -= (
        pair[0].prob
        * pair[1].prob
        * np.einsum("bt,btrv->rv", gradient, np.stack([d[a], d[b]]))
      )
  np.testing.assert_allclose(mean[reinforce], exact, atol=1e-8)
  np.testing.assert_allclose(
    mean[dr_grpo], (1 / 2) * exact / num_slots, atol=1e-8
  )


# --- golden numbers of other implementations ---------------------------------

VERL_AGGREGATION = {
  "token-mean": common.token_mean,
  "seq-mean-token-sum": common.seq_mean_token_sum,
  "seq-mean-token-mean": common.seq_mean_token_mean,
}

# Inputs and settings that the references do not have; cases with one of them
# belong to other methods.
FOREIGN = {
  "delta",
  "dp_size",
  "importance_sampling_ratio",
  "off_policy_mask_threshold",
  "rollout_is_weights",
  "top_entropy_quantile",
  "use_bias_correction_kl",
}


def verl_aggregate(x, mask, hyper):
  mode = hyper["loss_agg_mode"]
  if mode == "seq-mean-token-sum-norm":
    # Despite its name this is not divided by the number of sequences.
    budget = hyper.get("loss_scale_factor", np.shape(mask)[1])
    return common.seq_mean_token_sum(x, mask) * common.num_rows(mask) / budget
  return VERL_AGGREGATION[mode](x, mask)


def golden_adv_grpo_verl(hyper, inputs):
  mask = inputs["response_mask"]
  args = (
    inputs["token_level_rewards"].sum(axis=1),
    np.ones(len(mask), bool),
    inputs["index"],
  )
  if hyper["norm_adv_by_std_in_grpo"]:
    advantages = grpo.advantages(
      *args, ddof=hyper["std_ddof"], eps=hyper["epsilon"], singleton="raw"
    )
  else:
    advantages = dr_grpo.advantages(*args, singleton="raw")
  return "advantages", advantages[:, None] * mask, None


def golden_policy_vanilla_verl(hyper, inputs):
  mask = inputs["response_mask"] > 0

  def loss(logp):
    def term(i, t):
      ratio = common.token_ratio(logp[i, t], inputs["old_log_prob"][i, t], 20)
      return -common.clipped_surrogate(
        ratio,
        inputs["advantages"][i, t],
        hyper["clip_ratio_low"],
        hyper["clip_ratio_high"],
        hyper["clip_ratio_c"],
      )

    return verl_aggregate(common.per_token(term, mask), mask, hyper)

  return "loss", loss(inputs["log_prob"]), ("log_prob", loss)


def golden_policy_gspo_verl(hyper, inputs):
  mask = inputs["response_mask"] > 0
  # The peer repeats a row's advantage over its tokens.
  advantages = [
    inputs["advantages"][i][mask[i]].max(initial=-np.inf)
    for i in range(len(mask))
  ]

  def loss(logp):
    return gspo.loss(
      logp,
      inputs["old_log_prob"],
      mask,
      advantages,
      clip_low=hyper["clip_ratio_low"],
      clip_high=hyper["clip_ratio_high"],
      log_ratio_clamp=10.0,
    )

  return "loss", loss(inputs["log_prob"]), ("log_prob", loss)


def golden_trl_loss(hyper, inputs):
  mask = inputs["completion_mask"] > 0
  kind = hyper["loss_type"]
  options = {
    "clip_low": hyper["epsilon_low"],
    "clip_high": hyper["epsilon_high"],
    "ref_logp": inputs.get("ref_log_prob"),
    "kl_coef": hyper.get("beta", 0.0),
    "entropy": inputs.get("entropies"),
    "entropy_coef": hyper.get("entropy_coef", 0.0),
    "log_ratio_clamp": None,
  }
  if kind == "dr_grpo":
    options["budget"] = hyper["max_completion_length"]
  algorithm = {"grpo": grpo, "dr_grpo": dr_grpo, "dapo": dapo}[kind]
  if hyper["importance_sampling_level"] == "sequence":
    algorithm = gspo
  # The peer's means over sequences count empty rows too.
  scale = 1.0 if kind == "dapo" else common.num_rows(mask) / len(mask)

  def loss(logp):
    return scale * algorithm.loss(
      logp, inputs["old_log_prob"], mask, inputs["advantages"], **options
    )

  return "loss", loss(inputs["log_prob"]), ("log_prob", loss)


def golden_kl_penalty_verl(hyper, inputs):
  logp, ref_logp = inputs["log_prob"], inputs["ref_log_prob"]
  estimator = {
    "k1": common.kl_k1,
    "abs": lambda *args: abs(common.kl_k1(*args)),
    "k2": common.kl_k2,
    # The peer also limits the value.
    "k3": lambda *args: min(common.kl_k3(*args), hyper["value_clamp"]),
  }[hyper["kl_penalty"]]
  everywhere = np.ones_like(logp, bool)

  def kl(logp):
    return common.per_token(
      lambda i, t: estimator(logp[i, t], ref_logp[i, t]), everywhere
    )

  return "kl", kl(logp), ("log_prob_of_sum", lambda x: kl(x).sum())


def golden_agg_loss_verl(hyper, inputs):
  mask = inputs["loss_mask"] > 0

  def loss(x):
    return verl_aggregate(x, mask, hyper)

  return "loss", loss(inputs["loss_mat"]), ("loss_mat", loss)


def golden_ref_enumerated_policy(hyper, inputs):
  args = (hyper["T"], None, inputs["rewards"].ravel())

  def objective(table):
    return enumeration.objective(table, *args)

  return "J", objective(inputs["theta"]), ("J_wrt_theta", objective)


FAMILIES = {
  "adv_grpo_verl": golden_adv_grpo_verl,
  "policy_vanilla_verl": golden_policy_vanilla_verl,
  "policy_gspo_verl": golden_policy_gspo_verl,
  "trl_loss_grpo": golden_trl_loss,
  "trl_loss_dapo": golden_trl_loss,
  "trl_loss_dr_grpo": golden_trl_loss,
  "kl_penalty_verl": golden_kl_penalty_verl,
  "agg_loss_verl": golden_agg_loss_verl,
  "ref_enumerated_policy": golden_ref_enumerated_policy,
}


def is_ours(family, hyper, inputs):
  """True if the references can compute the options of this case."""
  if FOREIGN & (set(hyper) | set(inputs)):
    return False
  if hyper.get("gradient_accumulation_steps", 1) != 1:
    return False
  if family == "trl_loss_dapo":  # not a part of a larger batch, by token
    return (
      hyper["num_items_in_batch"] == inputs["completion_mask"].sum()
      and hyper["importance_sampling_level"] == "token"
    )
  # Sequence ratios with the sum of tokens: nobody's method.
  return not (
    family == "trl_loss_dr_grpo"
    and hyper["importance_sampling_level"] == "sequence"
  )


@pytest.mark.parametrize("family", FAMILIES)
def test_golden(family, request):
  """The references, too, agree with what others computed."""
  directory = request.config.stash[request.config.golden_key][0]
  manifest = json.loads((directory / "MANIFEST.json").read_text())
  num_compared = 0
  with np.load(directory / f"{family}.npz") as file:
    for name, case in manifest["files"][f"{family}.npz"]["cases"].items():
      hyper = case["hyperparameters"]
      inputs = {key: file[at] for key, at in case["inputs"].items()}
      if not is_ours(family, hyper, inputs):
        continue
      inputs = {
        key: x.astype(np.float64) if x.dtype.kind == "f" else x
        for key, x in inputs.items()
      }
      output, value, differentiable = FAMILIES[family](hyper, inputs)
      single = case["dtype"] == "float32"
      np.testing.assert_allclose(
        np.reshape(value, np.shape(file[case["outputs"][output]])),
        file[case["outputs"][output]],
        rtol=1e-4 if single else 1e-6,
        atol=1e-5 if single else 1e-8,
        err_msg=f"{family} {name}",
      )
      num_compared += 1
      # Gradients where they are cheap and where differences are exact enough.
      if differentiable and not single and case["edge"] != "extreme":
        gradient_name, function = differentiable
        at = inputs[gradient_name.split("_of_")[0].split("J_wrt_")[-1]]
        if at.size <= 42:
          np.testing.assert_allclose(
            common.finite_difference(function, at),
            file[case["grads"][gradient_name]],
            rtol=1e-5,
            atol=1e-7,
            err_msg=f"gradient of {family} {name}",
          )
  assert num_compared > 0, f"{directory}: no case of {family} is comparable"
