"""What each metric of a run means: one table for pages, notebooks and viewers.

    metric_table.find("reward/format").meaning

A row may stand for several metrics: a word in capitals, as in `reward/NAME`, is
any name. `docs/metrics.md` is made of this table by
`experiments/health/page.py`, and tests compare it with what runs log.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable


@dataclasses.dataclass(frozen=True)
class Metric:
  """A row of the table.

  Attributes:
    name: Of the metric; words in capitals stand for any name.
    unit: "share" is in [0, 1].
    meaning: What is measured.
    healthy: What it looks like in a run that is well.
    action: What to do, or where to look, if it does not.
  """

  name: str
  unit: str
  meaning: str
  healthy: str = "any"
  action: str = ""

  @property
  def pattern(self) -> re.Pattern[str]:
    """Matches the names that the row stands for."""
    return re.compile(re.sub(r"[A-Z]+", ".+", re.escape(self.name)))


_SECTIONS: dict[str, tuple[tuple[str, ...], ...]] = {
  "Rewards and answers": (
    (
      "reward/mean",
      "reward",
      "Mean reward of the scored completions that the step trains on",
      "rises",
      "flat from the first step: H01, H02; up while accuracy falls: H14, H15",
    ),
    (
      "reward/std",
      "reward",
      "Deviation of these rewards over the batch",
      "> 0",
      "0: nothing tells completions apart (H01, H11)",
    ),
    (
      "reward/NAME",
      "its own",
      "Mean of a component, before its weight, where it applies",
      "rises, unless its weight is negative",
      "compare the components with each other and with accuracy (H13, H15)",
    ),
    (
      "reward_range/NAME",
      "its own",
      "Largest minus least value of a component in the batch",
      "> 0",
      "always 0: the component tells nothing (H22)",
    ),
    (
      "reward_correlation/NAME",
      "−1 to 1",
      "Correlation of a component, in the direction of its weight, with the"
      " reward over the batch; null where one of them is constant",
      "> 0",
      "below −0.3: it is outweighed by another (H16)",
    ),
    (
      "applicable/NAME",
      "share",
      "Completions to which a component applies: it is neither None nor NaN",
      "what the data asks for",
      "0: look at what the reward reads (H21)",
    ),
    (
      "accuracy",
      "share",
      "Scored completions that are right: config.rewards.correct is ≥ 1",
      "rises; below 0.99",
      "above 0.99 it is suspicious (H12)",
    ),
    (
      "unscored",
      "rows",
      "Completions without a score, which are left out of the loss",
      "0",
      "the log has the verifier's messages (H18, H19)",
    ),
    (
      "unscored/KIND",
      "rows",
      "The same by reason: timeout, raised, nan, worker_died, …",
      "0",
      "timeout: --config.rewards.row_timeout_s; raised: correct the verifier",
    ),
    (
      "reasoning_steps/per_completion",
      "steps",
      "Steps of reasoning that were scored, for each completion",
      "> 0",
      "0: config.rewards.steps finds none (H23)",
    ),
    (
      "reasoning_steps/score",
      "score",
      "Mean score of such a step",
      "rises",
    ),
    (
      "drawn/reward",
      "reward",
      "Mean reward of all that was drawn, where dynamic sampling chooses",
      "rises",
      "read this one, and not reward/mean, which is over chosen groups",
    ),
    (
      "drawn/accuracy",
      "share",
      "The same of accuracy",
      "rises",
    ),
  ),
  "Groups": (
    (
      "dead_groups",
      "share",
      "Groups whose completions all have the same reward",
      "< 0.8",
      "1: no advantage differs from 0 (H01); dynamic sampling"
      " (config.algorithm.dynamic_sampling) leaves them out",
    ),
    (
      "dead_groups/all_right",
      "share",
      "Groups that are dead because all are right",
      "rises late",
      "harder prompts",
    ),
    (
      "dead_groups/all_wrong",
      "share",
      "Groups that are dead because all are wrong",
      "falls",
      "easier prompts, a longer warm start, larger groups",
    ),
    (
      "distinct_completions",
      "completions",
      "Different completions of a prompt, mean over groups",
      "> 2",
      "1: the policy writes one text (H03)",
    ),
    (
      "drawn/live",
      "share",
      "Groups with different rewards among all that were drawn",
      "> 0.2",
    ),
    (
      "drawn/rounds",
      "rounds",
      "Rounds that a step has drawn",
      "below rl.max_rounds",
      "at the most: too few groups live",
    ),
    ("drawn/groups", "groups", "Groups that a step has drawn"),
    (
      "advantages/std",
      "advantage",
      "Deviation of the advantages of trained rows",
      "about 1 where they are standardised",
      "0: nothing to learn from",
    ),
  ),
  "Lengths and tokens": (
    (
      "length/mean",
      "tokens",
      "Mean length of completions, of all contexts of a rollout together",
      "steady, or rising with accuracy",
      "H10 warns of a drift without gain",
    ),
    ("length/min", "tokens", "Shortest", "> 1", "equal to length/max: H11"),
    (
      "length/max",
      "tokens",
      "Longest",
      "below config.sampling.max_new_tokens",
    ),
    (
      "length/terminated",
      "tokens",
      "Mean length of those that ended by themselves",
    ),
    ("length/correct", "tokens", "Mean length of right completions"),
    (
      "length/incorrect",
      "tokens",
      "Mean length of wrong ones",
      "not far above length/correct",
      "growing alone: long wrong answers are cheap (dr_grpo, soft_overlong)",
    ),
    (
      "truncated",
      "share",
      "Completions that were cut off by their budget",
      "< 0.2",
      "--config.sampling.max_new_tokens (H04)",
    ),
    ("tokens/generated", "tokens", "Tokens that were drawn in the step"),
    (
      "tokens/trained",
      "tokens",
      "Tokens with a part in the loss",
      "> 0",
      "0: no row was scored, or no pair was found (H20)",
    ),
    (
      "contexts/mean",
      "contexts",
      "Contexts of a rollout, where they are compacted",
    ),
  ),
  "Policy and update": (
    (
      "entropy/mean",
      "nats",
      "Entropy of the next token, mean over written tokens",
      "falls slowly",
      "a tenth of what it was: H03",
    ),
    ("entropy/correct", "nats", "The same in right completions"),
    ("entropy/incorrect", "nats", "The same in wrong ones"),
    (
      "entropy/policy",
      "nats",
      "Entropy as the update computes it, where the objective asks for it",
      "as entropy/mean",
    ),
    ("loss", "loss", "The objective; its size says little", "finite"),
    ("loss/TERM", "loss", "A term of it: policy, kl, entropy, …", "finite"),
    (
      "gradient_norm",
      "gradient",
      "Norm of the gradient before it is clipped",
      "0.01 to 10, steady",
      "0: H02; peaks: a lower learning rate, or clip_norm",
    ),
    (
      "update_norm",
      "parameter",
      "Norm of the step that the optimizer takes",
      "1e-5 to 1e-2 of param_norm",
    ),
    ("param_norm", "parameter", "Norm of what is trained", "steady"),
    ("learning_rate", "1", "Of the first gradient step", "as scheduled"),
    (
      "ratio/mean",
      "1",
      "Mean ratio of new to old probability of a token",
      "near 1",
    ),
    ("ratio/max", "1", "Largest one", "< 10"),
    (
      "ratio/max_deviation",
      "1",
      "Largest distance of one from 1",
      "< 10, steady",
      "growing: H08",
    ),
    (
      "kl/update",
      "nats",
      "Distance k3 of the policy from that at the start of the step, per token",
      "< 0.01",
      "above 0.1: H07",
    ),
    (
      "kl/reference",
      "nats",
      "Distance from the reference, per token, where kl_coef > 0",
      "< 0.5",
      "--config.algorithm.kl_coef",
    ),
    (
      "clip_fraction",
      "share",
      "Trained tokens that clipping leaves without gradient",
      "< 0.2",
      "above 0.5: H09",
    ),
    (
      "clip_fraction/high",
      "share",
      "Of these, with a positive advantage: cut from above",
      "< 0.1",
      "--config.algorithm.clip_high",
    ),
    (
      "clip_fraction/low",
      "share",
      "With a negative advantage: cut from below",
      "< 0.1",
      "--config.algorithm.clip_low",
    ),
    (
      "sampler_gap/mean",
      "nats",
      "Distance of sampler and trainer in the log-probability of a token",
      "< 1e-4 in float32, < 0.02 in bfloat16",
      "H05, H06",
    ),
    (
      "sampler_gap/max",
      "nats",
      "Largest one of the step",
      "< 1",
    ),
    (
      "policy_weight/mean",
      "1",
      "Mean importance weight of a token, where one is used",
      "near 1",
      "far below: rollouts are too old (config.rl.staleness)",
    ),
    (
      "staleness/mean",
      "steps",
      "Updates since a token was drawn",
      "at most config.rl.staleness",
    ),
    (
      "staleness/max",
      "steps",
      "The same of the oldest token",
      "at most config.rl.staleness",
    ),
    (
      "router/entropy",
      "nats",
      "Entropy of a router's choice of experts",
      "> 0",
    ),
    (
      "router/max_load",
      "1",
      "Load of the busiest expert, relative to an even one",
      "< 2",
      "--config.algorithm.router_bias_step",
    ),
    ("router/dead", "share", "Experts that no token takes", "0"),
  ),
  "Critic and reward model": (
    ("value/loss", "loss", "Of the critic", "falls"),
    (
      "value/explained_variance",
      "1",
      "Part of the variance of returns that the critic foretells",
      "> 0.3 after a while",
      "below 0: --config.value.steps, --config.critic.num_updates",
    ),
    (
      "value/calibration_error",
      "return",
      "Distance of values from mean returns of tokens with such values",
      "near 0",
    ),
    ("value/mean", "return", "Mean value of a trained token"),
    ("value/first", "return", "Mean value of a prompt", "near reward/mean"),
    ("value/first_error", "return", "Its mean error", "near 0"),
    (
      "value/first_correlation",
      "−1 to 1",
      "Correlation of the values of prompts with rewards",
      "> 0",
    ),
    ("value/gradient_norm", "gradient", "As gradient_norm", "> 0", "0: H02"),
    ("value/update_norm", "parameter", "As update_norm"),
    ("value/param_norm", "parameter", "As param_norm", "steady"),
    ("value/learning_rate", "1", "As learning_rate", "as scheduled"),
    (
      "reward_model/loss",
      "nats",
      "Of the reward model on pairs; log 2 is that of a guess",
      "< 0.69",
      "exactly 0: no pairs (H20)",
    ),
    (
      "reward_model/gradient_norm",
      "gradient",
      "As gradient_norm",
      "> 0",
      "0: H02",
    ),
    ("reward_model/update_norm", "parameter", "As update_norm"),
    ("reward_model/param_norm", "parameter", "As param_norm", "steady"),
    ("reward_model/learning_rate", "1", "As learning_rate", "as scheduled"),
  ),
  "Held-out prompts": (
    (
      "eval/accuracy",
      "share",
      "Held-out prompts with a right completion; unscored ones are not right",
      "rises",
      "falling while reward/mean rises: H14",
    ),
    (
      "eval/accuracy_scored",
      "share",
      "The same among those that were scored",
      "as eval/accuracy",
    ),
    ("eval/reward", "reward", "Mean reward of those", "rises"),
    ("eval/reward/NAME", "its own", "Mean of a component"),
    ("eval/length", "tokens", "Mean length of the completions", "steady"),
    (
      "eval/unscored",
      "rows",
      "Completions without a score",
      "0",
      "above config.rewards.max_unscored the run has failed",
    ),
  ),
  "Time, in timings.jsonl": (
    ("time/step_s", "seconds", "From one recorded step to the next", "steady"),
    (
      "time/compile_s",
      "seconds",
      "Tracing and compilation in the step",
      "0 after the first step of a phase",
      "later ones: shapes change",
    ),
    (
      "time/verifier_s",
      "seconds",
      "Verifiers on the host",
      "below time/step_s",
      "--config.rewards.num_workers, --config.rl.staleness",
    ),
    (
      "time/environment_s",
      "seconds",
      "Environment on the host",
      "below time/step_s",
      "--config.rewards.num_workers",
    ),
    (
      "tokens_per_second",
      "tokens / s",
      "Tokens that were drawn, or trained in a supervised phase",
      "steady",
    ),
  ),
  "Alarms": (
    (
      "alarm/RULE",
      "1",
      "1 in the step in which a rule of the table below warns, absent"
      " otherwise",
      "absent",
      "what the rule says",
    ),
  ),
}

SECTIONS: dict[str, tuple[Metric, ...]] = {
  section: tuple(Metric(*row) for row in rows)
  for section, rows in _SECTIONS.items()
}
METRICS = tuple(row for rows in SECTIONS.values() for row in rows)


@functools.cache
def find(name: str) -> Metric | None:
  """The row of a metric; a name of its own comes before a pattern."""
  for row in METRICS:
    if row.name == name:
      return row
  return next((row for row in METRICS if row.pattern.fullmatch(name)), None)


def unknown(names: Iterable[str]) -> list[str]:
  """Of some names, those that no row describes."""
  return sorted(name for name in {*names} if find(name) is None)
