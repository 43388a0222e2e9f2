"""Tests of the openings of contexts on the host, in ids and in a chat."""

import dataclasses

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from grpo_jax.settings import config as config_lib
from grpo_jax.training.phases import episodes
from grpo_jax.training.problem import environment
from grpo_jax.types import HostCompaction, HostEnvironment
from tests.data import tokenizer_test

files, checkpoint = tokenizer_test.files, tokenizer_test.checkpoint
chat = tokenizer_test.chat

SUM, END = 90, 91
COMPACTION = HostCompaction(
  every=0,
  context_len=40,
  reserve=14,
  instruction=(SUM,),
  ends=(END,),
  resume=((80,), (81, 82)),
  max_summary_len=5,
  keep_turns=2,
  max_compactions=2,
  prompt_len=20,
)


def make(prompt=(1, 2, 3), slots=40, **changes):
  return episodes.EpisodeContexts(
    dataclasses.replace(COMPACTION, **changes), [prompt], slots
  )


def opening(contexts):
  opened = contexts.open()
  assert opened.came.all()
  mask = opened.mask[0]
  assert (np.diff(mask.astype(int)) >= 0).all()  # Left-padded.
  return opened.tokens[0][mask].tolist()


def test_a_context_by_hand():
  contexts = make()
  contexts.acted(0, [10, 11])
  assert contexts.to_read(0, [20], size=2) == ((20,), False)
  contexts.acted(0, [12])
  assert contexts.to_read(0, [21, 22], size=4) == ((21, 22), False)
  contexts.acted(0, [13])
  # 37 - 22 - 2 = 13 tokens are left, and 14 are reserved.
  assert contexts.to_read(0, [23, 24], size=22) == ((SUM,), True)
  assert contexts.summarizes(0)
  assert contexts.resumed() == {}
  contexts.summarized(0, [30, 31, END])
  # The first action answers the prompt, and is no turn to keep.
  turns = [20, 12, 21, 22, 13]
  assert opening(contexts) == [1, 2, 3, 80, 30, 31, 81, 82, *turns]
  assert not contexts.summarizes(0)
  assert contexts.resumed() == {0: (23, 24)}
  assert contexts.resumed() == {}
  assert not contexts.open().came.any()
  assert contexts.room(0) == 40 - 13
  # The next one begins with the turn that was held back.
  contexts.acted(0, [14])
  assert contexts.to_read(0, [25], size=15) == ((SUM,), True)
  contexts.summarized(0, [30, 31, 32, 33, 34])  # Cut off: no end.
  turns = [21, 22, 13, 23, 24, 14]
  assert opening(contexts) == [1, 2, 3, 80, 30, 31, 32, 33, 81, 82, *turns]
  # There are no more of them.
  contexts.acted(0, [15])
  assert contexts.to_read(0, [26], size=23) == ((26,), False)


def test_a_summary_is_due_by_turns_and_by_slots():
  contexts = make(every=2)
  for turn in range(2):
    contexts.acted(0, [10])
    _, asks = contexts.to_read(0, [20], size=1 + 2 * turn)
    assert asks == (turn == 1)
  contexts = make(slots=20)
  assert contexts.room(0) == 20
  contexts.acted(0, [10])
  assert contexts.to_read(0, [20], size=5) == ((20,), False)
  contexts.acted(0, [10])
  assert contexts.to_read(0, [20], size=6) == ((SUM,), True)


def test_other_heads_and_dropped_summaries():
  for changes, expected in (
    ({"head_len": 1}, [1, 80, 30, 81, 82, 20, 11]),
    ({"keeps_summary": False}, [1, 2, 3, 20, 11]),
    ({"keep_turns": 0}, [1, 2, 3, 80, 30, 81, 82]),
    # Dropped or not, as many turns are kept.
    ({"prompt_len": 8, "keeps_summary": False}, [1, 2, 3]),
  ):
    contexts = make(every=2, **changes)
    contexts.acted(0, [10])
    contexts.to_read(0, [20], size=1)
    contexts.acted(0, [11])
    assert contexts.to_read(0, [21], size=3)[1]
    contexts.summarized(0, [30, END])
    assert opening(contexts) == expected


@hypothesis.given(
  sizes=st.lists(
    st.tuples(st.integers(0, 6), st.integers(1, 4)), min_size=1, max_size=8
  ),
  held=st.integers(0, 6),
  keep_turns=st.integers(0, 4),
  prompt_len=st.integers(10, 24),
)
def test_the_last_turns_that_fit_are_kept_whole(
  sizes, held, keep_turns, prompt_len
):
  contexts = make(
    every=len(sizes) + 1,
    reserve=1,
    context_len=1000,
    slots=1000,
    keep_turns=keep_turns,
    prompt_len=prompt_len,
  )
  contexts.acted(0, [10])
  pairs, size = [], 1
  for number, (read, written) in enumerate(sizes):
    observation = [100 + number] * read
    action = [200 + number] * written
    assert contexts.to_read(0, observation, size) == (tuple(observation), False)
    contexts.acted(0, action)
    pairs.append(observation + action)
  assert contexts.to_read(0, [99] * held, size)[1]
  contexts.summarized(0, [30, 31, 32, END])
  begins = [1, 2, 3, 80, 30, 31, 32, 81, 82]
  fits = [
    pairs[len(pairs) - count :]
    for count in range(min(keep_turns, len(pairs)) + 1)
    if len(begins) + sum(map(len, pairs[len(pairs) - count :])) <= prompt_len
  ]
  assert opening(contexts) == [*begins, *(x for pair in fits[-1] for x in pair)]


# --- Chats --------------------------------------------------------------------

HERE = HostEnvironment(
  max_turns=9,
  max_action_len=20,
  max_observation_len=60,
  action_ends=(),
  path="",
)
USER = {
  "<|im_end|>": ("\n<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"),
  "<|eot_id|>": (
    "<|start_header_id|>user<|end_header_id|>\n\n",
    "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
  ),
}


def settings(**changes):
  config = config_lib.default_config()
  config.data.source = "jsonl"
  config.data.train_path = "none.jsonl"
  config.data.tokenizer = "gsm8k"
  config.data.template = "chat"
  config.data.chat_options = {"date_string": "today"}
  config.data.max_prompt_len = 100
  config.sampling.max_new_tokens = 400
  config.data.environment = "none:make"
  config.environment.compaction.context_len = 600
  config.environment.compaction.max_summary_len = 40
  for key, value in changes.items():
    section, _, name = key.partition("__")
    group = config.environment.compaction if section == "compaction" else None
    (group or config[section])[name] = value
  return config_lib.resolve(config)


def of_config(text, **changes):
  here = dataclasses.replace(HERE, action_ends=text.end_ids)
  return environment.compaction(settings(**changes), text, here, 100, 400)


@pytest.mark.parametrize(
  ("template", "end"),
  [
    (tokenizer_test.CHATML, "<|im_end|>"),
    (tokenizer_test.HEADERS, "<|eot_id|>"),
  ],
)
def test_contexts_are_what_the_template_writes(chat, template, end):
  text = chat(template, end)
  options = {"date_string": "today"}
  compaction = of_config(text, compaction__instruction=("Sum it up.",))
  before, after = USER[end]

  def user(content):
    return text.observation_ids((before, content, after), 60)

  def act(content):
    return text.encode(content + end)

  task = {"role": "user", "content": "What is 2 + 2?"}
  prompt = text.chat_ids([task], **options)
  contexts = episodes.EpisodeContexts(compaction, [prompt], 400)
  written = []
  for number in range(3):
    action = act(f"call {number}")
    contexts.acted(0, action)
    written += action
    said = user(f"result {number}")
    read, asks = contexts.to_read(0, said, len(written) + 500 * (number == 2))
    assert asks == (number == 2)
    written += read

  def messages(*contents):
    roles = "user", "assistant"
    return [
      {"role": roles[i % 2], "content": x} for i, x in enumerate(contents)
    ]

  calls = "call 0", "result 0", "call 1", "result 1", "call 2"
  asked = messages(task["content"], *calls, "Sum it up.")
  assert text.exact_text([*prompt, *written]) == text.chat_text(
    asked, **options
  )
  contexts.summarized(0, act("I did two calls."))
  (held,) = contexts.resumed() or [None]
  assert held is None
  begins = opening(contexts)
  held = contexts.resumed()[0]
  resumed = messages(
    task["content"],
    *("I did two calls.", "result 0", "call 1", "result 1", "call 2"),
    "result 2",
  )
  assert text.exact_text([*begins, *held]) == text.chat_text(resumed, **options)


def test_signs_of_a_chat_may_be_written_by_hand(chat):
  text = chat(tokenizer_test.CHATML, "<|im_end|>")
  before, after = USER["<|im_end|>"]
  derived = of_config(text, compaction__instruction=("Sum it up.",))
  by_hand = of_config(
    text,
    data__template="<|im_start|>user\n{prompt}",
    data__chat_options={},
    compaction__instruction=(before, "Sum it up.", after),
    compaction__resume=("", "<|im_end|>"),
  )
  assert by_hand == derived
  assert derived.ends == text.end_ids
  plain = of_config(
    text,
    data__template="{prompt}",
    data__chat_options={},
    compaction__ends=("<|eot_id|>",),
    compaction__resume=("<|begin|>", ""),
  )
  assert plain.resume == ((tokenizer_test.control("<|begin|>"),), ())
  assert plain.ends == (*text.end_ids, tokenizer_test.control("<|eot_id|>"))
  replies = chat(tokenizer_test.BRACKETS, "<|im_end|>")
  assert of_config(replies).resume == ((), replies.end_ids)
  # A template whose replies end with another token than the tokenizer's.
  with pytest.raises(ValueError, match="behind a reply, which begins with no"):
    of_config(chat(tokenizer_test.TURNS, "<|im_end|>"))


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"compaction__context_len": 200}, "context_len=200 has no room for"),
    ({"compaction__reserve": 50}, r"reserve=50 is less than [0-9]+: an action"),
    (
      {"compaction__max_prompt_len": 120},
      "max_prompt_len=120 is less than 140",
    ),
    (
      {"compaction__instruction": ("a", "b")},
      "are 2 texts; give one, or three",
    ),
    ({"compaction__resume": ("a",)}, "are 1 texts; give two"),
    ({"compaction__ends": ("a b",)}, "a summary ends with a single token"),
    ({"compaction__max_compactions": 0}, "max_compactions=0 must be"),
    (
      {
        "data__environment": "verifiers:x",
        "data__source": "environment",
        "data__train_path": "",
      },
      "the messages of 'verifiers:x'",
    ),
    (
      {"compaction__instruction": ("", "x", "<|im_end|>" * 700)},
      "instruction=.*has no room in 600",
    ),
  ],
)
def test_what_does_not_fit_is_refused(chat, changes, message):
  text = chat(tokenizer_test.CHATML, "<|im_end|>")
  with pytest.raises(ValueError, match=message):
    of_config(text, **changes)


def test_slots_of_completions_have_room_for_a_turn_and_a_summary(chat):
  text = chat(tokenizer_test.CHATML, "<|im_end|>")
  found = of_config(text)
  least = 60 + found.reserve
  with pytest.raises(ValueError, match=f"max_new_tokens={least - 1} is what"):
    environment.compaction(settings(), text, HERE, 100, least - 1)
  assert found.prompt_len == 100 + 40 + 2 * (20 + 60)
  assert found.num_contexts == 4
