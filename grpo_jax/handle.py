"""A run in the hands of a person: its log, its policy, samples and evaluations.

    run = grpo_jax.load("runs/quickstart")
    run.history["reward/mean"]                      # [N]
    run.sample("dcba=").texts
    run.evaluate(num_samples=8, temperature=1.0)["eval/maj@8"]

Each access reads the files anew, so a run can be looked at while it trains. The
policy is opened at the first use. It stays in memory until the process ends or
the handle, which is a context manager, is closed.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from grpo_jax import ranges
from grpo_jax.data import formats
from grpo_jax.settings import config as config_lib
from grpo_jax.training.evaluation import data_sets, draws, evaluation, scores
from grpo_jax.training.monitor import plots
from grpo_jax.training.phases import checkpointed
from grpo_jax.training.runtime import files, hosts, log, terminal
from grpo_jax.training.runtime import traces as traces_lib

if TYPE_CHECKING:
  from matplotlib.figure import Figure


class Run:
  """A run, or a Hugging Face checkpoint that no run has trained.

  Attributes:
    config: The run's settings.
    workdir: The run's folder; None for a checkpoint.
  """

  def __init__(
    self,
    config: config_lib.RunConfig,
    workdir: files.Path | None,
    open_policy: Callable[[contextlib.ExitStack], checkpointed.Loaded],
  ):
    """Opens nothing yet.

    Args:
      config: The run's settings.
      workdir: The run's folder; None for a checkpoint.
      open_policy: Opens the policy; the stack closes it.
    """
    self.config = config
    self.workdir = workdir
    self._open = open_policy
    stack = contextlib.ExitStack()
    self._stack = stack
    self._close = weakref.finalize(self, stack.close)
    self._samplers: dict[Any, draws.TextSampler] = {}

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *_: object) -> None:
    self.close()

  def __repr__(self) -> str:
    origin = self.workdir or self.config.model.checkpoint
    result = self.result if self.workdir else None
    if result is None:
      return f"Run({str(origin)!r})"
    after = result["after"] or {}
    accuracy = after.get("eval/accuracy")
    suffix = "" if accuracy is None else f", eval/accuracy {accuracy:.3f}"
    return (
      f"Run({str(origin)!r}, {ranges.counted(result['step'], 'step')}{suffix})"
    )

  def close(self) -> None:
    """Frees the policy; a later use opens it again."""
    self.__dict__.pop("loaded", None)
    self._samplers.clear()
    self._stack.close()

  @functools.cached_property
  def loaded(self) -> checkpointed.Loaded:
    """The models in memory; their parameters are averaged if the run averages.

    Raises:
      FileNotFoundError: The checkpoint does not exist.
      ValueError: The checkpoint or the data are at fault.
    """
    with contextlib.ExitStack() as stack:
      models = self._open(stack)
      self._stack.enter_context(stack.pop_all())
    return models

  @property
  def step(self) -> int | None:
    """Step of the checkpoint; None if no run has trained it."""
    return self.loaded.step

  @property
  def params(self) -> Any:
    """Parameters of the policy: {"trained": …, "frozen": …}."""
    return self.loaded.params

  def _folder(self, what: str) -> files.Path:
    if self.workdir is None:
      raise ValueError(
        f"run.{what}: {self.config.model.checkpoint!r} is a checkpoint that no"
        " run has trained, so there is none; load(workdir) opens a run."
      )
    return self.workdir

  @property
  def history(self) -> plots.RunHistory:
    """The logged metrics up to now, as arrays by name."""
    return plots.read(self._folder("history"))

  @property
  def samples(self) -> list[dict[str, Any]]:
    """The lines of `samples.jsonl`: completions drawn in training."""
    path = self._folder("samples") / log.SAMPLES
    return log.read_lines(path) if path.exists() else []

  @property
  def result(self) -> dict[str, Any] | None:
    """The content of `result.json`: how the run ended.

    None while the run is going on or if it was stopped; the same call of
    `train` then continues it.
    """
    path = self._folder("result") / log.RESULT
    return log.read_json(path, dict) if path.exists() else None

  def traces(self) -> list[traces_lib.Group]:
    """Returns the groups that the run has traced, token by token."""
    return traces_lib.read(self._folder("traces"))

  def plot(self) -> Figure:
    """Plots reward, accuracy, length and entropy.

    A notebook shows the figure. In a script nobody does, so the figure is also
    written into the folder of the run, as `curves.png`, and the path is logged.

    Raises:
      ImportError: matplotlib is not installed.
      ValueError: No reinforcement step was logged yet.
    """
    folder = self._folder("plot")
    figure = plots.figure_of(folder)
    if terminal.mode_of(sys.stdout) != "notebook":
      path = folder / plots.CURVES
      try:
        path.write_bytes(plots.png(figure))
        hosts.say(f"curves: {path}")
      except OSError as error:
        hosts.say(f"curves cannot be written: {error}; figure.savefig can")
    return figure

  def prompts(self, num_prompts: int) -> list[dict[str, Any]]:
    """Returns the first held-out records, for `sample`.

    Raises:
      ValueError: The run has fewer held-out records.
    """
    held_out = self.loaded.problem.held_out
    if not 1 <= num_prompts <= len(held_out):
      raise ValueError(
        f"prompts: num_prompts={num_prompts}; the run has {len(held_out)}"
        " held-out prompts."
      )
    return [held_out[i] for i in range(num_prompts)]

  def sample(
    self,
    prompts: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]],
    n: int = 1,
    temperature: float = 0.0,
    seed: int = 0,
  ) -> draws.DrawnTexts:
    """Draws completions of prompts, with log-probs, entropies and rewards.

    A prompt that is a text has no right answer, so its completions are not
    scored: their rewards are NaN. A record has an answer, and is scored as in
    the run.

    Args:
      prompts: One or several prompts, all texts or all records. A text is
        written in the alphabet of the run's task. A record is one of `prompts`,
        or {"prompt": "27 + 58 =", "answer": "85"}; its prompt may be messages.
      n: Completions of each prompt.
      temperature: Sampling temperature; 0 takes the most likely tokens.
      seed: Seed of the draws.

    Raises:
      ValueError: A prompt or a number is at fault, or the run's task has an
        environment in the graph, which a text cannot begin.
    """
    if n < 1:
      raise ValueError(
        f"sample: n={n} completions of each prompt; needs at least 1."
      )
    if n > 1 and not temperature:
      raise ValueError(
        f"sample: n={n} and temperature=0: all completions of a prompt would be"
        " the same; set a temperature, such as 1.0."
      )
    items = [prompts] if isinstance(prompts, (str, Mapping)) else list(prompts)
    is_scored = bool(items) and not isinstance(items[0], str)
    if not items or any(isinstance(x, str) == is_scored for x in items):
      raise ValueError(
        f"sample: {len(items)} prompts; needs at least one, and either"
        " texts or records, and not both."
      )
    records = [self._record(prompt) for prompt in items]
    key = is_scored, n, float(temperature)
    if key not in self._samplers:
      self._samplers[key] = draws.TextSampler(self.loaded, records, *key)
    return self._samplers[key].draw(records, seed)

  def _record(self, prompt: str | Mapping[str, Any]) -> dict[str, Any]:
    """Returns a prompt in the form of the run's records.

    Raises:
      ValueError: The prompt cannot be such a record.
    """
    problem = self.loaded.problem
    if isinstance(prompt, str):
      if problem.environment is not None:
        raise ValueError(
          "sample: this run's task has an environment, which needs more than a"
          " text to begin with; pass run.prompts(4), its held-out problems."
        )
      is_text = isinstance(problem.train[0]["prompt"], str)
      value = prompt if is_text else problem.encoder.prompt({"prompt": prompt})
      prompt = {"prompt": value}
    if isinstance(prompt.get("prompt"), list):  # Messages.
      prompt = formats.plain_record(prompt)
    record = {"answer": "", "extras": {}, **prompt}
    if "prompt" not in prompt:
      raise ValueError(
        f"sample: the record {record!r:.80} has no prompt; needs"
        ' {"prompt": …, "answer": …}.'
      )
    size = len(problem.encoder.prompt(record))
    if size > problem.max_prompt_len:
      raise ValueError(
        f"sample: the prompt has {size} tokens; this run was trained with at"
        f" most {problem.max_prompt_len} (config.data.max_prompt_len)."
      )
    return record

  def evaluate(
    self,
    num_prompts: int | None = None,
    temperature: float = 0.0,
    seed: int = 0,
    num_samples: int = 1,
    data: Mapping[str, str] | None = None,
    top_p: float | None = None,
  ) -> dict[str, float]:
    """Evaluates the policy on held-out prompts, or on files of prompts.

    Args:
      num_prompts: The first so many prompts; None: as many held-out ones as the
        run has, or all of a file.
      temperature: Sampling temperature; 0 is greedy.
      seed: Seed of the draws.
      num_samples: Completions of each prompt.
      data: Name -> JSON-lines file, instead of the held-out prompts.
      top_p: Tokens are drawn from the most likely ones that have this share of
        the probability; None: from all.

    Returns:
      The metrics of `evaluation.summarize` and `scores.lengths`; with several
      samples also "eval/pass@4", "eval/maj@4" and so on (`scores.of_samples`).
      The mean over nothing is NaN. With `data` the names are
      "eval/NAME/accuracy" and so on, and "eval/macro/…" are the means over the
      data sets.

    Raises:
      FileNotFoundError, ValueError: The data or a number is at fault.
    """
    if num_samples > 1 and not temperature:
      raise ValueError(
        f"evaluate: num_samples={num_samples} and temperature=0: all samples of"
        " a prompt would be the same; set a temperature, such as 1.0."
      )
    loaded = self.loaded
    sets = data_sets.opened(loaded, data or {}, num_prompts)
    settings = data_sets.Draws(temperature, num_samples, top_p, seed)
    results = [
      _figures(x, groups, loaded.config.rewards.follows)
      for x, groups in zip(
        sets, data_sets.complete(loaded, sets, settings), strict=True
      )
    ]
    if not data:
      return results[0]
    by_name = dict(zip((x.name for x in sets), results, strict=True))
    by_name["macro"] = {
      name: float(np.mean([figures[name] for figures in results]))
      for name in results[0]
      if all(name in figures for figures in results)
    }
    return {
      name.replace("eval/", f"eval/{part}/", 1): value
      for part, figures in by_name.items()
      for name, value in figures.items()
    }


def _figures(
  data: data_sets.DataSet, groups: scores.Groups, consistent: str
) -> dict[str, float]:
  """Returns the metrics of one data set."""
  domains = [name for name in data.domains if name is not None]
  figures: dict[str, float | None] = {
    **evaluation.summarize(groups, domains, consistent)
  }
  for name, value in scores.lengths(groups).items():
    figures[f"eval/{name}"] = value
  if len(groups[0]) > 1:
    for name, column in scores.of_samples(groups, data.golds).items():
      figures[f"eval/{name}"] = sum(column) / len(column)
  return {k: math.nan if v is None else v for k, v in figures.items()}
