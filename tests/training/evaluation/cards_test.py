"""Model cards: what they say, and that the hub would read them."""

import json
import re

import huggingface_hub
import pytest

from grpo_jax import algorithms
from grpo_jax.configs.recipes import models
from grpo_jax.training.evaluation import cards, merging
from grpo_jax.training.runtime import log
from tests.experiments import tiny_config

BASE_CARD = "---\nlicense: other\nlicense_name: qwen-research\n---\n# Base\n"


@pytest.fixture
def run(tmp_path):
  """Folder of a run, without its weights."""
  config = models.base("gspo", "qwen2.5-0.5b")
  config.seed = 3
  folder = tmp_path / "secret_user" / "run"
  folder.mkdir(parents=True)
  files = {
    log.CONFIG: json.loads(config.to_json()),
    log.RESULT: {
      "step": 100,
      "before": {"eval/accuracy": 0.25, "eval/length": 9.0},
      "after": {"eval/accuracy": 0.5, "eval/length": 8.0},
      "num_prompts": 64,
    },
    log.ENVIRONMENT: [
      {
        "packages": {"grpo_jax": "0.1.0"},
        "git": {"commit": "abc123", "dirty": True},
        "argv": ["--password=x"],
      }
    ],
  }
  for name, value in files.items():
    (folder / name).write_text(json.dumps(value))
  return folder


def test_a_card_says_where_a_policy_comes_from(run, tmp_path):
  (tmp_path / "README.md").write_text(BASE_CARD)
  text = cards.card(run, step=100, base=tmp_path)
  data = huggingface_hub.ModelCard(text).data
  assert data.base_model == "Qwen/Qwen2.5-0.5B"
  assert (data.license, data.license_name) == ("other", "qwen-research")
  assert (data.library_name, data.pipeline_tag) == (
    "transformers",
    "text-generation",
  )
  assert {"grpo_jax", "gspo", "arxiv:2507.18071"} <= {*data.tags}
  assert data.datasets == ["openai/gsm8k"]
  (figure,) = data.eval_results
  assert (figure.metric_type, figure.metric_value) == ("accuracy", 0.5)
  assert (figure.dataset_type, figure.dataset_name) == ("openai/gsm8k", "gsm8k")
  config = json.loads((run / log.CONFIG).read_text())
  for said in (
    "| Steps | 100 (planned: rl 100) |",
    "| Seed | 3 |",
    "GSPO: ratios and clipping on whole sequences",
    "https://arxiv.org/abs/2507.18071",
    log.config_hash(config),
    "| `eval/accuracy` | 0.25 | 0.5 |",
    "grpo_jax 0.1.0, commit `abc123` with changes",
    "AutoModelForCausalLM.from_pretrained",
    "put your final answer within",
  ):
    assert said in text, said
  assert "secret_user" not in text
  assert "password" not in text


class Tokenizer:
  """Notes what it is asked for."""

  def __call__(self, text, **options):
    return text

  def apply_chat_template(self, messages, **options):
    return messages, options


@pytest.mark.parametrize("template", ["{prompt}", 'Q: "{prompt}"\nA:', "chat"])
def test_a_card_puts_a_prompt_as_in_training(run, template):
  path = run / log.CONFIG
  config = json.loads(path.read_text())
  options = {"enable_thinking": False}
  config["data"] |= {"template": template, "chat_options": options}
  path.write_text(json.dumps(config))
  code = cards.card(run, step=100).partition("```python\n")[2]
  lines = code.partition("```")[0].partition("model = ")[2].partition("\n")[2]
  names = {"tokenizer": Tokenizer()}
  exec(lines.partition("print(")[0], names)
  question = "What is 27 + 58?"
  if template == "chat":
    messages, given = names["ids"]
    assert messages == [{"role": "user", "content": question}]
    assert given.items() >= {"add_generation_prompt": True, **options}.items()
  else:
    assert names["ids"] == template.replace("{prompt}", question)


def test_another_step_has_no_figures_of_the_last(run):
  config = json.loads((run / log.CONFIG).read_text())
  data = {"source": "datasets", "name": "openai/gsm8k:main@abc"}
  config["data"] |= data | {"train_path": ""}
  (run / log.CONFIG).write_text(json.dumps(config))
  last, other = (
    huggingface_hub.ModelCard(cards.card(run, step=step)).data
    for step in (100, 50)
  )
  assert last.eval_results[0].dataset_type == "openai/gsm8k"
  assert other.eval_results is None
  assert last.datasets == other.datasets == ["openai/gsm8k"]


def test_what_is_not_known_is_said_so(run):
  config = tiny_config.get_config("grpo")
  config.algorithm.name = "my_pkg.foo:FOO"  # Of a package that is not here.
  config.model.checkpoint = "/home/secret_user/models/mine"
  config.data.train_path = "/home/secret_user/prompts.jsonl"
  (run / log.CONFIG).write_text(config.to_json())
  for name in (log.RESULT, log.ENVIRONMENT):
    (run / name).unlink()
  text = cards.card(run, step=5, base=run, library="peft")
  data = huggingface_hub.ModelCard(text).data
  assert data.base_model is None
  assert data.license is None
  assert "license of the base | unknown" in text.lower()
  assert "a local checkpoint, `mine`" in text
  assert "AutoPeftModelForCausalLM" in text
  assert "secret_user" not in text


def test_a_merged_folder_names_its_runs(run):
  (run / merging.MERGE).write_text(
    json.dumps(
      {
        "runs": [
          {"workdir": "/x/a", "step": 4, "coefficient": 0.5},
          {"workdir": "gs://b/c", "step": 5, "coefficient": 0.5},
        ],
        "base": "",
      }
    )
  )
  text = cards.card(run, step=None, library="grpo_jax")
  assert "`a` (step 4, coefficient 0.5), `c` (step 5" in text
  assert huggingface_hub.ModelCard(text).data.base_model_relation == "merge"
  assert "g.load(" in text


def test_every_paper_that_a_file_names_is_found():
  without = {
    name
    for name in algorithms.ALGORITHMS
    if not re.fullmatch(r"\d{4}\.\d{5}", cards._paper(name))
  }
  # Of these the file names none, or one that is not on arXiv.
  assert without == {"otb", "ppo_dpo", "reinforce", "sft"}
