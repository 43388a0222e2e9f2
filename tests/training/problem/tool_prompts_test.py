"""Schemas of tools get into prompts, and templates of other formats do not."""

import pytest

from experiments.rewards import search_task
from grpo_jax.configs import search_agent
from grpo_jax.rewards.agents import tools
from grpo_jax.settings import config as config_lib
from grpo_jax.training.problem import environment, tokens
from grpo_jax.training.problem import problem as problem_lib
from tests.experiments import tiny_config

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  path = tmp_path_factory.mktemp("search_task")
  search_task.write(path)
  return path


def settings(folder, options=None, **changes):
  config = search_agent.get_config()
  config.data.train_path = str(folder / "train.jsonl")
  config.data.eval_path = str(folder / "test.jsonl")
  config.data.tokenizer = str(folder / "tokenizer")
  config.environment.options.corpus = str(folder / "passages.jsonl")
  config.environment.options.update(options or {})
  config.rewards.num_workers = 1
  return config_lib.resolve(tiny_config.change(config, changes))


def chat_options(config):
  return environment.chat_options(config, tokens.make_tokenizer(config))


def test_schemas_are_in_the_prompts_of_a_run(folder):
  made = problem_lib.make_problem(settings(folder))
  try:
    record = made.held_out[0]
    text = made.tokenizer.exact_text(made.encoder.prompt(record))
    assert '{"type": "function", "function": {"name": "search"' in text
    assert text.endswith(
      f"<|im_start|>user\n{record['prompt']}<|im_end|>\n<|im_start|>assistant\n"
    )
    assert made.score_names >= {"accuracy", "tool_calls", "malformed"}
  finally:
    made.close()


def test_tools_that_the_user_names_stay(folder):
  given = {"tools": (), "enable_thinking": False}
  found = chat_options(settings(folder, data__chat_options=given))
  assert dict(found) == given
  found = chat_options(settings(folder, data__chat_options={"x": 1}))
  assert [x["function"]["name"] for x in found["tools"]] == ["search"]
  assert found["x"] == 1


@pytest.mark.parametrize(
  "changes",
  [
    {"data__template": "Q: {prompt}"},
    {
      "data__environment": "grpo_jax.rewards.agents.python_tool:make",
      "environment__options": {},
    },
  ],
)
def test_other_prompts_and_other_environments_have_no_tools(folder, changes):
  assert chat_options(settings(folder, **changes)) == {}


@pytest.mark.parametrize(
  ("options", "changes", "message"),
  [
    (
      {"format": "hermes"},
      {},
      "format='hermes' is not that of the chat templa",
    ),
    (
      {"format": "llama"},
      {},
      "format='llama' is not that of the chat template",
    ),
    (
      {"opening": "<think>"},
      {},
      "or set 'opening' to what the template writes",
    ),
    ({"max_calls": 0}, {}, "tools: max_calls=0; needs a positive number"),
    (
      {"max_parallel": 9},
      {},
      r"raise config\.environment\.max_observation_len",
    ),
    (
      {},
      {"environment__max_observation_len": 9},
      r"has no room in 9 tokens; raise config\.environment\.max_observation",
    ),
  ],
)
def test_what_does_not_fit_is_refused_before_there_is_a_worker(
  folder, options, changes, message
):
  with pytest.raises(ValueError, match=message):
    problem_lib.make_problem(settings(folder, options, **changes))


def test_a_template_that_opens_turns_by_a_thought_is_matched(folder):
  config = settings(folder)
  text = tokens.make_tokenizer(config)
  opening = "<think>\n\n</think>\n\n"
  template = search_task.TEMPLATE.replace(
    "assistant\\n' }}{% endif %}",
    "assistant\\n' }}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}",
  )
  text._templates = {"default": template}
  with pytest.raises(ValueError, match="'opening'"):
    environment.chat_options(config, text)
  config = settings(folder, {"opening": opening})
  assert environment.chat_options(config, text)["tools"] == (
    tools.schemas(**config.environment.options)
  )
