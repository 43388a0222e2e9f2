"""Runs that start from a checkpoint: mistakes, and the way in and out again."""

import contextlib
import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import numpy

from experiments.parity import outputs
from grpo_jax import api
from grpo_jax.configs import checkpoint as checkpoint_config
from grpo_jax.data import tokenizer
from grpo_jax.models import architecture, transformer
from grpo_jax.models.hf import families, peft, weights
from grpo_jax.models.policies import lora
from grpo_jax.settings import config as config_lib
from grpo_jax.training import loop
from grpo_jax.training.phases import checkpointed
from grpo_jax.training.phases import policy as policy_lib
from grpo_jax.training.problem import problem as problem_lib
from grpo_jax.training.runtime import log, sharding
from tests.experiments import command
from tests.models import contract_test

pytestmark = pytest.mark.slow

ROWS = [
  {"prompt": f"Greet {name}: ", "completion": name, "answer": name}
  for name in ("Ada", "Bela", "Carl", "Dora", "Emil", "Fay", "Gus", "Hana")
]
REWARDS = '''
def vowels(prompts, completions, ids, extras):
  """Never all the same, so that there is something to learn."""
  return [sum(text.count(x) for x in "aeiou") / 16 for text in completions]
'''


def make(root: pathlib.Path, family: str, scale: float = 1.0) -> pathlib.Path:
  """A small random checkpoint with a tokenizer, and prompts and rewards."""
  config = json.loads(contract_test.CONFIGS[family].read_text("utf-8"))
  text = config.get("text_config", config)
  text |= {"vocab_size": 320, "bos_token_id": None, "eos_token_id": 1}
  if "num_nextn_predict_layers" in config:
    config["num_nextn_predict_layers"] = 0  # The source has no tensors.
  source, out = root / "source", root / "model"
  source.mkdir()
  files = {
    "config.json": json.dumps(config),
    "tokenizer.json": tokenizer.train(ROWS, 300),
    "tokenizer_config.json": json.dumps({"eos_token": "<eos>"}),
    "chat_template.jinja": "{% for m in messages %}[{{ m.role }}]"
    " {{ m.content }}\n{% endfor %}[assistant] ",
  }
  for name, content in files.items():
    (source / name).write_text(content, encoding="utf-8")
  # An export looks for parts that are not the language model's.
  numpy.save_file({}, source / "model.safetensors")
  fields, _ = families.from_config_json(source)
  ours = architecture.TransformerConfig(**fields)
  init = jax.jit(transformer.transformer_policy(ours).init)
  params = jax.tree.map(lambda x: scale * x, init(jax.random.key(0)))
  weights.export(params, ours, source, out)
  (root / "my_rewards.py").write_text(REWARDS)
  rows = "\n".join(json.dumps(row) for row in ROWS)
  (root / "prompts.jsonl").write_text(rows, encoding="utf-8")
  return out


def small(root: pathlib.Path, model: pathlib.Path | str, **fields):
  """The shipped config with small sizes; `fields` are of the model."""
  config = checkpoint_config.get_config()
  config.model.checkpoint = str(model)
  config.model.update(fields)
  config.data.train_path = str(root / "prompts.jsonl")
  config.data.max_prompt_len = 16
  config.sampling.max_new_tokens = 4
  config.rl.num_prompts = 2
  config.rl.group_size = 2
  config.eval.num_prompts = 2
  config.eval.batch_size = 2
  return config


def test_mistakes_are_named_and_nothing_is_written(tmp_path):
  model = make(tmp_path, "qwen2")

  def refused(error, message, **fields):
    with pytest.raises(error, match=message):
      loop.train(small(tmp_path, model, **fields), tmp_path / "run")
    assert not (tmp_path / "run").exists()

  refused(
    ValueError,
    r"config\.model\.width=64 with .*only dtype, param_dtype, attention,"
    r" decode_attention, experts, remat, split_positions, prefill_chunk,"
    r" cache_dtype, long_context may be set"
    r" beside it\. Start from configs/checkpoint\.py",
    width=64,
  )
  refused(FileNotFoundError, "no folder '/none'", checkpoint="/none")
  (model / "model.safetensors").rename(model / "pytorch_model.bin")
  refused(FileNotFoundError, r"neither model\.safetensors nor")
  (model / "tokenizer.json").rename(model / "tokenizer.model")
  refused(
    FileNotFoundError, r"no file .*tokenizer\.json.*AutoTokenizer\.from_pretr"
  )
  large = tokenizer.GSM8K_BPE.read_text(encoding="utf-8")
  (tmp_path / "large.json").write_text(large, encoding="utf-8")
  config = small(tmp_path, model)
  config.data.tokenizer = str(tmp_path / "large.json")
  with pytest.raises(ValueError, match=r"320 token ids and the tokenizer 2048"):
    loop.train(config, tmp_path / "run")
  assert not (tmp_path / "run").exists()


def test_weights_that_are_not_finite_are_suspected(tmp_path):
  model = make(tmp_path, "qwen2", scale=float("nan"))
  config = small(tmp_path, model)
  with pytest.raises(FloatingPointError, match=f"doubt the weights in {model}"):
    loop.train(config, tmp_path / "run")


@pytest.mark.parametrize("family", ["deepseek_v32", "deepseek_v4"])
def test_sparse_attention_is_trained_in_a_run(tmp_path, family):
  """In lanes, with prompts in chunks, kept choices and trained indexers."""
  model = make(tmp_path, family)
  dtypes = {"dtype": "float32", "param_dtype": "float32"}
  config = small(tmp_path, model, prefill_chunk=6, **dtypes)
  config.eval.every = 0
  has_loss = family == "deepseek_v32"
  config.algorithm.indexer_coef = 0.1 * has_loss
  config.algorithm.keep_routing = True
  config.sampling.lanes = 2
  config.rewards.functions = ("my_rewards:vowels",)
  config.rl.steps = 3
  with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(tmp_path)
    loop.train(config, tmp_path / "run")
  lines = log.read_lines(tmp_path / "run/metrics.jsonl")
  steps = [line for line in lines if "sampler_gap/max" in line]
  assert len(steps) == 3
  for line in steps:
    assert line["sampler_gap/max"] < 1e-3
    assert ("loss/indexer" in line) == has_loss
    if has_loss:
      assert line["loss/indexer"] > 0
      assert line["indexer/changed"] < 0.1


def test_a_run_starts_with_the_adapters_of_a_folder(tmp_path):
  source = make(tmp_path, "qwen3")
  _, base = weights.load(source)
  saved = lora.LoRAConfig(rank=2, alpha=3.0, modules=("query", "down"))
  params = lora.wrap(base, saved, jax.random.key(1))
  rng = np.random.default_rng(0)
  params["trained"] = jax.tree.map(
    lambda x: rng.normal(size=x.shape).astype(np.float32), params["trained"]
  )
  peft.save(tmp_path / "adapters", params, saved, str(source))

  def resolved(**fields):
    fields = {"adapter_checkpoint": str(tmp_path / "adapters"), **fields}
    config = small(tmp_path, source, **fields)
    config.data.source = "task"  # Whose verifier needs no process.
    config.data.train_path = ""
    config.data.name = "sort"
    config.rewards.functions = ("accuracy",)
    return config_lib.resolve(config)

  run = resolved(param_dtype="float32")
  with contextlib.closing(problem_lib.make_problem(run)) as problem:
    mesh = sharding.make_mesh(1)
    policy = policy_lib.make_policy(run, problem, mesh)
    state = checkpointed.first_state(run, problem, policy, mesh)
  jax.tree.map(
    np.testing.assert_array_equal, state.models["policy"].params, params
  )

  def adapters(**fields):
    return resolved(**fields).model.adapters()

  assert adapters() == saved
  assert adapters(lora_rank=2, lora_modules=("query", "down")) == saved
  packed = dataclasses.replace(saved, quantization="int8")
  assert adapters(quantization="int8") == packed
  for fields, message in (
    ({"lora_rank": 4}, r"lora_rank=4, and the adapters in .* have 2; leave"),
    ({"lora_alpha": 8.0}, r"lora_alpha=8\.0, and the adapters in .* have 3\.0"),
    ({"lora_modules": ("up",)}, r"lora_modules=\('up',\), and"),
    ({"checkpoint": ""}, r"belong to a checkpoint; set config\.model\.checkp"),
  ):
    with pytest.raises(ValueError, match=message):
      adapters(**fields)
  with pytest.raises(
    FileNotFoundError, match=r"none/adapter_model.* is missing"
  ):
    adapters(adapter_checkpoint="none")


def test_adapters_are_exported_merged_or_alone_and_started_from(tmp_path):
  """In bfloat16, the text of a model with images, as published."""
  source = make(tmp_path, "mistral3-with_images")
  config = small(tmp_path, source, lora_rank=2)
  config.rl.steps = 8
  config.rl.optimizer.learning_rate = 2e-2
  config.rewards.functions = ("my_rewards:vowels",)
  with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(tmp_path)
    loop.train(config, tmp_path / "run")
    with api.load(tmp_path / "run") as loaded:
      policy, params = loaded.loaded.policy, loaded.params
  for arguments in (["--out=merged"], ["--out=alone", "--adapters"]):
    status, _, err = command.run(
      "export", "--workdir=run", *arguments, cwd=tmp_path
    )
    assert status == 0, err
  for name, library in (("merged", "transformers"), ("alone", "peft")):
    card = (tmp_path / name / "README.md").read_text(encoding="utf-8")
    assert f"library_name: {library}\n" in card
    assert "| Steps | 8 (planned: rl 8) |" in card
  names = numpy.load_file(tmp_path / "alone" / "adapter_model.safetensors")
  start = "base_model.model.model.language_model.layers.0.self_attn.q_proj"
  assert f"{start}.lora_A.weight" in names
  ours, merged = weights.load(tmp_path / "merged")
  _, base = weights.load(source, param_dtype="bfloat16")
  ids, mask = np.array([[5, 9, 40, 7, 12]]), np.ones((1, 5), bool)
  h, _ = policy.hidden(
    params, ids[:, :1], mask[:, :1], ids[:, 1:], mask[:, 1:], np.zeros(1, int)
  )
  known = np.isfinite(policy.head(params, h)[0, 0])  # Ids with a token.
  assert known.sum() == len(tokenizer.Tokenizer(source).pieces()) < 320
  unmerged = policy.head(params, h)[..., known]
  for model, is_same in (merged, True), (base, False):
    theirs = outputs.logits(ours, model, ids, mask)[:, :4, known]
    gap = abs(theirs - unmerged).max()
    assert gap < 0.1 if is_same else gap > 0.3
  np.testing.assert_array_equal(
    merged["trained"]["embed"]["embedding"],
    base["trained"]["embed"]["embedding"],
  )
  # A further run goes on from there: fresh adapters would begin at B = 0.
  config.model.lora_rank = 0
  config.model.adapter_checkpoint = str(tmp_path / "alone")
  config.rl.steps = 2
  with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(tmp_path)
    loop.train(config, tmp_path / "further")
    with api.load(tmp_path / "further") as loaded:
      further = loaded.params
  jax.tree.map(
    np.testing.assert_array_equal, further["frozen"], params["frozen"]
  )
  for name, adapter in further["trained"].items():
    change = abs(adapter["b"] - params["trained"][name]["b"]).max()
    assert 0 < change < 0.2 * abs(params["trained"][name]["b"]).max(), name


# Mixtures are trained in float32, and Gemma as published, in bfloat16.
@pytest.mark.parametrize(
  ("family", "dtype", "options"),
  [
    (
      "qwen3_moe",
      "float32",
      ["algorithm.keep_routing=true", "algorithm.balance_coef=0.01"],
    ),
    # The checkpoint has no tokenizer, as Kimi K2's.
    (
      "gemma3_text",
      "bfloat16",
      [
        *("data.template=chat", "data.tokenizer=other"),
        "data.end_tokens=('<eos>','</answer>')",
      ],
    ),
    # States begin anew in lanes, and go on between chunks of a prompt.
    ("qwen3_next", "float32", ["sampling.lanes=6", "model.prefill_chunk=16"]),
  ],
)
def test_a_run_ends_as_the_checkpoint_of_what_it_trained(
  tmp_path, family, dtype, options
):
  source = make(tmp_path, family)
  files = {path.name for path in source.iterdir()} | {"README.md"}
  if "data.template=chat" in options:
    (tmp_path / "other").mkdir()
    for path in (*source.glob("tokenizer*"), source / "chat_template.jinja"):
      path.rename(tmp_path / "other" / path.name)
    files |= {"generation_config.json"}
  settings = [
    "model.checkpoint=model",
    "data.train_path=prompts.jsonl",
    "data.max_prompt_len=40",
    "sampling.max_new_tokens=8",
    "rewards.functions=('my_rewards:vowels',)",
    f"model.dtype={dtype}",
    f"model.param_dtype={dtype}",
    "rl.optimizer.learning_rate=1e-3",
    "rl.steps=20",
    "rl.num_prompts=4",
    "rl.group_size=4",
    "eval.num_prompts=8",
    "eval.batch_size=8",
    *options,
  ]
  config = command.ROOT / "configs/checkpoint.py"
  for program, arguments in (
    ("train", [f"--config={config}", *(f"--config.{x}" for x in settings)]),
    ("export", ["--out=exported"]),
    ("export", ["--out=wide", "--dtype=float32"]),
  ):
    status, _, err = command.run(
      program, "--workdir=run", *arguments, cwd=tmp_path
    )
    assert status == 0, err
  lines = log.read_lines(tmp_path / "run/metrics.jsonl")
  steps = [line for line in lines if "reward/mean" in line]
  assert len(steps) == 20
  assert max(line["gradient_norm"] for line in steps) > 0
  if family == "qwen3_moe":
    assert min(line["loss/balance"] for line in steps) > 0

  exported = tmp_path / "exported"
  ours, params = weights.load(exported, param_dtype=dtype)
  ours = dataclasses.replace(ours, dtype=dtype)
  text = "Greet Ada: "
  its_tokenizer = tokenizer.Tokenizer(exported)
  ids = np.array([its_tokenizer.encode(text)])
  mask = np.ones_like(ids, bool)
  with pytest.MonkeyPatch.context() as patch:
    # Where the run's paths and its rewards are.
    patch.chdir(tmp_path)
    patch.syspath_prepend(tmp_path)
    with api.load("run") as loaded:
      trained = loaded.params
      of_run = loaded.loaded.problem.tokenizer
      assert of_run.encode(text) == ids[0].tolist()
      assert of_run.end_ids == its_tokenizer.end_ids
  np.testing.assert_array_equal(
    outputs.logits(ours, params, ids, mask),
    outputs.logits(ours, trained, ids, mask),
  )
  np.testing.assert_array_equal(
    outputs.greedy(ours, params, ids, mask, 8),
    outputs.greedy(ours, trained, ids, mask, 8),
  )
  # It learned something, and bfloat16 is exact in float32.
  _, before = weights.load(source)
  _, wide = weights.load(tmp_path / "wide")
  same = jax.tree.map(lambda a, b: bool((a == b).all()), wide, before)
  unchanged = [
    jax.tree_util.keystr(path)
    for path, is_same in jax.tree_util.tree_leaves_with_path(same)
    if is_same
  ]
  assert unchanged == []
  jax.tree.map(
    lambda a, b: np.testing.assert_array_equal(a, b.astype(jnp.float32)),
    wide,
    params,
  )
  assert {path.name for path in exported.iterdir()} == files
  stated = json.loads((exported / "config.json").read_text())["torch_dtype"]
  assert stated == dtype
