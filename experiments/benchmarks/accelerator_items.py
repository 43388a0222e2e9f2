"""The items of `accelerator.py`, and their rows in the order of their worth."""

from __future__ import annotations

from typing import Any, NamedTuple

_JAX = "experiments.benchmarks.accelerator_jax"
_TORCH = "experiments.benchmarks.accelerator_torch"


class Item(NamedTuple):
  """Rows of one kind, which one process measures.

  Attributes:
    name: Title of its table.
    about: Text above the table.
    function: "module:function"; called with the arguments of a row, it returns
      the numbers of the row by the names of their columns.
    needs: Libraries without which the item is left out.
    limit_s: Seconds until it is killed, without those that others have left.
    rows: Arguments by the name of the row, in the order of their worth.
    beside: Item with the same rows elsewhere, with which tokens/s are compared.
  """

  name: str
  about: str
  function: str
  needs: tuple[str, ...]
  limit_s: float
  rows: dict[str, dict[str, Any]]
  beside: str = ""


# Row, unit and scale of the FLOP/s and of the bytes/s of floors.
RATES = (("product in bfloat16", "TFLOP/s", 1e12), ("copy", "GB/s", 1e9))
_TINY = {"preset": "T", "layers": 1, "prompt_len": 16, "completion_len": 20}
_HALF = "grpo model.dtype=bfloat16"
_ADAPTERS = "model.lora_rank=4 model.quantization"
_EXPERTS = "model.num_experts=4 model.experts_per_token=2 model.expert_width=64"
# An algorithm, and settings that are not those of a small quickstart.
_FEATURES = {
  "float32": "grpo",
  "bfloat16": _HALF,
  "plain attention": f"{_HALF} model.attention=plain",
  "parameters in bfloat16": f"{_HALF} model.param_dtype=bfloat16"
  " rl.optimizer.stochastic_rounding=True",
  "cache in int8": f"{_HALF} model.cache_dtype=int8",
  "lanes": "grpo sampling.lanes=5",
  "adapters on int8": f"{_HALF} {_ADAPTERS}=int8",
  "adapters on nf4": f"{_HALF} {_ADAPTERS}=nf4",
  "experts": f"{_HALF} {_EXPERTS}",
  "sliding window": f"{_HALF} model.sliding_window=4",
  "reference": "grpo algorithm.kl_coef=0.1",
  "minibatches, top-p": "grpo rl.num_minibatches=2 sampling.top_p=0.9",
  "dynamic sampling": "grpo rl.max_rounds=2 algorithm.dynamic_sampling=True",
  "critic": "ppo rl.group_size=1 rl.num_prompts=16",
  "draws in int8": f"{_HALF} sampling.weights_dtype=int8"
  " sampling.uncorrected=True",
  "draws in float8": f"{_HALF} sampling.weights_dtype=float8_e4m3fn"
  " sampling.uncorrected=True",
  "muon": "grpo rl.optimizer.name=muon",
  "adafactor": "grpo rl.optimizer.name=adafactor",
}
_CEILINGS: dict[str, dict[str, Any]] = {
  "product in bfloat16": {"dtype": "bfloat16"},
  "copy": {"dtype": None},
  "product in float32": {"dtype": "float32"},
}
_DECODED = {
  "0.5B, 64 rows": {"preset": "0.5B"},
  "7B, 64 rows": {"preset": "7B"},
  "0.5B, 256 rows": {"preset": "0.5B", "prompts": 32},
  "7B, 256 rows": {"preset": "7B", "prompts": 32},
}
_SHORT = {"preset": "0.5B", "prompt_len": 128, "completion_len": 896}
_LARGE = {
  **_SHORT,
  "preset": "7B",
  "prompts": 2,
  "model": {"lora_rank": 16, "param_dtype": "bfloat16"},
}
_LONG = {"completion_len": 3968, "prompts": 1}
_STEP = {
  "0.5B, 64 rows": {"preset": "0.5B", "prompt_len": 256, "completion_len": 256}
}

ITEMS = (
  Item(
    "Features",
    "Two steps of a small quickstart with each setting. The gap is the largest"
    " difference of a log-prob in the sampler and in the update: two"
    " computations of the same number.",
    f"{_JAX}:feature",
    ("jax",),
    90,
    {name: {"settings": settings} for name, settings in _FEATURES.items()},
  ),
  Item(
    "Ceilings",
    "Products of two matrices of 8192 × 8192, in float32 with the precision"
    " that JAX takes by default; copies of 2 GiB, read and written.",
    f"{_JAX}:ceiling",
    ("jax",),
    20,
    {**_CEILINGS, "product in int8": {"dtype": "int8"}},
  ),
  Item(
    "Ceilings of torch",
    "The same by torch.",
    f"{_TORCH}:ceiling",
    ("torch",),
    15,
    _CEILINGS,
  ),
  Item(
    "Decoding",
    "The sampler of training on prompts of 512 tokens and completions of 1024,"
    " with random weights. A token at 10 % is the mean over the first fifth of"
    " a completion, at 90 % over the last. Goals: at most 1.5 × the floor, and"
    " five times the tokens of transformers.",
    f"{_JAX}:decode",
    ("jax",),
    90,
    {
      "0.5B, 64 rows": _DECODED["0.5B, 64 rows"],
      "7B, 64 rows": _DECODED["7B, 64 rows"],
      "7B, 64 rows, int8": {"preset": "7B", "cache_dtype": "int8"},
      **_DECODED,
    },
    beside="Decoding by transformers",
  ),
  Item(
    "Decoding by transformers",
    "`generate` with its defaults, on the same rows.",
    f"{_TORCH}:generate",
    ("torch", "transformers"),
    45,
    _DECODED,
  ),
  Item(
    "Update",
    "A gradient step on rows of 1024 random tokens, 128 of them a prompt. The"
    " floor runs each prompt once per group. Goal: at most 2.2 × the floor,"
    " 45 % of the rate of a product.",
    f"{_JAX}:update",
    ("jax",),
    75,
    {
      "0.5B, 64 rows": _SHORT,
      "7B, adapters, 16 rows": _LARGE,
      "0.5B, plain attention": {**_SHORT, "model": {"attention": "plain"}},
      "0.5B, logits of 64 MiB": {**_SHORT, "logits_chunk_mib": 64},
      "0.5B, logits of 2 GiB": {**_SHORT, "logits_chunk_mib": 2048},
      "0.5B, 8 rows of 4096": {**_SHORT, **_LONG},
      "7B, adapters, 8 rows of 4096": {**_LARGE, **_LONG},
    },
  ),
  Item(
    "The whole step",
    "Sampling, verifier and update of rows of 256 + 256 tokens, one program.",
    f"{_JAX}:step",
    ("jax",),
    40,
    _STEP,
    beside="The step of TRL",
  ),
  Item(
    "The step of TRL",
    "The same work, with the faster one of two sizes of a micro-batch.",
    f"{_TORCH}:step",
    ("torch", "transformers", "trl"),
    45,
    _STEP,
  ),
  Item(
    "Learning",
    "Whole runs, compilation and evaluations included; accuracies are greedy"
    " and held out. `make smollm2` downloads the file of the second.",
    f"{_JAX}:learn",
    ("jax",),
    60,
    {
      "quickstart": {"config": "quickstart"},
      "SmolLM2-135M, sums": {"config": "published", "argument": "smollm2"},
    },
  ),
)


def tiny(item: Item) -> Item:
  """The item with its first row, or two of ceilings, and with tiny sizes."""
  rows = {}
  for name, given in [*item.rows.items()][: 2 if "Ceil" in item.name else 1]:
    rows[name] = {**given, **_TINY} if "preset" in given else given
    if "dtype" in given:
      rows[name] = {**given, "size": 64}
    if "config" in given:
      few = "sft.steps=1 rl.steps=1 rl.num_prompts=2 eval.num_prompts=8"
      rows[name] = {**given, "settings": f"{few} eval.batch_size=8"}
  # Cores of a rehearsal may be shared.
  return item._replace(rows=rows, limit_s=600.0)
