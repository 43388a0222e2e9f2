"""Holds the references themselves, to answers that are worked out by hand.

What holds for every loss is in the contract of the algorithms, which are
compared with the references.
"""

import functools
import importlib
import inspect
import itertools
import math

import numpy as np
import pytest

from grpo_jax import algorithms
from tests.references import (
  clip_cov,
  common,
  dapo,
  enumeration,
  gfpo,
  kl_cov,
  known,
  lambda_grpo,
  metrics,
  opd_topk,
)

NAN = float("nan")
LN2 = math.log(2)
NAMES = tuple(known.KNOWN)


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
