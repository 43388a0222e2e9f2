"""Settings of rewards: functions, weights, and the judge.

The judge is a model that reads a rubric and gives a verdict, for the reward
"judge".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from grpo_jax import ranges
from grpo_jax.settings import groups

# Name of the judge's component of the reward.
JUDGE = "judge"
_TRIES = ranges.Range(1, 100)
_AT_ONCE = ranges.Range(1, 1024)


@dataclasses.dataclass(frozen=True)
class ServiceConfig:
  """A judge over HTTP, a chat model with OpenAI's interface.

  Attributes:
    url: Address of the interface, such as "https://host/v1"; empty: the judge
      is a model of the run, in its program.
    key_variable: Environment variable with the key, which is not in any config,
      log or checkpoint; empty: no key is sent.
    timeout_s: Seconds for the verdict on a row, over all its tries. All rows of
      a step have config.rewards.step_timeout_s.
    max_tries: Most calls for a row: a call with a temporary failure is tried
      again after a pause that doubles.
    max_calls: Most calls of each process of a run, repeated calls included.
      Further rows are unscored. A resumed run counts on from its checkpoint.
    max_in_flight: Most calls at the same time.
    options: Further fields of a request, such as {"seed": 1}; None removes a
      field, "temperature" (0) or "max_tokens".
  """

  url: str = ""
  key_variable: str = "JUDGE_API_KEY"
  timeout_s: float = groups.SECONDS.field(60.0)
  max_tries: int = _TRIES.field(5)
  max_calls: int = ranges.SIZE.field(100_000)
  max_in_flight: int = _AT_ONCE.field(16)
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def __post_init__(self):
    ranges.check(self, "config.judge.service")
    if self.url:
      from grpo_jax.rewards.workers import judge_service  # Starts processes.

      judge_service.check_url(self.url, bool(self.key_variable))
    if self.key_variable and not self.key_variable.isidentifier():
      # The value is not shown, because it may be the key by mistake.
      raise ValueError(
        "config.judge.service.key_variable is no name of an environment"
        " variable; the key itself is not a setting. Export it as, say,"
        " JUDGE_API_KEY."
      )


@dataclasses.dataclass(frozen=True)
class JudgeConfig(groups.Switched):
  """A model that reads a rubric with a completion, for the reward "judge".

  Attributes:
    rubric: Text for the judge, with "{prompt}" and "{completion}", and other
      fields of the records, such as "{answer}". For a service also "{fence}", a
      word that no completion can contain.
    model: The judge's model. Empty: the policy itself, as it is in each step.
      Or the folder of a run, or the folder or hub name of a Hugging Face
      checkpoint with the same tokenizer, which is frozen. For a service the
      model's name there.
    verdicts: Words and their values. The last word of the answer counts.
    marker: Text, such as "Verdict:", after whose last occurrence the first word
      counts. Empty: the last word of the answer counts.
    template: Text around the rubric for a model of the run, with "{rubric}"; or
      "chat" for the tokenizer's chat template. A service has a template of its
      own.
    max_prompt_len: Slots for everything that the judge reads except the
      completion, tokens; completions of longer records are unscored. None: the
      number that a task needs, or config.data.max_prompt_len and the words of
      the rubric.
    max_new_tokens: Most tokens of its answer.
    batch_size: Rows that a model of the run reads at once, over all devices;
      None: as many as a step has prompts.
    service: A judge over HTTP.
  """

  switch: ClassVar[str] = "rubric"

  rubric: str = ""
  model: str = ""
  verdicts: Mapping[str, Any] = dataclasses.field(
    default_factory=lambda: {"yes": 1.0, "no": 0.0}
  )
  marker: str = ""
  template: str = "{rubric}"
  max_prompt_len: int | None = ranges.SLOTS.field(None)
  max_new_tokens: int = ranges.SLOTS.field(8)
  batch_size: int | None = ranges.ROWS.field(None)
  service: ServiceConfig = ServiceConfig()

  def __post_init__(self):
    ranges.check(self, "config.judge")
    if not self.rubric:
      return
    from grpo_jax.rewards import rubrics

    rubrics.check_verdicts(self.verdicts, self.marker, "config.judge")
    rubrics.check_rubric(self.rubric, "config.judge")
    if "{rubric}" not in self.template and self.template != "chat":
      raise ValueError(
        f"config.judge.template={self.template!r} does not contain"
        ' "{rubric}"; write where the rubric goes, or "chat" for the'
        " tokenizer's own template."
      )
    if not self.service.url and rubrics.FENCE in rubrics.places(self.rubric):
      raise ValueError(
        "config.judge.rubric has '{fence}', which is for a service"
        " (config.judge.service.url). A model of the run sees no special token"
        " in a completion: write one of the tokenizer's around it."
      )
    if self.service.url and not self.model:
      raise ValueError(
        "config.judge.service.url is set, and config.judge.model is not; name"
        " the model that answers there."
      )


# Name of the reward model's component of the reward.
REWARD_MODEL = "reward_model"

# Numbers of processes of verifiers, or of sessions.
_WORKERS = ranges.Range(1, 1024)


@dataclasses.dataclass(frozen=True)
class RewardsConfig:
  """Functions of the reward, their weights, and limits of verifiers.

  Attributes:
    functions: For tasks, components of the task's verifier ("accuracy", …),
      computed inside the program. With an environment on the host, scores of
      its sessions, and "return". Otherwise functions of text: a built-in name
      (`rewards/registry.py`: "math_accuracy", "think_answer_format", …) or an
      import path ("my_pkg.rewards:brevity"). In each case also names of
      `rewards/derived.py` ("cosine_length", "rank", …), which are computed from
      the other components and the tokens; "reward_model": a model that was
      trained on pairs of completions (`config.reward_model`); and "judge": a
      model that reads a rubric and writes a verdict (`config.judge`).
    weights: One weight per function; with weight 0 a function is logged and not
      rewarded.
    schedules: Weights that change. For example, {"think_answer_format":
      ((0, 1.0), (100, 0.0))} goes from 1 to 0 in the first hundred steps of a
      phase. A weight is linear between two steps, and constant outside of them.
      Evaluations always use `weights`.
    options: Arguments of functions by name: {"cosine_length": {"max_len": 64}}.
    domains: Domains of prompts to which a reward applies, by name or number:
      {"math_accuracy": ("algebra", "geometry")}. It does not apply to other
      domains, also where another reward is made of it.
    in_graph: Whether text is scored inside the compiled program, by the
      functions of `rewards/in_graph`. They compare numbers, without algebra.
    answer_after: Marker, such as "####", after which the rest of the line is
      the answer of a completion that has neither `<answer>` nor a box. Empty:
      such a completion has no answer.
    steps: The function that scores steps of reasoning, for algorithms that read
      such scores: a name of `registry.STEPS` ("arithmetic_steps"), or an import
      path. Empty: the scores of the task, if it has any.
    sandbox: Isolation of the programs of the reward "code": "bwrap", or
      "process", which isolates less and warns.
    correct: The function whose value ≥ 1 marks a right answer (metrics
      only); empty: the first.
    consistent: The function whose value ≥ 1/2 means that the answer follows
      from the reasoning before it. The metrics quadrants/… count this for right
      and for wrong answers. Empty: there are no such metrics.
    row_timeout_s: Longest time for one try of a row on the host, seconds; with
      an environment on the host, for one action.
    step_timeout_s: Longest time for all rows of a step, or of a batch of an
      evaluation, seconds.
    num_workers: Number of processes of verifiers, or of sessions; each works on
      one row at a time.
    max_unscored: Largest share of unscored rows, in [0, 1]. If it is exceeded
      in three successive steps, the run is saved and ends with an error; if it
      is exceeded in an evaluation, the run has failed, whatever its accuracy. A
      policy with a share u of unscored rows has an accuracy of at most 1 − u.
    variables: Names of environment variables that these processes get in
      addition to those of `processes.VARIABLES`, such as an address or a key of
      a service.
    worker_memory_gib: Most memory of a process of verifiers beyond its memory
      after the import of its functions, GiB. A process with more is replaced,
      and its current row is tried once more. 0: there is no limit.
  """

  functions: tuple[str, ...] = ("accuracy",)
  weights: tuple[float, ...] = (1.0,)
  schedules: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  domains: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  in_graph: bool = False
  answer_after: str = ""
  steps: str = ""
  sandbox: str = "bwrap"
  correct: str = ""
  consistent: str = ""
  row_timeout_s: float = groups.SECONDS.field(10.0)
  step_timeout_s: float = groups.SECONDS.field(120.0)
  num_workers: int = _WORKERS.field(2)
  max_unscored: float = ranges.SHARE.field(0.5)
  variables: tuple[str, ...] = ()
  worker_memory_gib: float = ranges.NOT_NEGATIVE.field(4.0)

  def __post_init__(self):
    if len(self.functions) != len(self.weights) or not self.functions:
      raise ValueError(
        f"config.rewards: {ranges.counted(len(self.functions), 'function')}"
        f" {self.functions}"
        f" and {ranges.counted(len(self.weights), 'weight')} {self.weights};"
        " give one weight"
        " per function, and at least one function."
      )
    for field in ("correct", "consistent"):
      name = getattr(self, field)
      if name and name not in self.functions:
        raise ValueError(
          f"config.rewards.{field}={name!r} is not one of"
          f" config.rewards.functions={self.functions}; name one of them, or"
          " add it to them, with a weight of 0 if it is only watched."
        )
    for name, weight in zip(self.functions, self.weights, strict=True):
      if abs(weight) not in ranges.NOT_NEGATIVE:
        raise ValueError(
          f"config.rewards.weights={self.weights}: the weight {weight} of"
          f" {name!r} is no finite number; every reward would be none."
        )
    groups.one_of("rewards.sandbox", self.sandbox, ("bwrap", "process"))
    if len({*self.names}) < len(self.names):
      raise ValueError(
        f"config.rewards.functions={self.functions}: two functions have the"
        " same name after the colon; rename one."
      )
    if taken := sorted({"mean", "std"} & {*self.names}):
      raise ValueError(
        f"config.rewards.functions={self.functions}: reward/{taken[0]} is the"
        f" metric of the whole reward, and a function {taken[0]!r} would"
        " replace it; rename the function."
      )
    for field in ("schedules", "options", "domains"):
      for name in getattr(self, field):
        if name not in self.names:
          raise ValueError(
            f"config.rewards.{field} is about {name!r}, which is none of the"
            f" rewards {list(self.names)}; name one of them, or add it to"
            " config.rewards.functions."
          )
    for name in {REWARD_MODEL, JUDGE} & self.options.keys():
      raise ValueError(
        f"config.rewards.options has {name!r}, which takes none; leave it out,"
        " and set config.reward_model or config.judge."
      )
    for name, points in self.schedules.items():
      _check_schedule(name, points)
    for name, domains in self.domains.items():
      is_valid = isinstance(domains, (list, tuple)) and all(
        isinstance(x, str) or (type(x) is int and x >= 0) for x in domains
      )
      if not is_valid or not domains:
        raise ValueError(
          f"config.rewards.domains: {name!r} got {domains!r}; needs"
          " names or numbers of domains, such as ('algebra', 'geometry')."
        )
    ranges.check(self, "config.rewards")
    if (self.correct or self.functions[0]) in (REWARD_MODEL, JUDGE):
      raise ValueError(
        f"config.rewards.functions={self.functions}: what is right is not for"
        " a reward model or a judge to say; name a verifier first, or as"
        " config.rewards.correct."
      )

  @property
  def names(self) -> tuple[str, ...]:
    """Names of the components: the parts of import paths after the colon."""
    return tuple(path.rpartition(":")[2] for path in self.functions)

  @property
  def right(self) -> str:
    """Name of the component whose values of at least 1 mark right answers."""
    return (self.correct or self.functions[0]).rpartition(":")[2]

  @property
  def follows(self) -> str:
    """Name of the component that marks consistent answers, or ""."""
    return self.consistent.rpartition(":")[2]

  def arguments(self, name: str) -> dict[str, Any]:
    """The options of a reward."""
    return dict(self.options.get(name, {}))


def _check_schedule(name: str, points: Any) -> None:
  """Raises ValueError unless a schedule is a list of steps with weights."""
  try:
    steps = [int(step) for step, _ in points]
    good = all(abs(float(w)) in ranges.NOT_NEGATIVE for _, w in points)
  except (TypeError, ValueError):
    steps, good = [], False
  if not steps or not good or steps != sorted(set(steps)) or steps[0] < 0:
    raise ValueError(
      f"config.rewards.schedules: {name!r} got {points!r}; needs pairs"
      " (step, weight) with ascending steps from 0 on, such as ((0, 1.0), (100,"
      " 0.0))."
    )
