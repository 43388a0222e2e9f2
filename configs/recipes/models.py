"""The models and data that every recipe can be run with, and its small twin.

A recipe is `configs/recipes/NAME.py:MODEL`, with a name of `MODELS` or "toy":

    python -m experiments.train --config=configs/recipes/dapo.py:qwen2.5-0.5b \
        --workdir=runs/dapo
    python -m experiments.pods.memory \
        --config=configs/recipes/dapo.py:qwen2.5-0.5b

The second command estimates the memory of the first. Questions are GSM8K's,
from TFDS_DATA_DIR; those of MATH or any others, with a field `prompt` and a
field `answer`, are two flags away:

    --config.data.source=jsonl --config.data.train_path=math.jsonl

Memory: parameters, gradients and optimizer state, on every device unless
`config.mesh` splits them; with a KL term there is one more copy of the
parameters. In GiB (1 GiB = 2³⁰ bytes), for a batch that is not split into
micro-batches; a split one has its gradients twice:

| model         | parameters | AdamW, float32 | Adafactor, bfloat16 |
|---------------|------------|----------------|---------------------|
| qwen2.5-0.5b  |      0.49 B|            7.4 |                 1.8 |
| qwen2.5-1.5b  |      1.54 B|           23.0 |                 5.8 |
| qwen2.5-7b    |      7.62 B|          113.5 |                28.4 |
| qwen3-0.6b    |      0.60 B|            8.9 |                 2.2 |
| qwen3-8b      |      8.19 B|          122.1 |                30.5 |
| qwen3-30b-a3b |     30.53 B|          455.0 |               113.9 |

So a full fine-tune of 7 or 8 B with AdamW does not fit on a device of 80 GB
unless it is split, as by --config.mesh.fsdp=8. What fits on one is

    --config.model.param_dtype=bfloat16 --config.rl.optimizer.name=adafactor \
    --config.rl.optimizer.stochastic_rounding=True

or adapters on a quantised base (parameters of 7 B in 5.6 GiB, 8 B in 6.1 and
30 B in 16.9),

    --config.model.lora_rank=16 --config.model.quantization=nf4 \
    --config.model.param_dtype=bfloat16

with a higher learning rate. The cache of the rollout comes on top: it holds
every completion of a batch at its full length, and at the published batches and
lengths it is larger than the rest. At such lengths the scores of attention in
its plain form, which grow with their square, lead what the backward pass keeps;
smaller --config.rl.micro_batch_size, down to one row per device, helps. A
recipe learns 8 rows at a time: on one device 8, on two 4 each, on four 2, and
on eight or more one row on each device. `experiments.pods.memory` prints all
of this.

No recipe has been run here on these models, only with the toys: each takes two
to ten minutes on 2 CPU cores, and its held-out accuracy rises, but for that of
deepseekmath.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import json
import pathlib
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import ml_collections

from grpo_jax.settings import config as config_lib

# The sentence that the model cards of Qwen recommend for mathematics.
_MATHEMATICS = (
  "Please reason step by step, and put your final answer within \\boxed{}."
)
_PROGRAM = (
  "Please reason step by step, and end with a program in Python between"
  " ```python and ```."
)
_QUESTION = "{prompt}\n" + _MATHEMATICS
# Qwen3 without a system message; its own template takes no instruction.
_CHAT = f"<|im_start|>user\n{_QUESTION}<|im_end|>\n<|im_start|>assistant\n"

# What the config.json files have in common, without what only notes lengths
# and tools.
_QWEN: dict[str, Any] = {
  "hidden_act": "silu",
  "rms_norm_eps": 1e-6,
  "rope_theta": 1e6,
  "use_sliding_window": False,
  "vocab_size": 151936,
}
_QWEN2 = {
  **_QWEN,
  "architectures": ["Qwen2ForCausalLM"],
  "model_type": "qwen2",
}
_QWEN3 = {
  **_QWEN,
  "architectures": ["Qwen3ForCausalLM"],
  "model_type": "qwen3",
  "attention_bias": False,
  "head_dim": 128,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
  """Published checkpoint.

  Attributes:
    checkpoint: Its name on the Hugging Face hub; a folder with a copy may be
      given as --config.model.checkpoint instead.
    template: Template of a question.
    config_json: Keys of its config.json that determine its computation.
  """

  checkpoint: str
  template: str
  config_json: dict[str, Any]


MODELS = {
  "qwen2.5-0.5b": Model(
    checkpoint="Qwen/Qwen2.5-0.5B",
    template=_QUESTION + "\n",
    config_json={
      **_QWEN2,
      "hidden_size": 896,
      "intermediate_size": 4864,
      "num_attention_heads": 14,
      "num_hidden_layers": 24,
      "num_key_value_heads": 2,
      "tie_word_embeddings": True,
    },
  ),
  "qwen2.5-1.5b": Model(
    checkpoint="Qwen/Qwen2.5-1.5B",
    template=_QUESTION + "\n",
    config_json={
      **_QWEN2,
      "hidden_size": 1536,
      "intermediate_size": 8960,
      "num_attention_heads": 12,
      "num_hidden_layers": 28,
      "num_key_value_heads": 2,
      "tie_word_embeddings": True,
    },
  ),
  "qwen2.5-7b": Model(
    checkpoint="Qwen/Qwen2.5-7B",
    template=_QUESTION + "\n",
    config_json={
      **_QWEN2,
      "hidden_size": 3584,
      "intermediate_size": 18944,
      "num_attention_heads": 28,
      "num_hidden_layers": 28,
      "num_key_value_heads": 4,
      "tie_word_embeddings": False,
      "vocab_size": 152064,
    },
  ),
  "qwen3-0.6b": Model(
    checkpoint="Qwen/Qwen3-0.6B",
    template=_CHAT,
    config_json={
      **_QWEN3,
      "hidden_size": 1024,
      "intermediate_size": 3072,
      "num_attention_heads": 16,
      "num_hidden_layers": 28,
      "num_key_value_heads": 8,
      "tie_word_embeddings": True,
    },
  ),
  "qwen3-8b": Model(
    checkpoint="Qwen/Qwen3-8B",
    template=_CHAT,
    config_json={
      **_QWEN3,
      "hidden_size": 4096,
      "intermediate_size": 12288,
      "num_attention_heads": 32,
      "num_hidden_layers": 36,
      "num_key_value_heads": 8,
      "tie_word_embeddings": False,
    },
  ),
  "qwen3-30b-a3b": Model(
    checkpoint="Qwen/Qwen3-30B-A3B",
    template=_CHAT,
    config_json={
      **_QWEN3,
      "architectures": ["Qwen3MoeForCausalLM"],
      "model_type": "qwen3_moe",
      "decoder_sparse_step": 1,
      "hidden_size": 2048,
      "intermediate_size": 6144,
      "mlp_only_layers": [],
      "moe_intermediate_size": 768,
      "norm_topk_prob": True,
      "num_attention_heads": 32,
      "num_experts": 128,
      "num_experts_per_tok": 8,
      "num_hidden_layers": 48,
      "num_key_value_heads": 4,
      "tie_word_embeddings": False,
    },
  ),
}

# Towers of Qwen2.5-VL; features are as wide as the language model.
_VISION: dict[str, Any] = {
  "depth": 32,
  "fullatt_block_indexes": [7, 15, 23, 31],
  "hidden_act": "silu",
  "hidden_size": 1280,
  "intermediate_size": 3420,
  "num_heads": 16,
  "patch_size": 14,
  "spatial_merge_size": 2,
  "temporal_patch_size": 2,
  "window_size": 112,
}
_QWEN2_5_VL = {
  **_QWEN,
  "architectures": ["Qwen2_5_VLForConditionalGeneration"],
  "image_token_id": 151655,
  "model_type": "qwen2_5_vl",
  "rope_scaling": {"mrope_section": [16, 24, 24], "type": "mrope"},
}
# For prompts with images.
VISION = {
  "qwen2.5-vl-3b": Model(
    checkpoint="Qwen/Qwen2.5-VL-3B-Instruct",
    template="chat",
    config_json={
      **_QWEN2_5_VL,
      "hidden_size": 2048,
      "intermediate_size": 11008,
      "num_attention_heads": 16,
      "num_hidden_layers": 36,
      "num_key_value_heads": 2,
      "tie_word_embeddings": True,
      "vision_config": {**_VISION, "out_hidden_size": 2048},
    },
  ),
  "qwen2.5-vl-7b": Model(
    checkpoint="Qwen/Qwen2.5-VL-7B-Instruct",
    template="chat",
    config_json={
      **_QWEN2_5_VL,
      "hidden_size": 3584,
      "intermediate_size": 18944,
      "num_attention_heads": 28,
      "num_hidden_layers": 28,
      "num_key_value_heads": 4,
      "tie_word_embeddings": False,
      "vision_config": {**_VISION, "out_hidden_size": 3584},
      "vocab_size": 152064,
    },
  ),
}

# Completions of a toy's batch that are trained; the recipe's, divided.
_TOY_ROWS = 256


def base(
  algorithm: str, model: str, known: Mapping[str, Model] = MODELS
) -> ml_collections.ConfigDict:
  """Starting config of a recipe: an algorithm on questions, with a model.

  Args:
    algorithm: Name in the table of algorithms.
    model: A name of `known`, or "toy".
    known: `MODELS`, or `VISION`.

  Raises:
    KeyError: The model does not exist; the message lists the models.
  """
  if model != "toy" and model not in known:
    near = difflib.get_close_matches(model, ["toy", *known], n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise KeyError(
      f"recipe: no model is called {model!r}.{hint} Known: toy,"
      f" {', '.join(known)}. For another checkpoint take one of them and set"
      " --config.model.checkpoint."
    )
  config = config_lib.default_config(algorithm)
  # Our choices, where a recipe does not replace them.
  config.phases = ("rl",)
  config.data.source = "tfds"
  config.data.name = "gsm8k"
  config.data.max_prompt_len = 512
  config.rewards.functions = ("math_accuracy",)
  config.rl.steps = 100
  config.eval.batch_size = 64
  config.eval.every = 25
  config.checkpoint.every = 25
  if model != "toy":
    # Eight devices or more have one row each at a time; see above.
    config.rl.micro_batch_size = 8
    config.data.template = known[model].template
    config.model.checkpoint = known[model].checkpoint
    config.model.dtype = "bfloat16"
    # An update of 1e-6 is below the rounding of a bfloat16 parameter.
    config.model.param_dtype = "float32"
    config.model.remat = "full"
  return config


def on_programs(config: ml_collections.ConfigDict) -> None:
  """Makes a recipe one about programs that hidden tests judge.

  Problems are those of `experiments.rewards.code_task`, or of another file with
  `tests` in its extras (docs/sandbox.md).
  """
  config.data.source = "jsonl"
  config.data.train_path = "runs/code_task/train.jsonl"
  config.data.eval_path = "runs/code_task/test.jsonl"
  config.data.template = config.data.template.replace(_MATHEMATICS, _PROGRAM)
  config.rewards.functions = ("code",)


@contextlib.contextmanager
def described(config: config_lib.RunConfig) -> Iterator[config_lib.RunConfig]:
  """The config with descriptions in the place of known checkpoints.

  These are the checkpoints of the policy, and of the references of all phases.
  """
  with contextlib.ExitStack() as stack:

    def folder(checkpoint: str) -> str:
      return stack.enter_context(architecture(checkpoint))

    def of(phase: config_lib.PhaseConfig) -> config_lib.PhaseConfig:
      found = tuple(map(folder, phase.reference_workdirs))
      if not found:
        return phase
      return dataclasses.replace(phase, reference_workdirs=found)

    model = config.model
    if model.checkpoint:
      model = dataclasses.replace(model, checkpoint=folder(model.checkpoint))
    sections = {name: of(phase) for name, phase in config.sections.items()}
    yield dataclasses.replace(config, model=model, sections=sections)


@contextlib.contextmanager
def architecture(checkpoint: str) -> Iterator[str]:
  """Makes a folder with the config.json of a checkpoint, if it is a known one.

  So shapes are known without a download. Any other name, and a folder, stays as
  it is. An -Instruct model has the shapes of its base.
  """
  models = (*MODELS.values(), *VISION.values())
  known = {model.checkpoint: model for model in models}
  model = known.get(checkpoint, known.get(checkpoint.removesuffix("-Instruct")))
  if pathlib.Path(checkpoint).is_dir() or model is None:
    yield checkpoint
    return
  with tempfile.TemporaryDirectory() as folder:
    text = json.dumps(model.config_json)
    (pathlib.Path(folder) / "config.json").write_text(text, encoding="utf-8")
    yield folder


def has_experts(model: str) -> bool:
  """True for a mixture of experts; the toy model is not one."""
  return model in MODELS and "num_experts" in MODELS[model].config_json


def on_images(
  config: ml_collections.ConfigDict, path: str, max_pixels: int
) -> None:
  """Sets questions about one image each, of a JSONL file with a field `image`.

  Args:
    config: Config, which is changed.
    path: Folder with train.jsonl and test.jsonl.
    max_pixels: Number of pixels to which larger images are reduced; a patch has
      14 · 14.
  """
  config.data.source = "jsonl"
  config.data.name = ""
  config.data.train_path = f"{path}/train.jsonl"
  config.data.eval_path = f"{path}/test.jsonl"
  config.data.images = ("image",)
  config.data.image_options = ml_collections.ConfigDict(
    {"max_pixels": max_pixels}
  )
  config.data.max_images = 1
  config.data.max_patches = max_pixels // 14**2
  config.data.max_prompt_len = 1024


def finish_seen(
  config: ml_collections.ConfigDict, model: str, questions: str
) -> ml_collections.ConfigDict:
  """Finishes recipes on images as `finish` does; the toy twin sees squares.

  Args:
    config: The recipe.
    model: A name of `VISION`, or "toy".
    questions: Questions for the twin: "count" or "box" (`tasks/vision.py`).
  """
  if model != "toy":
    return config
  from grpo_jax.configs import vision

  twin = vision.get_config(config.algorithm.name)
  config = finish(config, model)
  config.data = twin.data
  config.data.task_options.questions = questions
  config.model = twin.model
  config.rewards.functions = twin.rewards.functions
  config.rewards.weights = (1.0,) + (0.0,) * (len(twin.rewards.functions) - 1)
  config.rewards.correct = twin.rewards.correct
  config.sft.steps = twin.sft.steps
  config.sft.num_prompts = twin.sft.num_prompts
  config.sft.optimizer.learning_rate = twin.sft.optimizer.learning_rate
  config.rl.optimizer.learning_rate = twin.rl.optimizer.learning_rate
  return config


def finish(
  config: ml_collections.ConfigDict, model: str
) -> ml_collections.ConfigDict:
  """Returns the recipe as it is, or for the model "toy" its small twin.

  The twin adds two-digit numbers column by column, after a warm start with a
  teacher that forgets carries. It has the recipe's algorithm, group size,
  rounds and gradient steps per batch, with fewer prompts, a learning rate for a
  model from scratch, and the verifier's accuracy as the only reward. The
  learning rates of its critic and policy have the ratio of the recipe's. It
  takes minutes on a CPU.
  """
  if model != "toy":
    return config
  config.unpublished = ()
  # A phase that is repeated is so once.
  phases = config.phases
  kept = [x for i, x in enumerate(phases) if phases[:i].count(x) < 2]
  config.phases = ("sft", *kept)
  config.data = config_lib.default_config().data
  config.data.task_options = ml_collections.ConfigDict(
    {"level": 2, "scratchpad": True, "teacher_error": 0.3}
  )
  config.sampling.max_new_tokens = None
  config.rewards.functions = ("accuracy",)
  config.rewards.weights = config.rewards.weights[:1]
  config.rewards.correct = ""
  config.sft.steps = 400
  config.sft.num_prompts = 64
  config.sft.optimizer.learning_rate = 2e-3
  config.sft.optimizer.schedule = "cosine"
  config.sft.optimizer.warmup_steps = 20
  rows = config.rl.num_prompts * config.rl.group_size
  config.rl.num_prompts //= max(1, rows // _TOY_ROWS)
  config.rl.steps = min(config.rl.steps, 100)
  config.rl.staleness = (
    0  # Verifiers are in its program; nothing would overlap.
  )
  if "value" in config.phases:
    published = config.rl.optimizer.learning_rate
    config.critic.optimizer.learning_rate *= 1e-4 / published
  config.rl.optimizer.learning_rate = 1e-4
  config.eval.num_prompts = 256
  config.eval.batch_size = 256
  config.eval.temperature = 1.0  # Greedily the teacher's slips do not show.
  return config
