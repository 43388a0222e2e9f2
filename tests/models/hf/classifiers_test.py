"""Reward models of Hugging Face: scalar heads, against transformers.

A head that is a row of the language head scores what `transformers` says of
that token's logit (tests/data/checkpoints).
"""

import json
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.models import architecture, transformer
from grpo_jax.models.hf import classifiers, safetensors, weights
from grpo_jax.models.policies import critic

CHECKPOINTS = pathlib.Path(__file__).resolve().parents[2] / "data/checkpoints"
TOKEN = 5


def tensors_of(folder):
  return {
    name: np.array(tensor.map(), np.float32)
    for name, tensor in safetensors.find(folder).items()
  }


def make(folder, family, kind="SequenceClassification", head=None, **changes):
  """A checkpoint of a family with a head for scores in the place of tokens."""
  source = CHECKPOINTS / family
  folder.mkdir(parents=True, exist_ok=True)
  config = json.loads((source / "config.json").read_text())
  config["architectures"] = [
    config["architectures"][0].replace("CausalLM", kind)
  ]
  config |= {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
  config |= {"problem_type": "regression", "classifier_dropout": None}
  (folder / "config.json").write_text(json.dumps(config | changes))
  tensors = tensors_of(source)
  table = tensors.pop("lm_head.weight", tensors["model.embed_tokens.weight"])
  if head is None:
    head = {"score.weight": table[TOKEN : TOKEN + 1]}
  outputs = [
    safetensors.Output(
      name, "F32", x.shape, x.nbytes, lambda x=x: x.reshape(-1).view(np.uint8)
    )
    for name, x in (tensors | head).items()
  ]
  safetensors.write(folder, outputs, 10**9)
  if (source / "tokenizer.json").exists():
    shutil.copy(source / "tokenizer.json", folder)
  return folder


def values(folder, ids, mask):
  """Outputs of a checkpoint after each token but the first ones."""
  found = classifiers.described(folder)
  config = architecture.TransformerConfig(**found.fields)
  _, params = weights.load(
    folder, config, param_dtype="float32", family=found.family
  )
  head = jax.tree.map(jnp.asarray, classifiers.head(folder, found))
  made = critic.reward_params(params["trained"], params["frozen"], head)
  model = critic.make_reward_model(
    transformer.transformer_policy(config), is_alone=True
  )
  h, _ = model.trunk.hidden(
    model.trunk_params(made, None),
    *(ids[:, :12], mask[:, :12], ids[:, 12:], mask[:, 12:]),
    jnp.arange(len(ids)),
  )
  return np.asarray(model.head(made, h))


@pytest.mark.slow
@pytest.mark.parametrize(
  "family", ["qwen2", pytest.param("llama", marks=pytest.mark.slow)]
)
def test_the_score_is_that_of_transformers(tmp_path, family):
  recorded = np.load(CHECKPOINTS / family / "reference.npz")
  ids, mask = recorded["input_ids"], recorded["attention_mask"]
  folder = make(tmp_path / family, family)
  assert not classifiers.described(folder).scores_steps
  # Prompts of this reference are padded on the left, and end together.
  found = values(folder, ids, mask)
  expected = recorded["logits"][:, 12:, TOKEN]
  np.testing.assert_allclose(found[:, -1], expected[:, -1], atol=2e-4)
  np.testing.assert_allclose(found[0], expected[0], atol=2e-4)


def test_of_two_labels_the_difference_counts(tmp_path):
  weight = np.random.default_rng(0).normal(size=(2, 32)).astype(np.float32)
  head = {"score.weight": weight, "score.bias": np.float32([0.5, 2.0])}
  folder = make(tmp_path / "a", "qwen2", "TokenClassification", head)
  found = classifiers.described(folder)
  assert found.scores_steps
  read = classifiers.head(folder, found)
  np.testing.assert_array_equal(read["kernel"], weight[1] - weight[0])
  assert read["bias"] == 1.5


def test_other_checkpoints_are_refused(tmp_path):
  with pytest.raises(ValueError, match=r"\['Qwen2ForCausalLM'\]; a reward mod"):
    classifiers.described(CHECKPOINTS / "qwen2")
  weight = np.zeros((2, 32), np.float32)
  folder = make(tmp_path / "a", "qwen2", head={"score.weight": weight})
  with pytest.raises(ValueError, match=r"is \[2, 32\]; needs \[1, 32\]"):
    classifiers.head(folder, classifiers.described(folder))
  folder = make(tmp_path / "b", "qwen2", head={})
  with pytest.raises(ValueError, match="has no tensor score"):
    classifiers.head(folder, classifiers.described(folder))
  folder = make(tmp_path / "c", "qwen2", rope_scaling={"type": "odd"})
  with pytest.raises(ValueError, match="odd"):
    classifiers.described(folder)
