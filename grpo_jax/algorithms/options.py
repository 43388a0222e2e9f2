"""The common options of algorithms, and the inputs that they need.

An algorithm's config derives from `CommonConfig`, or from `ClipConfig` if it
clips a ratio. Each common option is a field that is applied in one place, most
of them in `objective.py`. `check` refuses an option that an algorithm cannot
use.
"""

from __future__ import annotations

import dataclasses
import functools
import traceback
from collections.abc import Callable
from typing import Any, TypeVar, cast

from grpo_jax.ops import aggregation, divergences, returns
from grpo_jax.types import (
  Algorithm,
  PolicyOutputs,
  TrainBatch,
  needs_of,
  providers,
)

_Function = TypeVar("_Function", bound=Callable[..., Any])
# Optional inputs of a loss, and their providers.
NEEDS = {
  **providers(TrainBatch),
  **providers(PolicyOutputs),
  "anchor": "old_logp from a pass of its own (every phase)",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommonConfig:
  """Options of every algorithm.

  Attributes:
    kl_coef: Weight of the KL to the frozen reference, per nat.
    kl_kind: Estimator: "k1", "k2", "k3", "abs", "k1_plus" and "k3_plus"
      (value of one, gradient of k2), "k3_unbiased" (weighted by the ratio) or
      "full" (over the whole vocabulary).
    jsd_beta: Divergence of "full" and of the algorithm opd_full: 1 is KL(policy
      ‖ reference), 0 is KL(reference ‖ policy), between them the generalised
      Jensen-Shannon divergence (GKD, arXiv:2306.13649).
    kl_in_reward: Subtract kl_coef · k1 from the reward of each token instead
      of adding the KL to the loss; refused unless `reads_rewards`.
    kl_domain_weights: Factor of kl_coef for each prompt domain; empty: 1.
    kl_target: Adapt kl_coef to hold this KL, nats per token; 0 keeps it.
    kl_horizon: Completions over which kl_coef adapts to kl_target.
    opd_coef: λ of the advantage A − λ (log π − log π_teacher) of each sampled
      token, per nat; the teacher is the reference of the phase.
    opd_anchor: Policy whose log π opd_coef compares with the teacher's: the
      policy at the "start" of the update, or the "current" policy in each
      gradient step (cross-stage distillation, GLM-5, arXiv:2602.15763).
    opd_clamp: Largest |log π − log π_teacher| at a token, nats.
    opd_early: γ of the factor 1 + γ (1 − share of the row's differences before
      the token), with which early tokens count more (TRL); 0: factor 1.
    opd_domain_weights: Factor of the teacher's signal for each prompt domain,
      also in 'opd_full' and 'opd_topk'; empty: 1.
    entropy_coef: Weight of the entropy bonus, per nat, token mean.
    entropy_target: Adapt entropy_coef towards this entropy, nats per token,
      and apply it only below; 0 keeps it.
    entropy_coef_step: Change of entropy_coef per step to reach entropy_target.
    top_entropy_fraction: Share of the tokens, those with the highest entropy
      of the batch, whose policy loss counts; 1 is all.
    advantage_scale: Divide advantages by the deviation of the rewards of the
      "group" or of the "batch", or "none"; refused where `scale_free`.
    advantage_eps: Number added to the deviation that divides advantages.
    singleton: Advantage of the only scored completion of a group: "zero",
      because there is no comparison, or "raw", its reward (verl).
    count_empty: True if completions without a trained token count in a mean
      over completions, as in TRL; not with dynamic_sampling or rejection.
    token_mean_scope: Scope of a policy loss that is a mean over tokens: over
      all tokens of the "batch"; or the mean over groups of the mean over the
      tokens of a "group" (DAPO, arXiv:2503.14476, Eq. 8). The count is that of
      trained tokens in the whole batch, whatever its minibatches.
    overlong_cache: Share of the budget, at its end, over which the reward falls
      by up to 1 (DAPO's soft punishment); 0 switches it off. Refused unless
      `reads_rewards`.
    overlong_filter: Leave completions that hit the budget out of the loss
      (DAPO, Section 3.4). They stay in the statistics of advantages, but pairs
      of preferences are chosen among the others.
    dynamic_sampling: Leave groups whose rewards are all equal out of the loss
      and of its denominators (DAPO, Section 3.2). With config.rl.max_rounds
      above 1 others are drawn in their place.
    min_reward_std: With dynamic sampling, the deviation, with n − 1 in the
      denominator, that unequal rewards of a group must exceed for it to be
      trained; 0: any difference is enough. slime has 1e-6, below which rewards
      differ by round-off.
    max_live_groups: With dynamic sampling, the most live groups of an
      over-sampled batch to train on, the first ones; 0 keeps all of them.
    importance_mode: Correct the gap between the sampler's and the trainer's
      log-probs by weights that are "truncate"d at importance_max, or "mask"ed
      to 0 outside [importance_min, importance_max]; or "none".
    importance_level: Unit of the weights: a "token", or the whole "sequence".
    importance_max, importance_min: Bounds of the weights.
    importance_normalize: Divide the weights by their mean over the batch.
    rejection: Leave tokens or sequences on which sampler and trainer disagree
      out of the loss and its denominators: "none", or the statistic and the
      estimator: "token_k1", "seq_sum_k1", "seq_mean_k1", "seq_max_k2", … with
      k1 to k3.
    rejection_low, rejection_high: Bounds: for k1, of the ratio of sampler to
      trainer (of its product or geometric mean over a sequence), a lower one of
      0 for none; otherwise only the upper bound, of the estimate.
    off_policy_threshold: Fall of the mean log-prob since sampling, in nats,
      above which the policy loss of a completion with a negative advantage is
      left out; 0 switches it off. Kept completions are not weighed.
    keep_sampling_mask: Take all log-probs over the tokens that the sampler's
      filters kept, so that sampling and training have the same support.
    keep_routing: Send each token through the experts of its sampling
      (DeepSeek-V3.2, arXiv:2512.02556), except in the reference. With sparse
      attention a token also sees the tokens that it saw then. A rollout then
      holds 4 · index_topk bytes for each token and layer: with all layers of
      DeepSeek-V3.2 0.5 MB a token.
    balance_coef: Weight of the load-balance loss of a model with experts,
      which is 1 for an even load (`ops/routing.py`).
    router_bias_step: Change of the routers' biases per step, up for an expert
      with less than the mean load and down for one with more (DeepSeek-V3,
      arXiv:2412.19437, Section 2.1.2); 0 keeps them.
    indexer_coef: Weight of the loss that trains the indexers of sparse
      attention, per nat, token mean over layers (`models/indexer.py`); 0 keeps
      them as they are.
    positive_nll_coef: Weight of the likelihood of right answers, per nat,
      token mean.
  """

  kl_coef: float = 0.0
  kl_kind: str = "k3"
  jsd_beta: float = 1.0
  kl_in_reward: bool = False
  kl_domain_weights: tuple[float, ...] = ()
  kl_target: float = 0.0
  kl_horizon: float = 10_000.0
  opd_coef: float = 0.0
  opd_anchor: str = "start"
  opd_clamp: float = 20.0
  opd_early: float = 0.0
  opd_domain_weights: tuple[float, ...] = ()
  entropy_coef: float = 0.0
  entropy_target: float = 0.0
  entropy_coef_step: float = 0.005
  top_entropy_fraction: float = 1.0
  advantage_scale: str = "none"
  advantage_eps: float = 1e-6
  singleton: str = "zero"
  count_empty: bool = False
  token_mean_scope: str = "batch"
  overlong_cache: float = 0.0
  overlong_filter: bool = False
  dynamic_sampling: bool = False
  min_reward_std: float = 0.0
  max_live_groups: int = 0
  importance_mode: str = "none"
  importance_level: str = "token"
  importance_max: float = 2.0
  importance_min: float = 0.0
  importance_normalize: bool = False
  rejection: str = "none"
  rejection_low: float = 0.5
  rejection_high: float = 2.0
  off_policy_threshold: float = 0.0
  keep_sampling_mask: bool = False
  keep_routing: bool = False
  balance_coef: float = 0.0
  router_bias_step: float = 0.0
  indexer_coef: float = 0.0
  positive_nll_coef: float = 0.0

  def __post_init__(self):
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      number = isinstance(value, (int, float)) and not isinstance(value, bool)
      if number and not value >= 0:  # `not >=` also catches NaN.
        self.complain(
          field.name,
          "is negative or not a number; every width, weight and count of an"
          f" algorithm is ≥ 0 (its default is {field.default})",
        )
    for name, choices in _CHOICES.items():
      if getattr(self, name) not in choices:
        self.complain(name, f"is unknown; choose one of {', '.join(choices)}")
    for name in (
      *("kl_horizon", "importance_max", "rejection_high", "opd_clamp"),
      *("log_ratio_clamp", "ratio_max"),  # Of some algorithms.
    ):
      if getattr(self, name, 1.0) == 0:
        self.complain(name, "must be greater than 0")
    for name in ("overlong_cache", "top_entropy_fraction", "jsd_beta"):
      if getattr(self, name) > 1:
        self.complain(name, "is a share in [0, 1]")
    if self.top_entropy_fraction == 0:
      self.complain("top_entropy_fraction", "would train nothing; 1 is all")
    for name in ("kl_domain_weights", "opd_domain_weights"):
      if any(not weight >= 0 for weight in getattr(self, name)):
        self.complain(name, "has a weight that is not ≥ 0")
    if self.kl_in_reward and self.kl_kind != "k1":
      self.complain(
        "kl_kind",
        "cannot be in the reward: the expectation of k1 there is the KL with"
        " the right credit per token; set kl_kind='k1'",
      )
    if self.min_reward_std and not self.dynamic_sampling:
      self.complain(
        "min_reward_std",
        "says which groups dynamic sampling trains, and it is off; set"
        " dynamic_sampling=True, or leave it 0",
      )
    if self.singleton == "raw" and self.dynamic_sampling:
      self.complain(
        "singleton",
        "is about a completion that alone of its group was scored, which"
        " dynamic sampling leaves out; set 'zero', or dynamic_sampling=False",
      )
    if self.count_empty and (self.dynamic_sampling or self.rejection != "none"):
      self.complain(
        "count_empty",
        "counts the completions that dynamic_sampling and rejection leave out"
        " of the denominators; set False, or switch these off",
      )
    if self.kl_target and not self.kl_coef:
      self.complain("kl_target", "has no kl_coef to start from; set it > 0")
    if self.advantage_scale != "none" and self.scale_free:
      self.complain(
        "advantage_scale",
        "would divide by the deviation of the rewards what does not grow with"
        " them: these advantages have a scale of their own; set 'none'",
      )
    for name in ("kl_in_reward", "overlong_cache"):
      if getattr(self, name) and not self.reads_rewards:
        self.complain(
          name,
          "shapes the sum of a completion's rewards, which this algorithm does"
          " not read; switch the option off",
        )
    for low, high in (
      ("importance_min", "importance_max"),
      ("rejection_low", "rejection_high"),
    ):
      if getattr(self, low) > getattr(self, high):
        self.complain(low, f"is above {high}={getattr(self, high)}")

  @property
  def scale_free(self) -> bool:
    """True if a factor of all rewards does not change advantages.

    That is so if the algorithm standardises advantages by itself, or does not
    compute them from rewards.
    """
    return False

  @property
  def reads_rewards(self) -> bool:
    """True if the loss depends on the sums of completions' rewards.

    If it does not, terms cannot be added to these sums.
    """
    return True

  def for_pretraining(self) -> CommonConfig:
    """The config of a phase that trains the critic alone, on all rows."""
    return dataclasses.replace(
      self,
      dynamic_sampling=False,
      min_reward_std=0.0,
      max_live_groups=0,
      overlong_filter=False,
      rejection="none",
    )

  def complain(self, name: str, what: str) -> None:
    """Raises the ValueError about one field."""
    raise ValueError(
      f"{type(self).__name__}: {name}={getattr(self, name)!r} {what}. Set"
      f" --config.algorithm.{name}."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClipConfig(CommonConfig):
  """Options of algorithms that clip a ratio.

  Attributes:
    clip_low, clip_high: The ratio is clipped to [1 − low, 1 + high].
    dual_clip: With a negative advantage the loss is at most this times |A|
      (Ye et al., arXiv:1912.09729); > 1, or 0 for none.
    ratio_cap: Upper bound of the ratio before anything else (INTELLECT-2,
      arXiv:2505.07291); > 1 + clip_high, or 0 for none.
    log_ratio_clamp: Largest |log ratio|, nats, so that exp cannot overflow.
  """

  clip_low: float = 0.2
  clip_high: float = 0.2
  dual_clip: float = 0.0
  ratio_cap: float = 0.0
  log_ratio_clamp: float = 20.0

  def __post_init__(self):
    super().__post_init__()
    if self.clip_low > 1:
      self.complain(
        "clip_low",
        "puts the lower bound 1 − clip_low of the ratio below 0; it is a"
        " width in [0, 1]",
      )
    if self.dual_clip and self.dual_clip <= 1:
      self.complain("dual_clip", "must be above 1, or 0 for none")
    if self.ratio_cap and self.ratio_cap <= 1 + self.clip_high:
      self.complain("ratio_cap", "must be above 1 + clip_high, or 0 for none")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CriticOptions(CommonConfig):
  """Options of algorithms with a critic.

  Attributes:
    gamma: Discount per trained token, in [0, 1].
    lam: λ of the policy's advantages, in [0, 1].
    lam_critic: λ of the critic's targets, in [0, 1]; 1 is the return itself,
      whatever the critic says (decoupled GAE, VC-PPO, arXiv:2503.01491).
    length_adaptive_alpha: α of λ_i = 1 − 1 / (α |y_i|) in the place of `lam`
      (VAPO, arXiv:2504.05118), within [0, 1]; 0 keeps `lam`.
    length_adaptive_unit: Unit whose tokens |y_i| counts if a rollout was
      compacted into several contexts: the whole "trace", which is the rollout,
      so that all of its contexts have one λ; or each "context".
    boundary: Meaning of the end of a context in such a rollout: "outcome",
      "chain", "bootstrap", "compaction_rl" or "compaction_rl_bootstrap"
      (`returns.subtrace_advantages`).
    reward: Reward of a context at its last trained token in such a rollout:
      "terminal", the rollout's R where `boundary` pays it; or "split", R / K
      each, K the contexts of the rollout (slime).
    bootstrap_cut: True to use the critic's value after the last token of a
      completion that the budget cut off, γ V, in advantages and targets alike;
      False: 0, as after an end. An episode that its environment ends, also by
      a limit of turns, has ended.
    whiten: Standardise advantages over all tokens of the batch that the policy
      wrote in scored rows.
    value_clip: Distance from the old value beyond which a move of the value
      does not lower the critic's error; 0 for no clip.
  """

  gamma: float = 1.0
  lam: float = 0.95
  lam_critic: float = 0.95
  length_adaptive_alpha: float = 0.0
  length_adaptive_unit: str = "trace"
  boundary: str = "outcome"
  reward: str = "terminal"
  bootstrap_cut: bool = False
  whiten: bool = True
  value_clip: float = 0.2

  def __post_init__(self):
    super().__post_init__()
    for name in ("gamma", "lam", "lam_critic"):
      if getattr(self, name) > 1:
        self.complain(name, "must be in [0, 1]")
    for name, choices in (
      ("boundary", returns.BOUNDARIES),
      ("reward", returns.REWARDS),
      ("length_adaptive_unit", ("trace", "context")),
    ):
      if getattr(self, name) not in choices:
        self.complain(name, f"is unknown; choose one of {', '.join(choices)}")
    if self.bootstrap_cut and self.overlong_filter:
      self.complain(
        "bootstrap_cut",
        "is about completions that are cut off, and overlong_filter=True trains"
        " none of them; set one of the two False",
      )

  @property
  def scale_free(self) -> bool:
    return self.whiten

  def for_pretraining(self) -> CriticOptions:
    """The config of a phase that trains the critic alone, on plain returns.

    Values are not clipped. If contexts end with the value of the next one, the
    return continues there. It does not continue beyond the budget:
    `bootstrap_cut` stays unchanged.

    Source: VC-PPO, arXiv:2503.01491, Section 3.2.
    """
    on_all_rows = super().for_pretraining()
    assert isinstance(on_all_rows, CriticOptions)
    bootstraps = self.boundary.endswith("bootstrap")
    return dataclasses.replace(
      on_all_rows,
      lam_critic=1.0,
      value_clip=0.0,
      boundary="chain" if bootstraps else self.boundary,
    )


_CHOICES = {
  "opd_anchor": ("start", "current"),
  "kl_kind": (*divergences.KL_KINDS, "full"),
  "advantage_scale": ("none", "group", "batch"),
  "singleton": ("zero", "raw"),
  "token_mean_scope": ("batch", "group"),
  "importance_mode": ("none", "truncate", "mask"),
  "importance_level": ("token", "sequence"),
  "rejection": (
    "none",
    *(
      f"{statistic}_{kind}"
      for statistic in ("token", "seq_sum", "seq_mean", "seq_max")
      for kind in ("k1", "k2", "k3")
    ),
  ),
}


_OF_POLICY = (
  "kl_coef",
  "opd_coef",
  "entropy_coef",
  "entropy_target",
  "top_entropy_fraction",
  "singleton",
  "count_empty",
  "token_mean_scope",
  "importance_mode",
  "off_policy_threshold",
  "positive_nll_coef",
)


def check(algorithm: Algorithm, config: CommonConfig) -> None:
  """Raises ValueError if this algorithm cannot use an option."""
  if algorithm.policy_loss is None:
    for name in _OF_POLICY:
      if getattr(config, name) != getattr(CommonConfig, name):
        config.complain(
          name,
          f"of algorithm {algorithm.name!r} is about the loss of a policy, and"
          f" it trains none; leave it {getattr(CommonConfig, name)!r}",
        )
  counts_tokens = algorithm.aggregate is aggregation.over_tokens
  for name, is_on, is_supported, why in (
    (
      "token_mean_scope",
      config.token_mean_scope == "group",
      counts_tokens,
      "is about a mean over tokens, and its loss is one over completions; set"
      " 'batch', or choose an algorithm such as 'dapo'",
    ),
    (
      "count_empty",
      config.count_empty,
      not counts_tokens,
      "is about a mean over completions, and its loss is one over tokens; set"
      " False, or choose an algorithm such as 'grpo'",
    ),
    (
      "importance_mode",
      config.importance_mode != "none",
      "behavior_logp" not in algorithm.needs,
      "weighs by the ratio between trainer and sampler, which the ratio of its"
      " loss has already; set 'none'",
    ),
    (
      "singleton",
      config.singleton == "raw",
      algorithm.min_group_size > 1,
      "is about completions that are compared within their group, and it does"
      " not compare them; set 'zero'",
    ),
    (
      "opd_coef",
      config.opd_coef > 0,
      algorithm.token_advantages,
      "is added to the advantages of single tokens, and its loss has none; set"
      " 0, or choose an algorithm such as 'grpo'",
    ),
    (
      "opd_domain_weights",
      bool(config.opd_domain_weights),
      config.opd_coef > 0 or {"ref_kl", "ref_topk"} & {*algorithm.needs},
      "is about what a teacher says, and none is asked; set opd_coef above 0,"
      " or choose an algorithm such as 'opd_full'",
    ),
  ):
    if is_on and not is_supported:
      config.complain(name, f"of algorithm {algorithm.name!r} {why}")


def needs(algorithm: Algorithm, config: CommonConfig) -> frozenset[str]:
  """Names of the optional inputs that this algorithm with this config reads.

  Raises:
    ValueError: The algorithm names an input without a provider.
  """
  corrected = config.importance_mode != "none" or config.rejection != "none"
  reads = {
    "ref_logp": config.kl_coef > 0 or config.opd_coef > 0,
    "ref_kl": config.kl_coef > 0 and config.kl_kind == "full",
    "old_logp": config.kl_coef > 0 and config.kl_kind == "k3_unbiased",
    "anchor": corrected
    or (config.kl_coef > 0 and config.kl_in_reward)
    or (config.opd_coef > 0 and config.opd_anchor == "start"),
    "behavior_logp": corrected or config.off_policy_threshold > 0,
    "behavior_entropy": config.top_entropy_fraction < 1
    or config.entropy_target > 0,
    "entropy": config.entropy_coef > 0 or config.entropy_target > 0,
    "domain": bool(config.kl_domain_weights and config.kl_coef > 0)
    or bool(config.opd_domain_weights),
    "kept_ids": config.keep_sampling_mask,
    "routing": config.keep_routing,
    "final_value": isinstance(config, CriticOptions) and config.bootstrap_cut,
    "router": config.balance_coef > 0 or config.router_bias_step > 0,
  }
  names = set(algorithm.needs) | {name for name, on in reads.items() if on}
  if names & {"anchor", "sum_pi_squared", "router"}:
    names |= {"old_logp", "anchor"}
  if "ref_kl" in names or "ref_topk" in names:
    names.add("ref_logp")
  if unknown := names - set(NEEDS):
    raise ValueError(
      f"algorithm {algorithm.name!r} needs {sorted(unknown)}, which nothing"
      f" provides; known needs: {', '.join(sorted(NEEDS))}."
    )
  return frozenset(names)


def in_force(config: CommonConfig) -> str:
  """Describes the effect of the common options on equations, in one line.

  Scale, KL and clip are always in it, and other options if they are on.
  """
  scale = f" / deviation of the {config.advantage_scale}"
  if config.advantage_scale == "none":
    scale = " as they are"
  kl = "no KL"
  if config.kl_coef:
    place = ", in the reward" if config.kl_in_reward else ""
    kl = f"KL {config.kl_coef:g} ({config.kl_kind}{place})"
  parts = [f"advantages{scale}", kl]
  if isinstance(config, ClipConfig):
    bounds = dict.fromkeys((config.clip_low, config.clip_high))
    parts.append(f"clip {' and '.join(f'{bound:g}' for bound in bounds)}")
  named = {"advantage_scale", "kl_coef", "kl_kind", "kl_in_reward"}
  parts += [
    f"{field.name}={getattr(config, field.name)}"
    for field in dataclasses.fields(CommonConfig)
    if field.name not in named and getattr(config, field.name) != field.default
  ]
  return "; ".join(parts)


def naming_what_is_missing(function: _Function) -> _Function:
  """Decorates a function of an algorithm, its config and a batch.

  If code of the algorithm fails, and reads inputs that `needs` does not name
  and that are therefore None, the ValueError names them.
  """

  @functools.wraps(function)
  def call(algorithm: Algorithm, config: CommonConfig, *arguments: Any) -> Any:
    try:
      return function(algorithm, config, *arguments)
    except Exception as error:  # Any kind: operations on None.
      required = needs(algorithm, config)
      read = {
        name
        for frame, _ in traceback.walk_tb(error.__traceback__)
        # Other functions of the module of `function` read what they check.
        if frame.f_globals is not function.__globals__
        and frame.f_globals["__name__"].partition(".")[0] != "jax"
        for name in frame.f_code.co_names
      }
      fields = *needs_of(TrainBatch).items(), *needs_of(PolicyOutputs).items()
      absent = {
        need for field, need in fields if read.issuperset(field.split("."))
      } - required
      if not absent:
        raise
      raise ValueError(
        f"{type(error).__name__}: {str(error).rstrip('.')}. It reads"
        f" {', '.join(sorted(absent))}, which {algorithm.name!r} does not have"
        " in `needs`, so that nothing provides it."
      ).with_traceback(error.__traceback__) from error

  return cast(_Function, call)
