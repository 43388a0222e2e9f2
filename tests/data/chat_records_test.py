"""Records of messages: their ids, the turns that are trained, their layouts."""

import hashlib
import json
import pickle

import numpy as np
import pytest
import tokenizers

from grpo_jax.data import (
  conversations,
  demonstrations,
  formats,
  pipeline,
  quality,
  sources,
  tokenizer,
)
from grpo_jax.data.encoder import Encoder
from grpo_jax.rewards import registry
from grpo_jax.settings import groups
from grpo_jax.training.problem import rewards
from tests.data import chats

USER, SAID = chats.user, chats.said


@pytest.fixture(scope="module")
def text(tmp_path_factory):
  folder = chats.write_tokenizer(tmp_path_factory.mktemp("model"))
  return tokenizer.Tokenizer(folder)


def shown(text, ids):
  return "".join(text.exact_text([i]) for i in ids)


def record(**fields):
  return formats.plain_record(fields)


def test_a_conversation_is_written_as_by_transformers(text):
  made = record(prompt=chats.CHAT, tools=chats.TOOLS)
  ids = Encoder(text, "chat").prompt(made)
  assert shown(text, ids) == chats.TEXT
  assert ids.tolist() == text.encode(chats.TEXT)
  assert ids.tolist().count(text.pad_id) == 1  # Its begin token, once.
  # The ids of `apply_chat_template` of transformers 5.24.0.
  digest = hashlib.sha256(str(ids.tolist()).encode()).hexdigest()
  assert digest.startswith("cbf509e7559c701e")
  # A log reads the text, and a copy in another process has the messages.
  assert made["prompt"].startswith("system: Be brief.\nuser: How long")
  copy = pickle.loads(pickle.dumps(made["prompt"]))
  assert copy == made["prompt"]
  assert (copy.messages, copy.options) == (
    made["prompt"].messages,
    {"tools": chats.TOOLS},
  )


def test_a_begin_token_is_written_once(tmp_path):
  folder = chats.write_tokenizer(tmp_path / "model")
  path = folder / "tokenizer.json"
  made = tokenizers.Tokenizer.from_file(str(path))
  made.post_processor = tokenizers.processors.TemplateProcessing(
    single="<pad> $A", special_tokens=[("<pad>", made.token_to_id("<pad>"))]
  )
  path.write_text(made.to_str())
  begun = tokenizer.Tokenizer(folder)
  row = record(prompt="Hi?")
  for template in "{prompt}", "<pad>{prompt}", "chat":
    ids = Encoder(begun, template).prompt(row).tolist()
    assert ids[0] == begun.pad_id
    assert ids.count(begun.pad_id) == 1


def test_options_of_a_record_come_first_and_a_system_message_is_its_own(text):
  encoder = Encoder(text, "chat", {"thinks": True}, system="Be kind.")
  assert shown(text, encoder.prompt(record(prompt="Hi?"))) == (
    "<pad>(think)system: Be kind.\nuser: Hi?\nassistant: "
  )
  one = record(prompt=[USER("Hi?")], chat_options={"thinks": False})
  assert shown(text, encoder.prompt(one)) == (
    "<pad>system: Be kind.\nuser: Hi?\nassistant: "
  )
  own = record(prompt=[chats.CHAT[0], USER("Hi?")])
  assert shown(text, encoder.prompt(own)) == (
    "<pad>(think)system: Be brief.\nuser: Hi?\nassistant: "
  )
  data = groups.DataConfig(
    source="text", train_path="x", template="chat", system="x"
  )
  assert data.system == "x"
  with pytest.raises(ValueError, match=r"data.system='x' is a message, .*'cha"):
    groups.DataConfig(system="x")


def test_prompts_are_compared_without_what_all_of_them_have(text):
  rows = [
    record(prompt="Is 1 odd?"),
    record(prompt="Is 2 even?"),
    record(prompt="Is 2 even?", tools=chats.TOOLS),
    record(prompt="Is 2 even?", tools=chats.TOOLS[:1]),
  ]
  encoder = Encoder(
    text, "chat", system="You are careful, kind and brief. " * 9
  )
  contents = [encoder.content(row) for row in rows]
  assert not quality.near_duplicates(contents[:2])
  assert len({*map(tuple, contents)}) == len({*map(quality.key, rows)}) == 4
  with pytest.raises(ValueError, match="only a chat template writes"):
    Encoder(text).content(rows[2])


def trained(text, ids, observed):
  """The text of ids, with brackets around what is read and not imitated."""
  parts = []
  for id_, seen in zip(ids, observed, strict=True):
    if not parts or parts[-1][0] != seen:
      parts.append((seen, []))
    parts[-1][1].append(id_)
  return "".join(
    f"[{shown(text, x)}]" if seen else shown(text, x) for seen, x in parts
  )


@pytest.mark.parametrize(
  ("completion", "wanted"),
  [
    ("yes", "yes<eos>"),
    (SAID("yes"), "yes<eos>"),
    (
      [SAID("a", weight=0), USER("why?"), SAID("b"), USER("so?"), SAID("c")],
      "[a<eos>\nuser: why?\nassistant: ]b<eos>[\nuser: so?\nassistant: ]c<eos>",
    ),
    (
      [SAID("", tool_calls=[chats.CALL]), chats.CHAT[3], SAID("1230")],
      '!{"x": 3}<eos>[\ntool: 1230 km\nassistant: ]1230<eos>',
    ),
  ],
)
def test_replies_are_trained_and_what_others_say_is_read(
  text, completion, wanted
):
  encoder = Encoder(text, "chat")
  row = record(prompt=[USER("Hi?")], completion=completion)
  prompt = encoder.prompt(row)
  ids, observed = pipeline.completion_ids(encoder, row, text.end_ids[0])
  assert trained(text, ids, observed) == wanted
  # Both parts are what the template writes of the whole conversation.
  turns = row["completion"]
  messages = getattr(turns, "messages", [SAID(str(turns))])
  whole = text.chat_text(
    [USER("Hi?"), *map(conversations.for_template, messages)], False
  )
  assert shown(text, [*prompt, *ids]) + "\n" == whole


def test_pairs_of_several_turns(text):
  chosen = [USER("Hi?"), SAID("Yo"), USER("How?"), SAID("Well.")]
  rejected = [USER("Hi?"), SAID("No"), USER("What?"), SAID("Go.")]
  rows = [{"chosen": chosen, "rejected": rejected}] * 2
  source = sources.RowsSource(rows, "pairs")
  batch = next(
    pipeline.pair_stream(
      source,
      Encoder(text, "chat"),
      batch_size=1,
      max_prompt_len=40,
      max_completion_len=60,
      seed=0,
      pad_id=text.pad_id,
      end_id=text.end_ids[0],
    )
  )
  assert [
    trained(text, ids[mask], seen[mask])
    for ids, mask, seen in zip(
      batch.tokens, batch.completion_mask, batch.observed, strict=True
    )
  ] == [
    "Yo<eos>[\nuser: How?\nassistant: ]Well.<eos>",
    "No<eos>[\nuser: What?\nassistant: ]Go.<eos>",
  ]
  (prompt,) = batch.prompt_tokens
  assert shown(text, prompt[batch.prompt_mask[0]]) == (
    "<pad>user: Hi?\nassistant: "
  )
  # The prompt that is given is cut off, and what both share is the prompt.
  both = [USER("Hi?"), SAID("Yo"), USER("How?")]
  one = formats.pair_record(
    {"prompt": both, "chosen": [*both, SAID("a")], "rejected": [SAID("b")]}
  )
  assert one == formats.pair_record(
    {"chosen": [*both, SAID("a")], "rejected": [*both, SAID("b")]}
  )
  assert one["prompt"].messages == both


def my_rows(row):
  return {"prompt": [USER(row["q"])], "extras": {"level": row["level"]}}


GOLD = {"style": "rule", "ground_truth": 72}


@pytest.mark.parametrize(
  ("format", "row", "record"),
  [
    (
      "trl",
      {
        "messages": [USER("q"), SAID("a"), USER("r"), SAID("b")],
        "solution": "7",
        "level": 3,
      },
      ("q", "assistant: a\nuser: r\nassistant: b", "7", {"level": 3}),
    ),
    (
      "trl",
      {"prompt": [USER("q")], "completion": [SAID("a")], "answer": "1"},
      ("q", "a", "1", {}),
    ),
    (
      "trl",
      {"prompt": "q", "chosen": "a", "rejected": "b", "answer": 7.0, "s": "x"},
      ("q", "a", "7", {"s": "x"}),
    ),
    (
      "verl",
      {
        "data_source": "gsm8k",
        "prompt": [USER("q")],
        "reward_model": GOLD,
        "extra_info": {"index": 0},
      },
      (
        *("q", None, "72"),
        {"data_source": "gsm8k", "extra_info": {"index": 0}},
      ),
    ),
    (
      "open_instruct",
      {
        "messages": [USER("q"), SAID("a")],
        "ground_truth": ["72"],
        "dataset": ["math"],
      },
      ("q", "a", "72", {"dataset": "math"}),
    ),
    (my_rows, {"q": "q", "level": 2}, ("q", None, "", {"level": 2})),
  ],
)
def test_layouts_of_other_libraries(format, row, record):
  prompt, completion, answer, extras = record
  made = formats.conversion(format)(row)
  assert made["prompt"] == prompt
  assert made["completion"] == completion
  assert made["answer"] == answer
  assert made["extras"] == extras | (
    {"solution": "7"} if "solution" in row else {}
  )
  # Rows in memory, and those of tables, have the same extras.
  assert sources.RowsSource([row], format)[0] == made


@pytest.mark.parametrize("answer", [["a", "b"], {"x": 1}, True])
def test_an_answer_that_would_be_lost_is_refused(answer):
  with pytest.raises(
    ValueError, match=r"found 'answer' = .*need a text or a n"
  ):
    formats.conversion("trl")({"prompt": "q", "answer": answer})


def test_a_reward_function_of_trl_gets_the_messages(text):
  def asked(prompts, completions, **kwargs):
    return [float(prompts == [chats.CHAT[:2]]), len(completions[0])]

  row = record(prompt=chats.CHAT[:2])
  call = registry.adapted(asked, {}, True)
  extras = [rewards.plain_extras(row)]
  assert call([row["prompt"]], ["a"], [0], extras) == [1.0, 1]
  plain = [rewards.plain_extras(record(prompt="q"))]
  assert call(["q"], ["a"], [0], plain) == [0.0, 1]


def test_a_demonstration_keeps_its_messages(text, tmp_path):
  row = record(prompt=chats.CHAT, tools=chats.TOOLS, answer="x")
  line = demonstrations.line(text, row, [*text.encode("a"), text.end_ids[0]])
  path = tmp_path / "kept.jsonl"
  path.write_text(json.dumps(line))
  again = demonstrations.DemonstrationSource(path, text, is_text=True)[0]
  np.testing.assert_array_equal(
    Encoder(text, "chat").prompt(again), text.encode(chats.TEXT)
  )
