"""Settings of the reward "judge": a model that reads a rubric and decides."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from grpo_jax import ranges
from grpo_jax.rewards import rubrics, verdicts
from grpo_jax.rewards.workers import judge_service
from grpo_jax.settings import settings

# The component of the reward that a judge gives.
JUDGE = "judge"
_TRIES = ranges.Range(1, 100)
_AT_ONCE = ranges.Range(1, 1024)


@dataclasses.dataclass(frozen=True)
class ServiceConfig:
  """A judge that answers over HTTP, as a chat model of OpenAI's interface.

  Attributes:
    url: Address of the interface, such as "https://host/v1"; empty: the judge
      is a model of the run, in its program.
    key_variable: Environment variable with the key, which is in no config, log
      or checkpoint; empty: none is sent.
    timeout_s: Seconds for the verdict on a row, over all its tries. All rows of
      a step have config.rewards.step_timeout_s.
    max_tries: Calls for a row: what fails for the moment is tried again after a
      pause that doubles.
    max_calls: Calls of a run, of each of its processes, tries among them. Rows
      beyond it are unscored. A run that goes on counts on from its checkpoint.
    max_in_flight: Calls at the same time.
    options: Further fields of a question, as {"seed": 1}; None takes out one of
      "temperature" (0) and "max_tokens".
  """

  url: str = ""
  key_variable: str = "JUDGE_API_KEY"
  timeout_s: float = 60.0
  max_tries: int = 5
  max_calls: int = 100_000
  max_in_flight: int = 16
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def __post_init__(self):
    ranges.check(
      self,
      "config.judge.service",
      timeout_s=settings.SECONDS,
      max_tries=_TRIES,
      max_calls=ranges.SIZE,
      max_in_flight=_AT_ONCE,
    )
    if self.url:
      judge_service.check_url(self.url, bool(self.key_variable))
    if self.key_variable and not self.key_variable.isidentifier():
      # Not shown: somebody may have put the key here.
      raise ValueError(
        "config.judge.service.key_variable is no name of an environment"
        " variable; the key itself is not a setting. Export it as, say,"
        " JUDGE_API_KEY."
      )

  def limits(self) -> judge_service.Limits:
    """What the service may cost."""
    return judge_service.Limits(
      self.timeout_s, self.max_tries, self.max_calls, self.max_in_flight
    )


@dataclasses.dataclass(frozen=True)
class JudgeConfig:
  """A model that reads a rubric with a completion, for the reward "judge".

  Attributes:
    rubric: What it is told: a text with "{prompt}" and "{completion}", and
      other fields of the records, as "{answer}". For a service also "{fence}",
      a word that no completion can contain.
    model: Who judges. Empty: the policy itself, as it is in each step. Or the
      folder of a run, or the folder or hub name of a Hugging Face checkpoint
      with the same tokenizer: frozen. For a service the model's name there.
    verdicts: Words and what they are worth. The last word of the answer counts.
    marker: Behind the last of these, as "Verdict:", the first word counts.
    template: How the rubric is put to a model of the run: a text with
      "{rubric}", or "chat" for the tokenizer's chat template. A service has one
      of its own.
    max_prompt_len: Slots for all that it reads but the completion, tokens;
      completions of records with more are unscored. None: what a task needs, or
      config.data.max_prompt_len and the words of the rubric.
    max_new_tokens: Of its answer.
    batch_size: Rows that a model of the run reads at once, over all devices;
      None: as many as a step has prompts.
    service: A judge over HTTP.
  """

  rubric: str = ""
  model: str = ""
  verdicts: Mapping[str, Any] = dataclasses.field(
    default_factory=lambda: {"yes": 1.0, "no": 0.0}
  )
  marker: str = ""
  template: str = "{rubric}"
  max_prompt_len: int | None = None
  max_new_tokens: int = 8
  batch_size: int | None = None
  service: ServiceConfig = ServiceConfig()

  def __post_init__(self):
    verdicts.check(self.verdicts, self.marker, "config.judge")
    ranges.check(
      self,
      "config.judge",
      max_prompt_len=ranges.SLOTS,
      max_new_tokens=ranges.SLOTS,
      batch_size=ranges.ROWS,
    )
    if not self.rubric:
      return
    rubrics.check(self.rubric, "config.judge")
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
