r"""Trains a published model with TRL, on the work that `beside_trl.py` writes.

TRL runs in an environment of its own, and imports nothing of this project:

    python -m venv trl
    trl/bin/pip install torch trl==1.16.0
    trl/bin/python experiments/parity/trl_run.py --work=WORK.json \
        --model=FOLDER --out=OUT.json --loss=dr_grpo --seed=0 --micro_batch=64

Prompts, their order, the rule of the reward, the number of completions, and
the settings of AdamW are those of the work. The program stops if TRL's
tokenizer writes other ids for a prompt than this project does. The seed is that
of the draws, since both programs begin with the same parameters. If the work
has completions, TRL learns from those in place of its own, and --expected names
the parameters that it should end with. With --draws it trains nothing, and
writes the rewards of so many draws of each training prompt.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import re
import statistics
import tempfile
import time
import warnings
from typing import Any

# A whole number behind the last "=" of the text, to the end of its line.
_ANSWER = re.compile(r"=[ +]*(\d+)(?:\.0*)?[ .]*(?:\n[^=]*)?\Z")
SAMPLED = {"do_sample": True, "temperature": 1.0, "top_p": 1.0, "top_k": 0}


def reward(completion: str, answer: str) -> float:
  """1.0 if the number behind the last "=" is the answer, as in "7 + 9 = 16"."""
  found = _ANSWER.search(completion)
  return float(found is not None and int(found[1]) == int(answer))


def scores(
  model: Any, tokenizer: Any, rows: list[dict[str, Any]], **options: Any
) -> list[float]:
  """Returns the reward of a completion of each row, decoded with options."""
  import torch

  found: list[float] = []
  model.eval()
  for start in range(0, len(rows), 64):
    part = rows[start : start + 64]
    inputs = tokenizer(
      [row["text"] for row in part],
      return_tensors="pt",
      padding=True,
      padding_side="left",
      add_special_tokens=False,
    )
    with torch.no_grad():
      ids = model.generate(**inputs, **options)
    completions = tokenizer.batch_decode(
      ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True
    )
    found += [
      reward(text, row["answer"])
      for text, row in zip(completions, part, strict=True)
    ]
  return found


def accuracy(model: Any, tokenizer: Any, work: dict[str, Any]) -> float:
  """Returns the share of held-out prompts that greedy decoding answers."""
  greedy = {"do_sample": False, "max_new_tokens": work["max_new_tokens"]}
  return statistics.mean(scores(model, tokenizer, work["held_out"], **greedy))


def loaded(work: dict[str, Any], folder: pathlib.Path) -> tuple[Any, Any]:
  """Returns model and tokenizer of a folder, and adds texts to the work's rows.

  Raises:
    ValueError: A prompt has other ids here.
  """
  import transformers

  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  steps = work["prompts"]
  for row in [*(row for step in steps for row in step), *work["held_out"]]:
    row["text"] = tokenizer.apply_chat_template(
      [{"role": "user", "content": row["question"]}],
      tokenize=False,
      add_generation_prompt=True,
    )
    ids = tokenizer(row["text"], add_special_tokens=False)["input_ids"]
    if ids != row["ids"]:
      raise ValueError(
        f"the prompt {row['text']!r} has the ids {ids} here and {row['ids']} in"
        " the work; a comparison needs the same tokenizer in both programs."
      )
  load = transformers.AutoModelForCausalLM.from_pretrained
  return load(folder, dtype="float32"), tokenizer


def draw(
  work: dict[str, Any], folder: pathlib.Path, count: int, seed: int
) -> list[float]:
  """Returns the rewards of so many draws of each training prompt, in order."""
  import transformers

  model, tokenizer = loaded(work, folder)
  transformers.set_seed(seed)
  rows = [row for step in work["prompts"] for row in step for _ in range(count)]
  return scores(
    model, tokenizer, rows, max_new_tokens=work["max_new_tokens"], **SAMPLED
  )


def distance(model: Any, start: pathlib.Path, expected: pathlib.Path) -> float:
  """Returns ‖θ − θ_expected‖ ÷ ‖θ_expected − θ_start‖ over all parameters."""
  import torch
  import transformers

  away = moved = 0.0
  load = transformers.AutoModelForCausalLM.from_pretrained
  first = load(start, dtype="float32").state_dict()
  last = load(expected, dtype="float32").state_dict()
  with torch.no_grad():
    for name, value in model.state_dict().items():
      away += float((value - last[name]).double().square().sum())
      moved += float((last[name] - first[name]).double().square().sum())
  return (away / moved) ** 0.5


def train(
  work: dict[str, Any],
  folder: pathlib.Path,
  *,
  loss: str,
  seed: int,
  micro_batch: int,
  expected: pathlib.Path | None = None,
) -> dict[str, Any]:
  """Trains; returns accuracies, and numbers of the steps.

  Steps have rewards, norms of gradients and seconds. If there are expected
  parameters, the result has the distance from them too.

  Args:
    work: Prompts and settings.
    folder: Hugging Face folder of the model.
    loss: "grpo" or "dr_grpo".
    seed: Seed of the draws.
    micro_batch: Rows of a backward pass.
    expected: Hugging Face folder of the parameters that the completions lead to
      in the other program.

  Raises:
    ValueError: A prompt has other ids here.
  """
  import datasets
  import transformers
  import trl

  steps = work["prompts"]
  model, tokenizer = loaded(work, folder)
  before = accuracy(model, tokenizer, work)
  rows = work["group_size"] * len(steps[0])
  rewards: list[float] = []
  norms: list[float] = []
  starts = []

  def of_rows(completions, answer, **unused):
    del unused
    found = [reward(*row) for row in zip(completions, answer, strict=True)]
    rewards.append(statistics.mean(found))
    return found

  class Clock(transformers.TrainerCallback):
    def on_train_begin(self, *unused, **also_unused):
      starts.append(time.perf_counter())

    def on_step_end(self, *unused, **also_unused):
      starts.append(time.perf_counter())

    def on_log(self, *unused, logs, **also_unused):
      norms.extend(value for name, value in logs.items() if name == "grad_norm")

  def given(texts, trainer):
    completions = work["completions"][len(rewards)]
    ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
    return {
      "prompt_ids": ids,
      "completion_ids": completions,
      "logprobs": None,
    }

  prompts = [row for step in steps for row in step]
  data = datasets.Dataset.from_dict(
    {
      "prompt": [row["text"] for row in prompts],
      "answer": [row["answer"] for row in prompts],
    }
  )
  with tempfile.TemporaryDirectory() as output:
    settings = trl.GRPOConfig(
      output_dir=output,
      use_cpu=True,
      bf16=False,
      seed=seed,
      loss_type=loss,
      scale_rewards="none" if loss == "dr_grpo" else "group",
      per_device_train_batch_size=micro_batch,
      gradient_accumulation_steps=rows // micro_batch,
      steps_per_generation=rows // micro_batch,
      num_generations=work["group_size"],
      max_completion_length=work["max_new_tokens"],
      **{name: SAMPLED[name] for name in ("temperature", "top_p", "top_k")},
      beta=0.0,
      learning_rate=work["learning_rate"],
      lr_scheduler_type="linear",
      warmup_steps=0,
      adam_beta1=work["b1"],
      adam_beta2=work["b2"],
      adam_epsilon=work["eps"],
      weight_decay=0.0,
      max_grad_norm=work["clip_norm"],
      max_steps=len(steps),
      gradient_checkpointing=False,
      save_strategy="no",
      logging_steps=1,
      report_to=[],
      disable_tqdm=True,
      dataloader_num_workers=0,
      shuffle_dataset=False,
    )
    trainer = trl.GRPOTrainer(
      model=model,
      reward_funcs=of_rows,
      args=settings,
      train_dataset=data,
      processing_class=tokenizer,
      callbacks=[Clock()],
      rollout_func=given if "completions" in work else None,
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
  return {
    "trl": trl.__version__,
    "before": before,
    "after": accuracy(trainer.model, tokenizer, work),
    "rewards": rewards,
    "gradient_norms": norms,
    "seconds": [b - a for a, b in itertools.pairwise(starts)],
    **(
      {"distance": distance(trainer.model, folder, expected)}
      if expected
      else {}
    ),
  }


def main() -> None:
  """Trains with the settings of the flags, and writes the file."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--work", required=True, type=pathlib.Path)
  parser.add_argument("--model", required=True, type=pathlib.Path)
  parser.add_argument("--out", required=True, type=pathlib.Path)
  parser.add_argument("--loss", choices=["grpo", "dr_grpo"], required=True)
  parser.add_argument("--seed", type=int, required=True)
  parser.add_argument("--micro_batch", type=int, required=True, help="Rows.")
  parser.add_argument("--expected", type=pathlib.Path, help="Folder.")
  parser.add_argument("--draws", type=int, help="Completions of a prompt.")
  flags = parser.parse_args()
  warnings.simplefilter("ignore")
  import transformers

  transformers.utils.logging.set_verbosity_error()
  work = json.loads(flags.work.read_text("utf-8"))
  result = (
    {"rewards": draw(work, flags.model, flags.draws, flags.seed)}
    if flags.draws
    else train(
      work,
      flags.model,
      loss=flags.loss,
      seed=flags.seed,
      micro_batch=flags.micro_batch,
      expected=flags.expected,
    )
  )
  flags.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
  main()
