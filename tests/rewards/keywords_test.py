"""Reward functions that were written for TRL are called as TRL does it."""

import functools
import textwrap

import pytest

from grpo_jax.rewards import registry
from grpo_jax.rewards.workers import host

# The examples of TRL's documentation, and what its signature allows beside.
REWARDS = r"""
  import asyncio
  import re

  from grpo_jax.rewards import registry

  def longer(completion_ids, **kwargs):
    return [float(len(ids)) for ids in completion_ids]

  def longer_too(completions_ids, **kwargs):
    return [float(len(ids)) for ids in completions_ids]

  def characters(completions, **kwargs):
    return [float(len(completion)) for completion in completions]

  def form(completions, **kwargs):
    pattern = r"^<think>.*?</think><answer>.*?</answer>$"
    contents = [completion[0]["content"] for completion in completions]
    return [1.0 if re.match(pattern, x) else 0.0 for x in contents]

  def boxed(completions, ground_truth, **kwargs):
    found = [re.search(r"\\boxed\{(.*?)\}", x) for x in completions]
    contents = [match.group(1) if match else "" for match in found]
    return [float(c == gt) for c, gt in zip(contents, ground_truth)]

  def of_task(prompts, completions, task, **kwargs):
    return [
      (1.0 if prompt in completion else -1.0) if kind == "math" else None
      for prompt, completion, kind in zip(prompts, completions, task)
    ]

  async def waits(prompts, completions, **kwargs):
    await asyncio.sleep(0.01)
    return [1.0 if completion else 0.0 for completion in completions]

  @registry.of_group
  def most(completions, **kwargs):
    longest = max(map(len, completions))
    return [float(len(x) == longest) for x in completions]

  def by_step(completions, trainer_state, **kwargs):
    return [float(trainer_state.global_step)]

  def logs(completions, log_metric, log_extra=None, scale=2.0):
    assert log_metric is None and log_extra is None
    return [scale]

  def everything(**kwargs):
    return [0.0]

  def all_names(completions, **kwargs):
    names = {"prompts", "completion_ids", "trainer_state", "task", "answer"}
    return [float(names <= kwargs.keys() and "ids" not in kwargs)]
"""
PROMPTS = ["a", "a", "b"]
COMPLETIONS = ["a cat", r"\boxed{2}", ""]
EXTRAS = [
  {"task": "math", "ground_truth": "1", "answer": "x"},
  {"task": "math", "ground_truth": "2", "answer": "x"},
  {"task": "code", "ground_truth": "", "answer": "x"},
]


@pytest.fixture(scope="module")
def scores(tmp_path_factory):
  """Function -> its values for the three rows, and the errors."""
  folder = tmp_path_factory.mktemp("trl")
  (folder / "trl_rewards.py").write_text(textwrap.dedent(REWARDS))
  with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(folder)
    names = [
      *("longer", "longer_too", "characters", "boxed", "of_task", "waits"),
      *("most", "by_step", "logs", "all_names"),
    ]
    paths = {name: f"trl_rewards:{name}" for name in names}
    with host.HostScorer(
      paths, dict.fromkeys(paths, 1.0), options={"logs": {"scale": 3.0}}
    ) as scorer:
      assert scorer.reads_tokens
      yield scorer.score(
        PROMPTS, COMPLETIONS, [0, 0, 1], EXTRAS, [[5, 6], [7], []]
      )


@pytest.mark.parametrize(
  ("name", "values"),
  [
    ("longer", [2.0, 1.0, 0.0]),
    ("longer_too", [2.0, 1.0, 0.0]),
    ("characters", [5.0, 9.0, 0.0]),
    ("boxed", [0.0, 1.0, 1.0]),
    ("of_task", [1.0, -1.0, None]),
    ("waits", [1.0, 1.0, 0.0]),
    ("most", [0.0, 1.0, 1.0]),  # Of the two completions of "a".
    ("logs", [3.0, 3.0, 3.0]),  # An option.
    ("all_names", [1.0, 1.0, 1.0]),
  ],
)
def test_the_documented_functions_have_their_values(scores, name, values):
  found = scores.components[name].tolist()
  assert [None if x != x else x for x in found] == values


def test_the_state_of_the_trainer_says_what_to_do(scores):
  assert scores.failed.all()  # By this function alone.
  assert "trainer_state.global_step: a reward here" in scores.errors[0]
  assert "config.rewards.schedules" in scores.errors[0]


def test_messages_are_given_where_the_run_has_a_chat_template():
  def seen(prompts, completions, answer):
    return prompts, completions, answer

  ours = registry.adapted(seen, {}, True)(["q"], ["c"], [0], [{"answer": "a"}])
  assert ours == (
    [[{"role": "user", "content": "q"}]],
    [[{"role": "assistant", "content": "c"}]],
    ["a"],
  )


@pytest.mark.parametrize("conversational", [True, False])
def test_who_takes_a_message_for_a_text_is_told(conversational):
  def stripped(completions):
    return [len(text.strip()) for text in completions]

  call = registry.adapted(stripped, {}, conversational)
  if not conversational:
    assert call(["q"], [" c "], [0], [{}]) == [1]
    return
  with pytest.raises(AttributeError, match=r"'strip'; with config\.data\.temp"):
    call(["q"], ["c"], [0], [{}])


@pytest.mark.parametrize(
  ("function", "by_keyword"),
  [
    (lambda prompts, completions, ids, extras: 0, False),
    (lambda prompts, completions, _ids, _extras: 0, False),
    (lambda prompts, completions, *rest: 0, False),
    (lambda p, c, i, e: 0, False),
    (lambda text: 0, False),
    (len, False),
    (lambda completions: 0, True),
    (lambda completion_ids, **kwargs: 0, True),
    (lambda prompts, completions, level, answer: 0, True),
    (functools.partial(lambda n, completions, **kwargs: 0, 1), True),
  ],
)
def test_names_of_arguments_tell_the_signatures_apart(function, by_keyword):
  assert registry.uses(function) == by_keyword


def test_what_nothing_fills_in_is_named():
  def reward(completions, ground_truth, words, trainer_state, log_extra, n=1):
    return []

  assert registry.missing(reward, {"words"}, {"answer"}) == ["ground_truth"]
  assert not registry.missing(reward, {"words"}, {"ground_truth"})
  assert registry.asks_for(reward) == set()
