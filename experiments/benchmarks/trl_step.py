r"""TRL's GRPO step on the work of `step.py`, for a comparison on one machine.

TRL needs packages that this project does not need. So it runs in an environment
of its own, and takes only `workload.py` from this project:

    python -m venv trl
    trl/bin/pip install torch trl==1.16.0
    trl/bin/python -m experiments.benchmarks.trl_step --preset=S

A random Qwen2 model of the sizes of `workload.py` is trained by `GRPOTrainer`
on random prompts: no KL, one update a rollout, AdamW, completions of full
length, on a GPU in bfloat16 if torch sees one. The reward is the number of odd
tokens. The seconds of a step go from its start to the start of the next one:
generation, log-probs, reward, update, and the trainer's work between them. The
first two steps are left out.

TRL's speed depends on the number of rows that are computed at once. So each of
--micro_batches is a run of its own, and a table should have the fastest.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import statistics
import tempfile
import time
import warnings
from typing import Any

from experiments.benchmarks import workload

_WARM_UP = 2  # Steps.


def _tokenizer(vocab: int) -> Any:
  """Tokens "t0", "t1", ... split at spaces; the last two end and pad."""
  import tokenizers
  import transformers

  words = {f"t{i}": i for i in range(vocab)}
  model = tokenizers.models.WordLevel(words, unk_token="t0")
  tokenizer = tokenizers.Tokenizer(model)
  tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
  return transformers.PreTrainedTokenizerFast(
    tokenizer_object=tokenizer,
    eos_token=f"t{vocab - 2}",
    pad_token=f"t{vocab - 1}",
    padding_side="left",
  )


def device() -> str:
  """The device of torch: the GPU, if there is one."""
  import torch

  return "cuda" if torch.cuda.is_available() else "cpu"


def make_model(work: workload.Work) -> Any:
  """A random model, on the device."""
  import torch
  import transformers

  torch.manual_seed(0)
  config = transformers.Qwen2Config(
    vocab_size=work.vocab,
    hidden_size=work.hidden,
    num_hidden_layers=work.layers,
    num_attention_heads=work.heads,
    num_key_value_heads=work.kv_heads,
    intermediate_size=work.mlp_width or 4 * work.hidden,
    tie_word_embeddings=True,
    bos_token_id=None,
    eos_token_id=work.vocab - 2,
    pad_token_id=work.vocab - 1,
  )
  with torch.device(device()):
    return transformers.Qwen2ForCausalLM(config)


def _prompts(work: workload.Work, steps: int) -> Any:
  import datasets
  import numpy as np

  shape = steps * work.prompts, work.prompt_len
  tokens = np.random.default_rng(1).integers(0, work.vocab - 2, shape)
  texts = [" ".join(f"t{i}" for i in row) for row in tokens]
  table = datasets.table.InMemoryTable.from_pydict({"prompt": texts})
  # With a name the table need not be hashed.
  return datasets.Dataset(table, fingerprint="prompts")


def _odd_tokens(completion_ids, **unused):
  del unused
  return [float(sum(i % 2 for i in row)) for row in completion_ids]


def seconds(
  work: workload.Work, micro_batch: int, num_steps: int
) -> list[float]:
  """Seconds of each step, without those of the warm-up.

  Args:
    work: Sizes; completions are as long as they may be.
    micro_batch: Rows of one backward pass.
    num_steps: Number of steps to measure.
  """
  import transformers
  import trl

  rows = work.prompts * work.group
  total = num_steps + _WARM_UP
  starts: list[float] = []

  class Clock(transformers.TrainerCallback):
    def on_step_end(self, *unused, **also_unused):
      starts.append(time.perf_counter())

  with tempfile.TemporaryDirectory() as folder:
    settings = trl.GRPOConfig(
      output_dir=folder,
      use_cpu=device() == "cpu",
      bf16=device() != "cpu",
      per_device_train_batch_size=micro_batch,
      gradient_accumulation_steps=rows // micro_batch,
      steps_per_generation=rows // micro_batch,
      num_generations=work.group,
      max_completion_length=work.completion_len,
      generation_kwargs={"min_new_tokens": work.completion_len},
      temperature=1.0,
      beta=0.0,
      learning_rate=1e-7,
      lr_scheduler_type="constant",
      max_steps=total,
      gradient_checkpointing=False,
      save_strategy="no",
      logging_strategy="no",
      report_to=[],
      disable_tqdm=True,
      dataloader_num_workers=0,
      shuffle_dataset=False,
    )
    trainer = trl.GRPOTrainer(
      model=make_model(work),
      reward_funcs=_odd_tokens,
      args=settings,
      train_dataset=_prompts(work, total + 1),
      processing_class=_tokenizer(work.vocab),
      callbacks=[Clock()],
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
  return [
    after - before
    for before, after in itertools.pairwise(starts[_WARM_UP - 1 :])
  ]


def main() -> None:
  """Prints the fastest and the middle step of each micro-batch."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--preset", default="S", choices=[*workload.PRESETS])
  parser.add_argument("--completion_len", type=int, default=None)
  parser.add_argument("--repeats", type=int, default=5)
  parser.add_argument(
    "--micro_batches", default="", help="Rows, with commas; by default three."
  )
  arguments = parser.parse_args()
  length = arguments.completion_len
  sizes = {"completion_len": length} if length else {}
  work = workload.of_preset(arguments.preset, **sizes)
  rows = work.prompts * work.group
  of_passes = arguments.micro_batches or f"{rows // 8},{rows // 4},{rows}"
  warnings.simplefilter("ignore")
  import torch
  import transformers
  import trl

  transformers.utils.logging.set_verbosity_error()
  now = datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes")
  print(
    f"{now}, TRL {trl.__version__}, torch {torch.__version__},"
    f" {torch.get_num_threads()} threads, size {arguments.preset}, rows of"
    f" {work.prompt_len} + {work.completion_len} tokens"
  )
  for micro_batch in map(int, of_passes.split(",")):
    found = seconds(work, micro_batch, arguments.repeats)
    print(
      f"micro-batches of {micro_batch} rows: min {min(found):.3f} s, median"
      f" {statistics.median(found):.3f} s of {len(found)} steps",
      flush=True,
    )


if __name__ == "__main__":
  main()
