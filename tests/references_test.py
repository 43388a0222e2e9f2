"""Holds the references themselves: hand-worked answers, and peers' numbers."""

import functools
import importlib
import inspect
import itertools
import json
import math

import numpy as np
import pytest

from grpo_jax import algorithms
from tests.references import (
  clip_cov,
  common,
  dapo,
  dr_grpo,
  enumeration,
  gfpo,
  grpo,
  gspo,
  kl_cov,
  known,
  lambda_grpo,
  metrics,
  opd_topk,
  reinforce,
)

NAN = float("nan")
LN2 = math.log(2)
NAMES = tuple(known.KNOWN)
GARBAGE = (NAN, math.inf, -math.inf, 1e9)


def parameters(name, function="loss"):
  """Function of a reference, and its parameters by name."""
  module = importlib.import_module(f"tests.references.{name}")
  function = getattr(module, function)
  return function, inspect.signature(function).parameters


def called(name, function, arrays):
  """Result of a function of a reference, of those arrays that it takes."""
  function, wanted = parameters(name, function)
  return function(**{key: x for key, x in arrays.items() if key in wanted})


def that_take(*options):
  """Parameters of a test: the algorithms whose loss has these parameters."""
  names = [x for x in NAMES if {*options} <= parameters(x)[1].keys()]
  return pytest.mark.parametrize("name", names)


def rows_of(table):
  """Parameters of a test: each row of a table, for each of its names."""
  rows = [
    (name, i, *row[1:3], row[3] if len(row) > 3 else 1e-11)
    for i, row in enumerate(table)
    for name in row[0].split()
  ]
  return pytest.mark.parametrize(
    ("name", "case", "answer", "rtol"),
    [row[:1] + row[2:] for row in rows],
    ids=[f"{name}-{i}" for name, i, *_ in rows],
  )


# --- losses ------------------------------------------------------------------


def test_every_algorithm_has_a_known_answer():
  assert {*NAMES} == {*algorithms.ALGORITHMS}


@that_take()
def test_policy_loss_by_hand(name):
  loss = called(name, "loss", known.two())
  np.testing.assert_allclose(loss, known.KNOWN[name].loss, 1e-11, 1e-16)


@rows_of(known.LOSSES)
def test_loss_by_hand(name, case, answer, rtol):
  loss = called(name, "loss", case)
  np.testing.assert_allclose(loss, answer, rtol, 1e-14)


@that_take("kl_coef")
def test_divergence_and_entropy_by_hand(name):
  # u = ln 2 at row 0 and 0 at row 1: k3 = 1/2 − 1 + ln 2 at two of 3 tokens.
  # Also with the ratios of deepseek_v32, whose mean is (1.5 + 0.5) / 2 = 1.
  batch = known.two(
    ref_logp=known.NEAR,
    entropy=np.array([[1.0, 2.0, NAN], [4.5, NAN, NAN]]),  # Mean 2.5.
  )
  more = {"kl_coef": 0.1, "entropy_coef": 0.01}
  k = {"k2": LN2**2 / 2, "k3": LN2 - 0.5}[known.KNOWN[name].kl]
  np.testing.assert_allclose(
    called(name, "loss", batch | more) - called(name, "loss", batch),
    0.1 * k * known.MEAN_OF_ROWS[known.KNOWN[name].share] - 0.01 * 2.5,
    1e-10,
  )


@that_take("kl_coef")
def test_divergence_by_default(name):
  # One token at ratio 1 and A = 0, e below the reference: u = −1.
  case = known.one(1.0, 0.0, ref_logp=np.ones((1, 1)))
  without = called(name, "loss", case)
  del case["kl_coef"]
  k = {"k2": 0.5, "k3": math.e - 2}[known.KNOWN[name].kl]
  answer = known.KNOWN[name].kl_coef * k
  assert called(name, "loss", case) - without == pytest.approx(answer)


@that_take("kl_coef")
def test_missing_arrays_are_reported(name):
  if parameters(name)[1]["ref_logp"].default is None:  # Pairs require it.
    with pytest.raises(ValueError, match="ref_logp is None"):
      called(name, "loss", known.two(ref_logp=None, kl_coef=0.1))
  with pytest.raises(ValueError, match="entropy is None"):
    called(name, "loss", known.two(entropy_coef=0.1))


@that_take()
def test_masked_positions_and_empty_rows_do_not_count(name):
  mask = np.pad(known.MASK, ((0, 1), (0, 1)))

  def pad(x, garbage):  # [B, ...] or [B, T, ...], with garbage where masked.
    if x.ndim == 1:
      return np.append(x, x[-1])
    ends = [(0, 1), (0, 1)] + [(0, 0)] * (x.ndim - 2)
    keep = mask.reshape(mask.shape + (1,) * (x.ndim - 2))
    return np.where(keep, np.pad(x, ends), 0 if x.dtype == int else garbage)

  more = {"kl_coef": 0.1, "entropy_coef": 0.1, "budget": 3}
  clean = known.two(entropy=np.ones((2, 3)), **more)
  for garbage in GARBAGE:
    dirty = {
      key: pad(x, garbage) if isinstance(x, np.ndarray) else x
      for key, x in clean.items()
    }
    dirty |= {"mask": mask}
    dirty["advantages"][2] = garbage
    dirty["rewards"][2] = 9.0  # The best of its group, but without tokens.
    np.testing.assert_allclose(
      called(name, "loss", dirty), called(name, "loss", clean), 1e-12
    )


@that_take()
def test_without_tokens_the_loss_is_zero(name):
  assert called(name, "loss", known.two(mask=np.zeros((2, 3), bool))) == 0.0


@pytest.mark.parametrize(
  "name", [x for x, row in known.KNOWN.items() if row.is_policy_gradient]
)
def test_on_policy_gradient_is_the_policy_gradient(name):
  # At ratio 1, ∂L/∂ℓ_it = −w_it A_i with the share of the aggregation.
  logp, row = known.LOGP, known.KNOWN[name]
  case = known.two(old_logp=logp, behavior_logp=logp, frozen_logp=logp)
  gradient = common.finite_difference(
    lambda x: called(name, "loss", case | row.plain | {"logp": x}), logp
  )
  share = {
    known.ROWS: 1 / (2 * known.MASK.sum(axis=1, keepdims=True)),
    known.SUMS: 1 / 2,
    known.ACTION: 1 / 2,  # Every token moves the whole row's ratio.
    known.BUDGET: 1 / (2 * 3),
    known.TOKENS: 1 / 3,
  }[row.share]
  advantages = np.ones(2) if name == "sft" else case["advantages"]
  expected = -share * advantages[:, None] * known.MASK
  np.testing.assert_allclose(gradient, expected, atol=1e-8)


@rows_of(known.GRADIENTS)
def test_constant_parts_by_hand(name, case, answer, rtol):
  case = known.two(frozen_logp=known.LOGP, **case)
  gradient = common.finite_difference(
    lambda x: called(name, "loss", case | {"logp": x}), known.LOGP
  )
  np.testing.assert_allclose(gradient, answer, rtol, 1e-8)


@pytest.mark.parametrize(
  "name", [x for x, row in known.KNOWN.items() if row.bounds]
)
def test_bounds_of_the_ratio(name):
  """Of one token: clip, dual clip, cap and clamp."""
  low, high = known.KNOWN[name].bounds
  taken = parameters(name)[1]
  clamp = taken["log_ratio_clamp"].default
  # 0.65 is above e^{−0.5}, below which deepseek_v32 drops the row. r = 5 and
  # A = −2 gives 10, at most 3 · 2 with dual clip, 4 · 2 and 2 · 2 with the cap;
  # A > 0 feels neither.
  for ratio, advantage, options, answer in (
    (2.0, 1.0, {}, -high),
    (0.65, -1.0, {}, low),
    (2.0, 1.0, {"clip_high": 0.5}, -1.5),
    (0.5, -1.0, {"clip_low": 0.4, "off_policy_threshold": 1.0}, 0.6),
    (5.0, -2.0, {"dual_clip": 0.0}, 10.0),
    (5.0, -2.0, {"dual_clip": 3.0}, 6.0),
    (5.0, -2.0, {"ratio_cap": 4.0}, 8.0),
    (5.0, -2.0, {"ratio_cap": 2.0}, 4.0),
    (5.0, 2.0, {"dual_clip": 3.0, "ratio_cap": 4.0}, -2 * high),
    (5.0, 2.0, {"dual_clip": 3.0, "clip_high": 9.0}, -10.0),
    (math.exp(30), -1.0, {"dual_clip": 0.0}, math.exp(clamp)),
    (
      math.exp(30),
      -1.0,
      {"dual_clip": 0.0, "log_ratio_clamp": None},
      math.exp(30),
    ),
  ):
    if not options.keys() - {"off_policy_threshold"} <= taken.keys():
      continue
    if name == "gmpo" and options:  # Its bounds are those of log-ratios.
      continue
    loss = called(name, "loss", known.one(ratio, advantage, **options))
    assert loss == pytest.approx(answer, rel=1e-12), options


# --- advantages --------------------------------------------------------------


@rows_of(known.ADVANTAGES)
def test_advantages_by_hand(name, case, answer, rtol):
  found = called(name, "advantages", known.GROUPS | case)
  np.testing.assert_allclose(found, answer, rtol, max(1e-14, rtol))


@rows_of(known.RETURNS)
def test_returns_by_hand(name, case, answer, rtol):
  np.testing.assert_allclose(called(name, "returns", case), answer, rtol)


@pytest.mark.parametrize(("reward", "size"), [(0.7, 12), (0.1, 7), (0.7, 16)])
@pytest.mark.parametrize(
  "name", [x for x, row in known.KNOWN.items() if row.compares] + ["grpo_ps"]
)
def test_equal_rewards_give_exactly_zero(name, reward, size):
  ones = np.ones((size, 1), bool)
  equal = {
    "rewards": np.full(size, reward),
    **{"valid": np.ones(size, bool), "group_id": np.zeros(size, int)},
    **{"mask": ones, "step_mask": ones, "step_rewards": reward * ones},
    **{"components": reward * ones, "behavior_entropy": 0.1 + ones},
    **{"old_logp": -0.7 * ones, "sum_pi_squared": 0.5 * ones},
  }
  found = called(name, "advantages", equal)
  # The optimal baseline has 1e-8 in its denominator.
  np.testing.assert_allclose(found, 0.0, atol=1e-8 if name == "otb" else 0.0)


@that_take()
def test_masked_slots_and_invalid_rows_do_not_reach_advantages(name):
  valid, mask = known.GROUPS["valid"], known.GROUPS["mask"]
  slots = np.linspace(-1.0, -0.1, mask.size).reshape(mask.shape)
  rows = np.linspace(0.0, 1.0, len(valid))
  batch = known.GROUPS | {
    **{"step_mask": mask, "segment_end": mask, "correct": rows > 0.4},
    **{"turn": mask * [0, 1, 1], "state_id": mask * [0, 1, 0]},
  }
  per_slot = ("old_logp", "ref_logp", "token_rewards", "step_rewards")
  per_slot += ("old_values", "turn_rewards", "prefix_utility")
  real = dict.fromkeys(per_slot, slots)
  real |= {"sum_pi_squared": -0.5 * slots, "behavior_entropy": -slots}
  real |= dict.fromkeys(("greedy_rewards", "expected"), rows)
  real |= {"rewards": np.where(valid, known.GROUPS["rewards"], 0)}

  def advantages(fill):
    dirty = {
      key: np.where(mask & valid[:, None] if x.ndim == 2 else valid, x, fill)
      for key, x in real.items()
    }
    dirty["components"] = np.where(valid[:, None], slots[:, :2], fill)
    return called(name, "advantages", batch | dirty)

  for garbage in GARBAGE:
    with_garbage = advantages(garbage)
    np.testing.assert_array_equal(with_garbage, advantages(0.0))
    assert np.isfinite(with_garbage).all()
    np.testing.assert_array_equal(with_garbage[~valid], 0.0)


@pytest.mark.parametrize("name", ["gtpo", "grpo_s", "edge_grpo"])
def test_unscored_empty_and_masked_do_not_shape(name):
  # One unscored row, one without tokens, and another group, interleaved. A
  # scored row without tokens counts nowhere either.
  def extend(x, unscored, empty):
    return np.concatenate([[unscored], x[:2], [empty], x[2:]])

  full, none = np.full(3, 0.7), np.full(3, NAN)
  scored = name != "edge_grpo"
  extended = {
    "rewards": extend(known.SHAPED["rewards"], NAN, 1.0 if scored else NAN),
    "valid": extend(known.SHAPED["valid"], False, scored),
    "group_id": extend(known.SHAPED["group_id"], 6, 6),
    "behavior_entropy": extend(known.SHAPED["behavior_entropy"], full, none),
    "mask": extend(known.SHAPED["mask"], full > 0, full < 0),
    "correct": extend(known.SHAPED["correct"], True, True),
  }
  found = called(name, "advantages", extended)
  expected = called(name, "advantages", known.SHAPED)
  np.testing.assert_array_equal(found[[1, 2, 4, 5]], expected)
  np.testing.assert_array_equal(found[[0, 3]], 0.0)


@pytest.mark.parametrize("name", ["gtpo", "grpo_s"])
def test_groups_are_shaped_apart(name):
  # The same four rows twice, in two interleaved groups.
  twice = {key: np.repeat(x, 2, axis=0) for key, x in known.SHAPED.items()}
  np.testing.assert_array_equal(
    called(name, "advantages", twice | {"group_id": np.tile([8, -1], 4)}),
    np.repeat(called(name, "advantages", known.SHAPED), 2, axis=0),
  )
  with pytest.raises(ValueError, match="normalization is 'both'"):
    called(name, "advantages", known.SHAPED | {"normalization": "both"})


# --- pieces ------------------------------------------------------------------

CLIP = 0.2, 0.28
LN4 = math.log(4.0)
X = [[1.0, 2.0, 3.0, NAN], [6.0, NAN, NAN, NAN], [NAN] * 4]
X_MASK = [[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
QUARTERS = np.log([4.0, 2.0, 2.0]) + 700.0
LOGITS = [QUARTERS, [0, 0, -np.inf], [5, -np.inf, -np.inf]]
# 1, 2, 6: mean 3, variance (4 + 1 + 9) / 2 = 7.
WHITE = [[1.0, NAN, 2.0], [6.0, NAN, NAN]], [[1, 0, 1], [1, 0, 0]], 2.0
TWELVE = np.full((3, 4), 0.1), np.ones((3, 4))
HOLE = [LN2, NAN, LN2], [0.0, NAN, 0.5], [1, 0, 1], 20.0
CANCELS = [30.0, -30.0, 1.0], [0.0] * 3, [1] * 3, 20.0
REWARDS = [known.GROUPS[x] for x in ("rewards", "valid", "group_id")]
# The only different reward was not scored, so the group is dead.
DEAD = [1.0, 1.0, 0.0], [True, True, False], [0] * 3
COV = [known.COV[x] for x in ("old_logp", "mask", "advantages")]
OPEN = *COV, 2.0, 4.0  # The ends of the interval are out.
# Lengths 1 and 3: z = ∓1, h = 8/9 and 10/9. At λ = 2, h² = 64/81, 100/81; their
# difference is 4/9. The empty row and the lone row change nothing.
RAGGED = [[1, 0, 0], [0, 1, 0], [1, 1, 1], [0, 0, 0]], [5, 1, 5, 5]
SHORT = 2 / (1 + math.exp(4 / 9))
# ρ = 2: h = −1, limited to h_min, and 3.
SHORTER = 2 / (1 + math.exp(3 - 1e-3))
length_weights = lambda_grpo.length_weights
steep = functools.partial(length_weights, rho=2.0)
# A = ±1 and ℓ_old symmetric about 0: the covariances are |ℓ_old|.
ROW = np.array([0.9, 1.1, 4.9, 5.1])
SYMMETRIC = [ROW, -ROW], np.ones((2, 4), bool), [1.0, -1.0]
# 2e-4 of 10,000 tokens, the outermost of a line on which A = ℓ_old.
LINE = np.linspace(-3.0, 3.0, 10_000)[None]
MANY = LINE, np.ones(LINE.shape, bool), LINE
OUTERMOST = np.isin(np.arange(10_000), [0, 9_999])[None]
PAIRS = [known.PAIRS[x] for x in ("rewards", "valid", "group_id", "mask")]
KEPT = [known.KEPT[x] for x in ("rewards", "valid", "group_id")]
KEPT += [known.KEPT["mask"].sum(axis=1), 4, "efficiency"]
# Student ½, ¼ | ¼, teacher ¼, ½ | ¼. Then the list of ids is the whole
# vocabulary: there is no rest. Then a student that never writes the id.
WITH_REST = np.log([0.5, 0.25]), np.log([0.25, 0.5]), 1e-12
WHOLE = np.log([0.75, 0.25]), np.log([0.25, 0.75]), 1e-12
REST = [-math.inf], [math.log(0.75)], 1e-12

# Function, arguments, answer and, unless round off decides, its relative error.
PIECES = [
  (common.clipped_surrogate, (2.0, 3.0, *CLIP), 1.28 * 3.0),
  (common.clipped_surrogate, (0.5, 3.0, *CLIP), 1.5),
  (common.clipped_surrogate, (0.5, -3.0, *CLIP), -2.4),
  (common.clipped_surrogate, (5.0, -3.0, *CLIP), -15.0),
  (common.clipped_surrogate, (5.0, -3.0, *CLIP, 4.0), -12.0),
  (common.clipped_surrogate, (5.0, 3.0, *CLIP, 4.0), 3.84),
  (common.kl_k1, (-1.0, -1.0 - LN4), LN4),
  (common.kl_k2, (-1.0, -1.0 - LN4), LN4 * LN4 / 2),
  (common.kl_k3, (-1.0, -1.0 - LN4), 0.25 - 1 + LN4),
  # For small u, k3 = u²/2 − u³/6 + …, where e^{−u} − 1 + u has no digits left.
  (common.kl_k3, (1e-6, 0.0), 0.5e-12 - 1e-18 / 6, 1e-8),
  (common.kl_k3, (-100.0, 0.0), math.exp(20) - 21),
  (common.seq_mean_token_mean, (X, X_MASK), (2 + 6) / 2),
  (common.token_mean, (X, X_MASK), 12 / 4),
  (common.seq_mean_token_sum, (X, X_MASK), 12 / 2),
  (common.seq_mean_token_sum_norm, (X, X_MASK), 12 / (2 * 4)),
  (common.seq_mean_token_sum_norm, (X, X_MASK, 6), 12 / (2 * 6)),
  (common.log_softmax, (QUARTERS,), np.log([0.5, 0.25, 0.25])),
  (common.entropy_from_logits, (LOGITS,), [1.5 * LN2, LN2, 0.0]),
  (common.whiten, WHITE, [[-2 / 3, 0, -1 / 3], [1, 0, 0]]),
  (common.whiten, TWELVE, np.zeros((3, 4)), 0.0),
  (common.trajectory_ratio, HOLE, 4 * math.exp(-0.5)),
  # The sum is limited, not its terms: 30 − 30 + 1.
  (common.trajectory_ratio, CANCELS, math.e),
  (common.trajectory_ratio, ([30.0], [0.0], [1], 20.0), math.exp(20)),
  (common.negative_log_sigmoid, (0.0,), LN2),
  (common.negative_log_sigmoid, (-1000.0,), 1000.0),
  (common.negative_log_sigmoid, (50.0,), math.exp(-50)),
  (common.pairs, PAIRS, [(0, 3)]),
  (common.covariance, COV, [[2.0, 0.0, 0.0], [4.0, 0.0, 0.0]]),
  (length_weights, (*RAGGED, 2.0), [SHORT, 1, 2 - SHORT, 0], 1e-6),
  (length_weights, (*RAGGED, 0.0), [1, 1, 1, 0], 0.0),
  (steep, (*RAGGED, 1.0), [SHORTER, 1, 2 - SHORTER, 0], 1e-5),
  (clip_cov.candidates, COV, [[1, 0, 0], [1, 0, 0]]),
  (clip_cov.candidates, OPEN, np.zeros((2, 3))),
  (clip_cov.candidates, SYMMETRIC, [[0, 1, 1, 0]] * 2),
  (clip_cov.num_dropped, COV, 1),
  (clip_cov.num_dropped, (*COV, 1.0, 5.0, 1.0), 2),
  (clip_cov.num_dropped, OPEN, 0),
  (clip_cov.num_dropped, MANY, 2),
  (kl_cov.chosen, MANY, OUTERMOST),
  (kl_cov.chosen, COV, [[0, 0, 0], [1, 0, 0]]),
  (kl_cov.chosen, (*COV, 0.7), [[1, 0, 0], [1, 0, 0]]),
  (kl_cov.chosen, (*COV, 0.6), [[0, 0, 0], [1, 0, 0]]),
  (gfpo.kept_rows, KEPT, [0, 3, 1, 6]),
  (dapo.soft_overlong, (0, 20480, 4096), 0),
  (dapo.soft_overlong, (16384, 20480, 4096), 0),
  (dapo.soft_overlong, (18432, 20480, 4096), -0.5),
  (dapo.soft_overlong, (20480, 20480, 4096), -1),
  (dapo.soft_overlong, (20481, 20480, 4096), -1),
  (dapo.live_groups, REWARDS, [1, 1, 1, 1, 0, 1, 0]),
  (dapo.live_groups, DEAD, [0] * 3),
  (dapo.overlong_filter, (known.MASK, [0, 1]), [[0, 0, 0], [1, 0, 0]]),
  (opd_topk.bucketed_kl, WITH_REST, 0.25 * LN2),  # ½ ln 2 − ¼ ln 2.
  (opd_topk.bucketed_kl, WHOLE, 0.5 * math.log(3), 1e-6),
  (opd_topk.bucketed_kl, REST, 2 * LN2),
  (metrics.pass_at_k, (8, 2, 1), 0.25),
  (metrics.pass_at_k, (8, 2, 4), 11 / 14),  # 1 − C(6,4)/C(8,4) = 1 − 15/70.
  (metrics.pass_at_k, (16, 3, 8), 0.9),
  (metrics.pass_at_k, (8, 0, 4), 0.0),
  (metrics.pass_at_k, (8, 5, 4), 1.0),
  (metrics.pass_at_k, (2000, 1, 1000), 0.5),
  (metrics.maj_at_k, ("aab", "a", 1), 2 / 3),  # The mean accuracy.
  (metrics.maj_at_k, ("aab", "a", 2), 2 / 3),  # aa wins, ab and ab tie.
  (metrics.maj_at_k, ("aab", "a", 3), 1.0),
  # {a,–} wins, {a,b} ties, {–,b} loses.
  (metrics.maj_at_k, (["a", None, "b"], "a", 2), 0.5),
  # Two invalid answers do not outvote one.
  (metrics.maj_at_k, (["a", None, None], "a", 3), 1.0),
  (metrics.maj_at_k, ([None, None], "a", 1), 0.0),
  (metrics.maj_at_k, ("abc", "a", 3), 1 / 3),
  (metrics.maj_at_k, ("bbb", "a", 2), 0.0),
]


@pytest.mark.parametrize("row", PIECES)
def test_piece_by_hand(row):
  function, arguments, answer, *error = row
  rtol = error[0] if error else 1e-12
  found = function(*arguments)
  # k3 of a small u has no digit to lose.
  np.testing.assert_allclose(found, answer, rtol, 0 if error else 1e-12)


@pytest.mark.parametrize(("n", "c"), itertools.product((1, 3, 6), (0, 1, 2)))
def test_pass_at_k_counts_subsets(n, c):
  c = min(c, n)
  right = [True] * c + [False] * (n - c)
  for k in range(1, n + 1):
    hits = [any(subset) for subset in itertools.combinations(right, k)]
    assert metrics.pass_at_k(n, c, k) == pytest.approx(np.mean(hits))


@pytest.mark.parametrize("k", [0, 4])
def test_subset_sizes_are_checked(k):
  with pytest.raises(ValueError, match=f"k={k}"):
    metrics.pass_at_k(3, 1, k)
  with pytest.raises(ValueError, match=f"k={k}"):
    metrics.maj_at_k("aab", "a", k)


def test_finite_difference_of_a_cubic():
  x = np.array([[1.0, -2.0], [0.5, 3.0]])
  gradient = common.finite_difference(lambda y: (y**3).sum(), x)
  np.testing.assert_allclose(gradient, 3 * x**2, rtol=1e-7)


def test_bucketed_divergence_is_below_the_full_one():
  # Merging symbols into a bucket never increases a divergence.
  logits = np.random.default_rng(0).normal(size=(2, 6))
  p, q = common.log_softmax(logits)
  full = float((np.exp(p) * (p - q)).sum())
  top = [np.argsort(-q)[:k] for k in (1, 3, 6)]
  values = [opd_topk.bucketed_kl(p[ids], q[ids], 1e-12) for ids in top]
  assert 0 <= values[0] <= values[1] <= values[2]
  assert values[2] == pytest.approx(full)


# --- enumeration -------------------------------------------------------------


def random_table(seed, num_symbols, num_slots):
  rows = enumeration.num_prefixes(num_symbols, num_slots)
  return np.random.default_rng(seed).normal(size=(rows, num_symbols))


def test_enumeration_by_hand():
  # Uniform over {end, 1}: y = (end), (1, end), (1, 1) with ½, ¼, ¼.
  table = np.zeros((3, 2))
  completions = enumeration.enumerate_completions(table, 2, end_token=0)
  assert [list(c.tokens) for c in completions] == [[0, 0], [1, 0], [1, 1]]
  assert [list(c.mask) for c in completions] == [[1, 0], [1, 1], [1, 1]]
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
  [(3, 2, None, 9), (3, 2, 2, 1 + 6), (5, 2, 4, 1 + 20), (3, 3, 1, 3 + 12)],
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
      lambda z: enumeration.objective(z, num_slots, end_token, rewards), table
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
        lambda x, f=algorithm.loss, more=(logp, mask, advantages): f(x, *more),
        logp,
      )
      slope = np.einsum("bt,btrv->rv", gradient, np.stack([d[a], d[b]]))
      total -= pair[0].prob * pair[1].prob * slope
  np.testing.assert_allclose(mean[reinforce], exact, atol=1e-8)
  expected = (1 / 2) * exact / num_slots
  np.testing.assert_allclose(mean[dr_grpo], expected, atol=1e-8)


# --- golden numbers of other implementations ---------------------------------

VERL_AGGREGATION = {
  "token-mean": common.token_mean,
  "seq-mean-token-sum": common.seq_mean_token_sum,
  "seq-mean-token-mean": common.seq_mean_token_mean,
}

# Inputs and settings that the references do not have; cases with one of them
# belong to other methods.
FOREIGN = {
  *("delta", "dp_size", "importance_sampling_ratio", "rollout_is_weights"),
  *("off_policy_mask_threshold", "top_entropy_quantile"),
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
    terms = common.token_clip(
      *(logp, inputs["old_log_prob"], mask, inputs["advantages"]),
      *(hyper["clip_ratio_low"], hyper["clip_ratio_high"]),
      *(hyper["clip_ratio_c"], 0.0),
    )
    return verl_aggregate(terms, mask, hyper)

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
      *(logp, inputs["old_log_prob"], mask, advantages),
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
