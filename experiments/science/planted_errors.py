"""Credits of segments that locate an error planted into a working.

Sizes were chosen after trials of one seed of `taught`, with 300 and 600 steps,
and of `start`, which after 150 steps was right in 2 % of its answers and now
has 300; the rules below were written before `taught` was run with five seeds,
and before any learner was run. The mean over seeds has Student's 95 % interval,
and the interval decides. A claim is confirmed if all of its checks hold.

Of `taught`, on 512 held-out problems with one flipped carry: how often the
segment with the flip has the most negative credit. On 128 workings of other
held-out problems, half of them with an error: Pearson's correlation r over
segments with the differences of Monte-Carlo values, 64 completions from each
prefix.

L1  Credits locate at least 80 % of the errors: the share − 0.8 is above 0.
L2  They do so for errors in the second step.
L3  They locate more than chance, a third, wherever the error is.
M1  Credits go with Monte-Carlo values: r is above 0.5.
M2  They do so more than the outcome, shared out by the entropy of segments.
M3  They do so more than the outcome, shared out alike.

Of the others, the *area*: the mean accuracy on held-out problems, at
temperature 1, over the 10 240 completions that are drawn. Arms are compared
seed by seed, with the same start.

E1  `mix` learns faster than `grpo`.
E2  `rudder` learns faster than `grpo`.
E3  `return` learns faster than `grpo`.
E4  `mix` learns faster than `ppo`.
E5  A verifier of steps is better than credits: `grpo_ps` learns faster than
    `mix`.
"""

from __future__ import annotations

import pathlib
from typing import Any

import ml_collections
import numpy as np

import grpo_jax
from experiments.science import arms, flips, pages
from experiments.science import planted_errors_credits as credits_lib
from experiments.science.arms import Arm, Size
from experiments.science.claims import Rule, rule, table
from experiments.sweeps import cells, figures
from grpo_jax.configs import ppo_add
from grpo_jax.training.monitor import style
from grpo_jax.training.runtime import log

LEVEL = 2  # Digits of both operands.
MEASURED = "taught"  # Imitates a teacher without errors; its credits count.
BASE = "start"  # Imitates a teacher who forgets carries.
TEACHER_ERROR = 0.3  # Probability of a carry that this teacher forgets.
IMITATION = {MEASURED: 600, BASE: 300}  # steps
BATCH, STEPS, EVERY = flips.BATCH, flips.STEPS, flips.EVERY
CRITIC_STEPS = flips.CRITIC_STEPS  # In which PPO's critic learns alone.
NUM_HELD_OUT = 512
# They begin with the policy of `start` of their seed, and draw equal numbers of
# completions. These include those from which PPO's critic learns at first.
LEARNERS = {
  "grpo": Arm("GRPO: one advantage for the whole completion"),
  "mix": Arm("RREDCoT: half GRPO, half credits of segments", "rredcot"),
  "rudder": Arm(
    "RREDCoT: credits of segments alone",
    *("rredcot", {"algorithm.mode": "rudder"}),
  ),
  "return": Arm(
    "RREDCoT: the reward less what was expected before the segment",
    *("rredcot", {"algorithm.mode": "return"}),
  ),
  "ppo": Arm(
    "PPO: a critic, one completion of each prompt",
    *("ppo", {"algorithm.kl_in_reward": False}),
  ),
  "grpo_ps": Arm("a verifier that judges each step", "grpo_ps"),
}
ARMS = (MEASURED, BASE, *LEARNERS)
ALL = arms.Arms(ARMS, {"full": Size(5)}, BASE, (BASE,))
sweep = ALL.sweep


def follows_on(name: str, root: pathlib.Path) -> list[str]:
  """Overrides that name the run that an arm follows on, of its own seed."""
  return ALL.follows_on(name, root) if name in LEARNERS else []


def get_config(argument: str) -> ml_collections.ConfigDict:
  """The config of an arm, without the run that it follows on."""
  name, _ = ALL.parsed(argument)
  arm = LEARNERS.get(name, Arm(""))
  config = ppo_add.get_config(arm.algorithm)
  config.data.name = "experiments.science.planted_errors_credits:make_task"
  config.data.task_options = ml_collections.ConfigDict(
    {
      "level": LEVEL,
      "skip": 0.5,
      "teacher_error": 0.0 if name == MEASURED else TEACHER_ERROR,
    }
  )
  config.model.width = 64
  config.model.mlp_width = 192
  config.algorithm.kl_coef = 0.0  # The warm start is what is to be left.
  if name in LEARNERS:
    config.phases = config.phases[1:]
    config.rl.steps = STEPS
    if "value" in config.phases:
      config.value.steps = CRITIC_STEPS
      config.value.num_lengths = 1
      config.rl.steps -= CRITIC_STEPS
  else:
    config.phases = ("sft",)
    config.sft.steps = IMITATION[name]
  config.rl.num_lengths = 1  # Compiles faster.
  config.eval.num_prompts = config.eval.batch_size = NUM_HELD_OUT
  config.eval.every = EVERY if name in LEARNERS else 0
  config.checkpoint.every = 0
  return arms.changed(config, arm.settings)


NUM_PROBLEMS = 512  # With a planted error.
NUM_COMPARED = 128  # Workings whose prefixes are completed.
NUM_SAMPLES = 64  # Completions from each prefix.


def collected(folder: pathlib.Path, size: Size) -> dict[str, Any] | None:
  """The numbers of an arm's runs; None while a run has not ended.

  Of `taught` they are the accuracy of its credits in locating errors, and their
  correlations; of others, the shares of right answers to held-out prompts.
  """
  del size
  found = []
  for name in cells.read_manifest(folder):
    if cells.read_result(folder / name) is None:
      return None
    if folder.name == MEASURED:
      found.append(measured(folder / name, seed=len(found)))
    else:
      found.append(flips.of_run(log.read_lines(folder / name / log.METRICS)))
  return {"seeds": found}


def measured(workdir: pathlib.Path, seed: int) -> dict[str, Any]:
  """Accuracy and correlations of the credits of a run."""
  rng = np.random.default_rng(seed)
  operands = credits_lib.held_out(rng, LEVEL, NUM_PROBLEMS)
  wrong = rng.integers(LEVEL, size=NUM_PROBLEMS)
  with grpo_jax.load(workdir) as run:
    given = credits_lib.workings(operands, wrong, LEVEL)
    credits, _ = credits_lib.found(run, given)
    return {
      **credits_lib.located(credits, wrong, LEVEL),
      "correlation": credits_lib.compared(
        run, LEVEL, NUM_COMPARED, NUM_SAMPLES, seed
      ),
    }


class Results(flips.Results):
  """The arms that have ended."""

  names, base = (MEASURED, *LEARNERS), ""

  @property
  def learners(self) -> list[str]:
    return [name for name in self._found if name in LEARNERS]

  def score(self, arm: str, what: str) -> np.ndarray:
    """Returns a score of each seed [S].

    It is "located"; "located/K", with the error in the segment K; "r/NAME", a
    correlation; "after", the accuracy at the end; or "area", the mean accuracy
    over the completions that were drawn.
    """
    seeds = self._found[arm]["seeds"]
    kind, _, name = what.partition("/")
    if kind == "located" and name:
      return np.array([s["located_by_step"][int(name)] for s in seeds])
    if kind == "located":
      return np.array([s["located"] for s in seeds])
    if kind == "r":
      return np.array([s["correlation"][name] for s in seeds])
    accuracy = self.accuracy(arm)
    if what == "after":
      return accuracy[:, -1]
    x = self.completions(arm)
    # PPO's policy stands still at first: what it had before counts until then.
    x, accuracy = np.insert(x, 0, 0), np.insert(accuracy, 0, accuracy[:, 0], 1)
    return np.trapezoid(accuracy, x, axis=1) / x[-1]


def _exceeds(what: str, shown: str, bound: float) -> Rule:
  return rule(f"{shown} − {bound:.3g}", "above", (MEASURED, what), bound)


def _more(other: str, shown: str) -> Rule:
  text = f"r of credits − {shown}"
  return rule(text, "above", (MEASURED, "r/credits"), (MEASURED, other))


def _faster(one: str, other: str) -> Rule:
  text = f"area of `{one}` − `{other}`"
  return rule(text, "above", (one, "area"), (other, "area"))


_CHANCE = 1 / (LEVEL + 1)
CLAIMS = table(
  "L1 Credits locate at least 80 % of the errors.",
  _exceeds("located", "located", 0.8),
  "L2 They locate at least 80 % of those in the second step.",
  _exceeds("located/1", "located, second step", 0.8),
  "L3 They locate more than chance, wherever the error is.",
  _exceeds("located/0", "located, first step", _CHANCE),
  _exceeds("located/1", "located, second step", _CHANCE),
  "M1 Credits go with Monte-Carlo values.",
  _exceeds("r/credits", "r of credits", 0.5),
  "M2 They do so more than the outcome shared out by entropy.",
  _more("r/entropy", "r of the outcome by entropy"),
  "M3 They do so more than the outcome shared out alike.",
  _more("r/outcome", "r of the outcome"),
  "E1 `mix` learns faster than GRPO.",
  _faster("mix", "grpo"),
  "E2 `rudder` learns faster than GRPO.",
  _faster("rudder", "grpo"),
  "E3 `return` learns faster than GRPO.",
  _faster("return", "grpo"),
  "E4 `mix` learns faster than PPO.",
  _faster("mix", "ppo"),
  "E5 A verifier of steps is better than credits.",
  _faster("grpo_ps", "mix"),
)
CONFIRMED = "L2 M1 M3 E1 E4"
REFUTED = "E5"
_ROWS = {
  "errors located": "located",
  "errors located, first step": "located/0",
  "errors located, second step": "located/1",
  "r of credits with sampled values": "r/credits",
  "r of the outcome, shared out by entropy": "r/entropy",
  "r of the outcome, shared out alike": "r/outcome",
}


def numbers(results: Results) -> dict[str, Any]:
  """Tables and numbers of the page."""
  credits = (
    [shown, pages.cell(results.scores(MEASURED, what))]
    for shown, what in _ROWS.items()
  )
  learners = {
    "what it is": lambda x: LEARNERS[x].text,
    "area": pages.scored(results, "area"),
    "at the end": pages.scored(results, "after"),
  }
  is_measured = MEASURED in results.arms
  return {
    "taught_steps": IMITATION[MEASURED],
    "start_steps": IMITATION[BASE],
    "credits": pages.table(("of `taught`", ""), credits)
    if is_measured
    else None,
    "learners": pages.by_arm(LEARNERS, learners) if results.learners else None,
  }


_LOCATED = {"first\nstep": "located/0", "second\nstep": "located/1"}
_WITH = {
  "credits": "r/credits",
  "outcome,\nby entropy": "r/entropy",
  "outcome": "r/outcome",
}


def plot(path: pathlib.Path, results: Results) -> None:
  """Draws located errors, correlations of credits, speeds of learning."""
  canvas, grid = style.panels(1, 3, style.PAGE, 2.5, width_ratios=(2, 3, 4.2))
  located, goes, learns = grid[0]
  _bars(located, results, _LOCATED)
  located.axhline(_CHANCE, color=style.GREY, ls=":", lw=1)
  style.label(located, "Located errors", y="share; dotted: chance")
  located.set_ylim(0, 1.02)
  _bars(goes, results, _WITH)
  style.label(goes, "With sampled values", y="Pearson's r over segments")
  goes.set_ylim(-0.02, 1.02)
  looks = style.looks(tuple(LEARNERS))
  for name in results.learners:
    x, values = results.completions(name), results.accuracy(name)
    figures.curve(learns, x, values, looks[name], name)
  learns.locator_params(axis="x", nbins=4)
  style.label(
    learns, "Right answers, held out", "completions drawn", "accuracy"
  )
  style.name_lines(canvas, learns)
  style.save(canvas, path)


def _bars(axes, results: Results, shown: dict[str, str]) -> None:
  """Means over seeds of `taught`, and a dot for each seed."""
  known = [results.scores(MEASURED, what) for what in shown.values()]
  samples = [values for values in known if values is not None]
  if len(samples) == len(shown):
    figures.bars(axes, samples, [style.SKY] * len(samples))
  axes.set_xticks(range(len(shown)), list(shown))
