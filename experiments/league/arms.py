"""The arms of the league, an algorithm on a task each, and their configs.

    python -m experiments.league.run --arms='^grpo-sort$'

An arm is a sweep over seeds and learning rates, in one program. All arms of a
task begin with the parameters of the warm start of their seed, `base-TASK`, and
draw the same number of completions. An algorithm that needs another number of
completions for a prompt has more or fewer prompts. An algorithm with a critic
trains the critic alone at first, on completions that count too.
"""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import ml_collections

from experiments.league import problems
from experiments.sweeps import arms as sweeps_lib
from grpo_jax import algorithms
from grpo_jax.configs import ppo_add

BASELINE = "grpo"
RATE = 3e-4  # The default learning rate.
FACTORS = (1 / 3, 1.0, 3.0)  # Of it: the rates of which the best is looked for.
TASKS = {
  "sort": "sorting five letters",
  "add": "sums of two digits with a scratchpad",
  "words": "sums and differences in words",
}
FOLDER = pathlib.Path("runs/league/problems")  # Of the files of `words`.


class Entry(NamedTuple):
  """An algorithm of the league.

  Attributes:
    shown: Its name on the page.
    group_size: Completions that are drawn of a prompt.
    settings: Fields of its config that are not its defaults.
  """

  shown: str
  group_size: int = 8
  settings: Mapping[str, Any] = {}


# The best known come first, and are run first.
ENTRIES = {
  "grpo": Entry("GRPO"),
  "dr_grpo": Entry("Dr. GRPO"),
  "dapo": Entry("DAPO"),
  "rloo": Entry("RLOO"),
  "reinforce": Entry("REINFORCE", 1),
  "reinforce_pp": Entry("REINFORCE++", 1),
  "gspo": Entry("GSPO"),
  "cispo": Entry("CISPO"),
  "ppo": Entry("PPO", 1),
  "gmpo": Entry("GMPO"),
  "opo": Entry("OPO"),
  "reinforce_pp_baseline": Entry("REINFORCE++ with baseline"),
  "remax": Entry("ReMax", 1),
  "vapo": Entry("VAPO"),
  "vc_ppo": Entry("VC-PPO", 1),
  "gpg": Entry("GPG"),
  "sapo": Entry("SAPO"),
  "deepseek_v32": Entry("GRPO of DeepSeek-V3.2"),
  "clip_cov": Entry("Clip-Cov"),
  "kl_cov": Entry("KL-Cov"),
  "gfpo": Entry("GFPO", 16, {"entropy_coef": 0.0}),
  "spo": Entry("SPO", 1),
  "sao": Entry("SAO", 1),
  "two_grpo": Entry("2-GRPO", 2),
  "passk": Entry("Pass@k training"),
  "gspo_token": Entry("GSPO-token"),
  "luspo": Entry("LUSPO"),
  "vespo": Entry("VESPO"),
  "tic_grpo": Entry("TIC-GRPO"),
  "lambda_grpo": Entry("λ-GRPO"),
  "edge_grpo": Entry("EDGE-GRPO"),
  "gtpo": Entry("GTPO"),
  "grpo_s": Entry("GRPO-S"),
  "otb": Entry("OTB"),
  "mo_grpo": Entry("MO-GRPO"),
  "gdpo": Entry("GDPO"),
  "compaction_rl": Entry("CompactionRL", 1),
  "two_grpo_dpo": Entry("2-GRPO with DPO", 2),
  "ppo_dpo": Entry("PPO with DPO", 4),
}
# Reason -> algorithms of the table that are not in the league.
LEFT_OUT = {
  "are not trained by rewards, but by texts, pairs or teachers": (
    *("sft", "dpo", "bradley_terry", "opd_token", "opd_full", "opd_topk"),
  ),
  "need rewards or answers of single steps, which not all tasks have": (
    *("grpo_ps", "rredcot"),
  ),
  "compare the turns of an episode, and here is one turn": ("gagpo", "gigpo"),
}
# Algorithms that came into the table after the runs of the league.
_KNOWN = {*ENTRIES, *itertools.chain(*LEFT_OUT.values())}
if _LATER := [x for x in algorithms.ALGORITHMS if x not in _KNOWN]:
  LEFT_OUT["came after its runs"] = (*_LATER,)
ARMS = tuple(f"{x}-{task}" for x, task in itertools.product(ENTRIES, TASKS))
BASES = tuple(f"base-{task}" for task in TASKS)


class Size(NamedTuple):
  """Amounts of computation.

  Attributes:
    num_seeds: Number of seeds of each arm.
    imitation: Number of steps of the warm start, by task.
    batch: Number of completions of a step.
    steps: Number of steps of each arm, in all its phases.
    critic_steps: Number of these steps that train the critic alone.
    held_out: Number of problems of an evaluation.
    records: Number of problems in words to train on.
  """

  num_seeds: int
  imitation: Mapping[str, int]
  batch: int
  steps: int
  critic_steps: int
  held_out: int
  records: int


SIZES = {
  "full": Size(
    num_seeds=5,
    imitation={"sort": 150, "add": 250, "words": 200},
    batch=128,
    steps=48,
    critic_steps=12,
    held_out=512,
    records=4096,
  ),
  "smoke": Size(2, dict.fromkeys(TASKS, 4), 32, 4, 2, 32, 128),
}
NUM_UPDATES = 4  # Gradient steps on the completions of a step.
_SIZED = sweeps_lib.Sized((*BASES, *ARMS), SIZES)


def split(name: str) -> tuple[str, str]:
  """The algorithm and the task of an arm; "base" of a warm start."""
  algorithm, _, task = name.rpartition("-")
  return algorithm, task


def base_of(name: str) -> str:
  """Name of the arm whose parameters an arm begins with."""
  return f"base-{split(name)[1]}"


def has_critic(algorithm: str) -> bool:
  return algorithms.get_algorithm(algorithm).critic_loss is not None


def num_greedy(algorithm: str, num_prompts: int) -> int:
  """Number of completions that a step draws beside those that it trains on."""
  needs = algorithms.get_algorithm(algorithm).needs
  return num_prompts if "greedy_rewards" in needs else 0


def get_config(argument: str) -> ml_collections.ConfigDict:
  """The config of an arm, without the run that it begins with."""
  name, size = _SIZED.parsed(argument)
  algorithm, task = split(name)
  is_base = algorithm == "base"
  algorithm = BASELINE if is_base else algorithm
  entry = ENTRIES[algorithm]
  config = ppo_add.get_config(algorithm)
  for field, value in {"kl_coef": 0.0, **entry.settings}.items():
    config.algorithm[field] = value
  config.model.width = 64
  config.model.mlp_width = 192
  _DATA[task](config, size)
  config.sft.steps = size.imitation[task]
  config.sft.num_prompts = min(size.batch, 128)
  critic_steps = (
    0 if is_base or not has_critic(algorithm) else size.critic_steps
  )
  drawn = entry.group_size
  # A greedy completion of each prompt counts as one more.
  drawn += num_greedy(algorithm, 1)
  for phase, steps in (
    (config.rl, size.steps - critic_steps),
    (config.value, critic_steps),
  ):
    phase.steps = steps
    phase.group_size = entry.group_size
    phase.num_prompts = size.batch // drawn
    phase.num_lengths = 1  # Compiles faster.
  config.rl.num_minibatches = NUM_UPDATES
  config.rl.optimizer.learning_rate = RATE
  if algorithm == "compaction_rl":
    config.critic.num_updates = 2  # As the paper has it.
  if algorithm == "spo":
    config.rl.schedule.name = "spo"
    config.rl.schedule.pool = 4 * size.batch
  config.phases = ("sft",) if is_base else config.phases[1:]
  config.eval.num_prompts = config.eval.batch_size = size.held_out
  config.eval.every = 0
  config.checkpoint.every = 0
  config.checkpoint.keep = 1
  config.log.tensorboard = False
  config.log.traces_every = 0
  config.log.curves = False
  return config


def _sort(config: ml_collections.ConfigDict, size: Size) -> None:
  del size
  config.data.name = "sort"
  config.data.task_options = ml_collections.ConfigDict(
    {
      "min_len": 5,
      "max_len": 5,
      "num_letters": 10,
      "tags": False,
      "teacher_error": 0.75,
    }
  )
  # More than the 6 that are needed: DAPO punishes the last fifth.
  config.sampling.max_new_tokens = 8


def _add(config: ml_collections.ConfigDict, size: Size) -> None:
  del size
  config.data.name = "add"
  config.data.task_options = ml_collections.ConfigDict(
    {"level": 2, "scratchpad": True, "teacher_error": 0.55}
  )
  config.sampling.max_new_tokens = 33  # 26 are needed.


def _words(config: ml_collections.ConfigDict, size: Size) -> None:
  del size
  config.data.source = "jsonl"
  config.data.name = ""
  config.data.task_options = ml_collections.ConfigDict()
  config.data.tokenizer = "gsm8k"
  config.data.train_path = str(FOLDER / problems.TRAIN)
  config.data.eval_path = str(FOLDER / problems.HELD_OUT)
  config.data.max_prompt_len = problems.PROMPT_LEN
  config.sampling.max_new_tokens = 7  # 5 are needed.
  config.rewards.functions = ("math_accuracy",)
  config.rewards.weights = (1.0,)
  config.rewards.in_graph = True


_DATA = {"sort": _sort, "add": _add, "words": _words}


def overrides(name: str, root: pathlib.Path) -> list[str]:
  """Flags for the start and the data of an arm, in the folder of all runs."""
  algorithm, task = split(name)
  found = []
  if algorithm != "base":
    found.append(f"--config.start_workdir={root}/{base_of(name)}/seed={{seed}}")
  if task == "words":
    folder = root / FOLDER.name
    found.append(f"--config.data.train_path={folder / problems.TRAIN}")
    found.append(f"--config.data.eval_path={folder / problems.HELD_OUT}")
  return found


def sweep(add: Callable[..., None], argument: str) -> None:
  """The cells of an arm: its seeds, and the learning rates of each."""
  name, size = _SIZED.parsed(argument)
  for seed in range(size.num_seeds):
    if split(name)[0] == "base":
      add(seed=seed)
      continue
    for factor in FACTORS:
      add(seed=seed, **{"rl.optimizer.learning_rate": RATE * factor})
