"""The table of rules that look at a run's health.

A run that learns nothing, or the wrong thing, looks fine in most of its
numbers. Each rule names one way in which that happens: a condition of
`alarm_checks.py`, for how many steps in a row it must hold, what it means, and
which setting to change. `health.py` asks the rules after each step.

    python -m experiments.health.false_alarms

says how often each rule is wrong about healthy runs.
"""

from __future__ import annotations

import dataclasses

from grpo_jax.training.rules import alarm_checks as checks
from grpo_jax.training.rules import trends

# Rules that always stop a run, and the settings by which they never warn.
UNSCORED = "too_many_unscored"
SHORT = "short_of_groups"
ALWAYS = {
  UNSCORED: "config.rewards.max_unscored=1.0",
  SHORT: "config.rl.when_short='fewer'",
}
PREFIX = "alarm/"  # Of the metrics of alarms.


@dataclasses.dataclass(frozen=True)
class Rule:
  """One way in which a run goes wrong.

  Attributes:
    number: "H01", ….
    name: Of the metric `alarm/NAME`, which is 1 in the line of the step.
    meaning: What is the matter; a sentence.
    reads: Metrics that it looks at.
    threshold: When its condition holds, in words.
    advice: What to look at, and which settings to change.
    check: The condition.
    patience: Looks in a row, at each of which the condition holds.
    every: Steps between two looks; more than 1 for conditions on a window.
  """

  number: str
  name: str
  meaning: str
  reads: tuple[str, ...]
  threshold: str
  advice: str
  check: checks.Check
  patience: int = 1
  every: int = 1

  @property
  def key(self) -> str:
    """The metric of the alarm."""
    return f"{PREFIX}{self.name}"

  @property
  def wait(self) -> str:
    """For how long the condition holds before the rule warns; may be empty."""
    if self.patience == 1:
      return ""
    if self.every == 1:
      return f"for {self.patience} steps in a row"
    return f"at {self.patience} looks in a row, {self.every} steps apart"


# What grows, goes on; a wave that lasts some thirty steps is gone by then.
_LOOKS = 3
_SIGMA = f"z > {trends.SIGNIFICANT:g}"

RULES = (
  Rule(
    "H01",
    "all_groups_dead",
    "In no group do the rewards differ, so there is nothing to learn from.",
    ("dead_groups",),
    "dead_groups = 1, in a phase that draws groups",
    "Look at reward/mean: near its least, the task is too hard (easier prompts,"
    " --config.sft.steps, --config.rl.group_size) or the verifier refuses"
    " everything; near its most, there is nothing left to learn.",
    checks.all_groups_dead,
    patience=10,
  ),
  Rule(
    "H02",
    "zero_gradient",
    "The gradient is exactly 0: the parameters stay what they are.",
    ("gradient_norm", "value/gradient_norm", "reward_model/gradient_norm"),
    "one of them = 0",
    "Look at dead_groups, unscored and clip_fraction: equal rewards, rows"
    " without a score and clipped tokens all have no gradient.",
    checks.zero_gradient,
    patience=10,
  ),
  Rule(
    "H03",
    "entropy_collapsed",
    "The policy hardly varies what it writes, and has not solved the task.",
    ("entropy/mean", "accuracy"),
    "entropy/mean < 0.1 × its mean over the first 10 steps of the phase, and"
    " accuracy < 0.9",
    "Lower --config.rl.optimizer.learning_rate, raise"
    " --config.algorithm.entropy_coef or --config.algorithm.kl_coef, or let"
    " --config.algorithm.clip_high be larger.",
    checks.entropy_collapsed,
    patience=10,
  ),
  Rule(
    "H04",
    "cut_off",
    "Most completions end at their budget of tokens and not by themselves.",
    ("truncated",),
    "truncated > 0.5",
    "Raise --config.sampling.max_new_tokens, or look at samples.jsonl for text"
    " that goes on without end; --config.algorithm.overlong_filter leaves such"
    " rows out.",
    checks.above("truncated", 0.5),
    patience=10,
  ),
  Rule(
    "H05",
    "sampler_gap_large",
    "Sampler and trainer disagree about the log-probabilities of tokens.",
    ("sampler_gap/mean",),
    "sampler_gap/mean > 0.1 nats",
    "Raise the precision of --config.model.cache_dtype,"
    " --config.sampling.weights_dtype and --config.model.dtype, lower"
    " --config.rl.staleness or --config.rl.replay_size, or set"
    " --config.algorithm.importance_mode=truncate.",
    checks.above("sampler_gap/mean", 0.1),
    patience=10,
  ),
  Rule(
    "H06",
    "sampler_gap_growing",
    "Sampler and trainer disagree more and more.",
    ("sampler_gap/mean",),
    f"{_SIGMA} over 100 steps, 3 times as large after them, and > 0.005 nats",
    "As for H05; a gap that grows is a sign of precision lost in sharp"
    " distributions, or of parameters that the sampler does not have.",
    checks.grows("sampler_gap/mean", 3, 5e-3),
    patience=_LOOKS,
    every=10,
  ),
  Rule(
    "H07",
    "update_far",
    "A single step takes the policy far from the one that drew the batch.",
    ("kl/update",),
    "kl/update > 0.1 nats per token",
    "Lower --config.rl.optimizer.learning_rate, --config.rl.num_epochs or"
    " --config.rl.num_minibatches.",
    checks.above("kl/update", 0.1),
    patience=5,
  ),
  Rule(
    "H08",
    "ratio_growing",
    "Ratios of new to old probability move further and further from 1.",
    ("ratio/max_deviation",),
    f"{_SIGMA} over 100 steps, 5 times as large after them, and > 2",
    "As for H07; --config.algorithm.clip_high and dual_clip bound what such"
    " tokens do.",
    checks.grows("ratio/max_deviation", 5, 2.0),
    patience=_LOOKS,
    every=10,
  ),
  Rule(
    "H09",
    "clipped",
    "Most tokens are clipped, and the batch is used for little.",
    ("clip_fraction",),
    "clip_fraction > 0.5",
    "Lower --config.rl.optimizer.learning_rate or --config.rl.num_epochs, or"
    " widen --config.algorithm.clip_low and --config.algorithm.clip_high.",
    checks.above("clip_fraction", 0.5),
    patience=10,
  ),
  Rule(
    "H10",
    "length_drift",
    "Completions get longer or shorter, and no more of them are right.",
    ("length/mean", "accuracy"),
    f"|z| > {trends.SIGNIFICANT:g} over 100 steps, after them by a factor of 2,"
    " and accuracy is up by less than 0.02",
    "Look whether the reward pays for length. In a loss that divides by each"
    " completion's length, long wrong ones cost little: see"
    " --config=FILE:dr_grpo, or add the reward soft_overlong.",
    checks.length_drifts,
    every=10,
  ),
  Rule(
    "H11",
    "constant_fill",
    "All completions are equally long and equally good: the policy may have"
    " found one text that the verifier pays for.",
    ("length/min", "length/max", "reward/std"),
    "length/min = length/max, and reward/std = 0",
    "Read samples.jsonl, and try the text that is always written as the answer"
    " of any prompt.",
    checks.constant_fill,
    patience=10,
  ),
  Rule(
    "H12",
    "perfect_score",
    "More than 0.99 of the completions are right. Suspicious by default: either"
    " the task is solved, and nothing is left to learn, or the verifier accepts"
    " what it should not.",
    ("accuracy",),
    "accuracy > 0.99",
    "Look for empty, constant or copied answers in samples.jsonl"
    " (config.log.samples_every), and give the verifier wrong ones.",
    checks.perfect_score,
    patience=3,
  ),
  Rule(
    "H13",
    "component_saturated",
    "A component of the reward, such as the format, has nothing more to give,"
    " and accuracy is low and does not rise.",
    ("reward/NAME", "reward_range/NAME", "accuracy"),
    "over 100 steps reward/NAME within 3 % of its most; accuracy < 0.5, z < 2"
    " and less than 0.05 above the first 10 steps of the phase",
    "Lower the component's weight (--config.rewards.weights, or"
    " config.rewards.schedules), and look for easier prompts.",
    checks.component_saturated,
    every=10,
  ),
  Rule(
    "H14",
    "proxy_up_truth_down",
    "The reward rises in training while held-out accuracy falls.",
    ("reward/mean", "eval/accuracy"),
    f"reward/mean {_SIGMA}; 5 to 10 evaluations with z < −2, and down by more"
    " than 0.03 and two standard errors",
    "The policy learns what the reward pays for and not the task. Read"
    " samples.jsonl; stop at the best evaluation; raise"
    " --config.algorithm.kl_coef; change the reward.",
    checks.proxy_up_truth_down,
  ),
  Rule(
    "H15",
    "reward_up_accuracy_down",
    "In training the reward rises while fewer completions are right.",
    ("reward/mean", "accuracy"),
    f"over 50 steps reward/mean {_SIGMA}, accuracy z < −{trends.SIGNIFICANT:g}"
    " and down by more than 0.03",
    "Some component is cheaper to please than the task. Compare the curves"
    " reward/NAME, and lower the weight of the one that rises.",
    checks.reward_up_accuracy_down,
    every=10,
  ),
  Rule(
    "H16",
    "anticorrelated_component",
    "A component that is rewarded is high where the reward is low: another one"
    " works against it.",
    ("reward_correlation/NAME",),
    "over 50 steps the mean < −0.3, and < −0.1 in each tenth of them",
    "Look at the sign and the size of its weight in --config.rewards.weights.",
    checks.anticorrelated,
    every=10,
  ),
  Rule(
    "H17",
    "blocked_calls_rising",
    "More and more calls of tools are blocked: the policy tries what it may"
    " not.",
    ("reward/blocked",),
    f"{_SIGMA} over 100 steps, 3 times as many after them, and > 0.05 per"
    " completion",
    "Read the calls in samples.jsonl. A penalty for blocked calls, or an end of"
    " the episode (config.data.task_options), takes away what they pay.",
    checks.grows("reward/blocked", 3, 0.05),
    patience=_LOOKS,
    every=10,
  ),
  Rule(
    "H18",
    "some_unscored",
    "More than a twentieth of the rows have no score, and are left out.",
    ("unscored", "unscored/KIND"),
    "unscored > 0.05 of the rows",
    "The log has the verifier's messages. Raise"
    " --config.rewards.row_timeout_s where unscored/timeout counts them.",
    checks.some_unscored,
    patience=10,
  ),
  Rule(
    "H19",
    UNSCORED,
    "More rows have no score than are allowed. This rule always stops the run.",
    ("unscored",),
    "unscored > config.rewards.max_unscored of the rows",
    "Correct the verifier, and start again with the same command; or set"
    " --config.rewards.max_unscored.",
    checks.too_many_unscored,
    patience=3,
  ),
  Rule(
    "H20",
    "no_pairs",
    "No prompt gives a pair of a better and a worse completion: a loss of 0 is"
    " no perfect fit.",
    ("tokens/trained",),
    "tokens/trained = 0, in a phase that learns preferences",
    "Completions need different rewards: raise the phase's group_size or"
    " --config.sampling.temperature, or look at what the verifier says.",
    checks.no_pairs,
    patience=3,
  ),
  Rule(
    "H21",
    "component_never_applied",
    "A component of the reward applied to no completion of the phase: it was"
    " None or NaN for each.",
    ("applicable/NAME",),
    "at the end of a phase of 3 steps or more: applicable/NAME was always 0",
    "Look at what it reads (extras, the gold answer, config.rewards.domains).",
    checks.never_applied,
  ),
  Rule(
    "H22",
    "component_constant",
    "A component of the reward was the same for every completion of the phase,"
    " so nothing was learnt from it.",
    ("reward/NAME", "reward_range/NAME"),
    "at the end of a phase of 3 steps or more: one value only",
    "Look at samples.jsonl: nobody did what it rewards or punishes, or"
    " everybody did, or it does not look at the completion.",
    checks.component_constant,
  ),
  Rule(
    "H23",
    "no_steps_of_reasoning",
    "No completion of the phase had a step of reasoning that was scored.",
    ("reasoning_steps/per_completion",),
    "at the end of a phase of 3 steps or more: always 0",
    "Look at samples.jsonl, and at what config.rewards.steps takes for a step.",
    checks.no_steps_of_reasoning,
  ),
  Rule(
    "H24",
    SHORT,
    "The rounds of dynamic sampling ended with fewer live groups than a batch"
    " needs, and the step trained nothing. This rule always stops the run.",
    ("drawn/missing",),
    "drawn/missing > 0, in a phase with when_short='error'",
    "Raise --config.rl.max_rounds or --config.rl.group_size, or choose prompts"
    " that are less easy or less hard; --config.rl.when_short=fewer trains on"
    " the groups there are, and duplicate repeats them.",
    checks.short_of_groups,
  ),
)

BY_NAME = {rule.name: rule for rule in RULES}


def find(name: str) -> Rule | None:
  """A rule by its name or number."""
  return next((r for r in RULES if name in (r.name, r.number)), None)


@dataclasses.dataclass(frozen=True)
class Alarm:
  """A rule that has warned.

  Attributes:
    step: Over all phases.
    phase: Name of the phase.
    rule: What has warned.
    numbers: That convinced it.
  """

  step: int
  phase: str
  rule: Rule
  numbers: dict[str, float]

  @property
  def evidence(self) -> str:
    """The numbers in words."""
    said = ", ".join(f"{name} {x:.4g}" for name, x in self.numbers.items())
    return f"{said}, {self.rule.wait}" if self.rule.wait else said

  def text(self) -> str:
    """What a person is told."""
    return (
      f"{self.phase}, step {self.step}: {self.rule.number} {self.rule.name}."
      f" {self.rule.meaning} ({self.evidence}) {self.rule.advice}"
    )

  def as_json(self) -> dict[str, object]:
    """What `result.json` has of it."""
    return {
      "step": self.step,
      "phase": self.phase,
      "rule": self.rule.number,
      "name": self.rule.name,
      "meaning": self.rule.meaning,
      "numbers": self.numbers,
      "advice": self.rule.advice,
    }
