"""Wrong files and records: each message says where, what, and what to do."""

import json

import pytest

from grpo_jax.data import tokenizer
from grpo_jax.data.encoder import Encoder
from grpo_jax.settings import groups
from grpo_jax.training.problem import records
from tests.data import chats

USER, SAID = chats.user, chats.said
GOLD = {"ground_truth": "1"}


def of(prompt, **more):
  return {"prompt": prompt, **more}


# Row, settings of data beside the file, the message.
WRONG = {
  "a message without a role": (
    of([{"content": "x"}]),
    {},
    r"'prompt' in which messages\[0\] is .*; needs an object with a role",
  ),
  "an unknown role": (
    of([USER("x"), {"role": "bot", "content": "x"}]),
    {},
    r"messages\[1\] is .*'bot'.* one of system, developer, user, assistant",
  ),
  "content that is a number": (
    of([{"role": "user", "content": 3}]),
    {},
    r"messages\[0\].content is 3; needs text",
  ),
  "a part that is no text": (
    of([{"role": "user", "content": [{"type": "audio"}]}]),
    {},
    r"has a part .*audio.* needs parts of the type 'text'",
  ),
  "calls that are no list": (
    of([USER("x"), SAID("", tool_calls="f()"), USER("y")]),
    {},
    r"messages\[1\].tool_calls is 'f\(\)'; needs a list of calls",
  ),
  "a prompt that is neither": (
    of({"text": "x"}),
    {},
    "found 'prompt' = .*; need a string, or a list of messages",
  ),
  "no message": (of([]), {}, r"'prompt' = \[\]; need at least one message"),
  "a prompt that ends with a reply": (
    of([USER("x"), SAID("y")]),
    {},
    "last message is the assistant's.* Put the reply into 'completion'",
  ),
  "a completion of the user": (
    of("x", completion=USER("y")),
    {},
    "'completion' whose first message is of 'user'; need one of 'assistant'",
  ),
  "replies that nobody trains": (
    of("x", completion=[SAID("y", weight=0)]),
    {},
    "'completion' whose replies all have the weight 0; need one",
  ),
  "tools that are a text": (
    of("x", tools="find"),
    {},
    "'tools' = 'find'; need a list of JSON schemas",
  ),
  "options that are a list": (
    of("x", chat_options=["a"]),
    {},
    r"'chat_options' = \['a'\]; need an object with inputs",
  ),
  "roles without a chat template": (
    of([chats.CHAT[0], USER("x")]),
    {"template": "Q: {prompt}"},
    "its prompt has roles or tools.* is 'Q: {prompt}'. Set it to 'chat'",
  ),
  "a template that refuses the system": (
    of([chats.CHAT[0], USER("x")]),
    {"chat_options": {"refuses": True}},
    r"roles \['system', 'user'\]: no system message here .*Pass messages that",
  ),
  "a column that is missing": (
    of("x"),
    {"fields": {"prompt": "prompt", "answer": "gold"}},
    r"no field 'gold'; the dataset has \['prompt'\].* config.data.fields",
  ),
  "no ground truth": (
    of([USER("x")], reward_model={"style": "rule"}),
    {"format": "verl"},
    "'reward_model' = .*; need an object with 'ground_truth'",
  ),
  "a ground truth of a wrong type": (
    of([USER("x")], reward_model={"ground_truth": {"a": 1}}),
    {"format": "verl"},
    "'reward_model.ground_truth' = .*need a text or a number.*config.data.form",
  ),
  "several ground truths": (
    {"messages": [USER("x")], "ground_truth": ["1", "2"]},
    {"format": "open_instruct"},
    r"'ground_truth' = \['1', '2'\]; need a text or a number",
  ),
  "another library's layout": (
    of([USER("x")], completion="y"),
    {"format": "open_instruct"},
    r"fields \['completion', 'prompt'\]; need 'messages' .*config.data.fields",
  ),
  "messages that begin with a reply": (
    {"messages": [SAID("x"), USER("y")]},
    {"format": "trl"},
    "'messages' that begin with the assistant's; need a message of the user",
  ),
  "a layout that is not named": (
    {"messages": [USER("x")], "ground_truth": "1"},
    {},
    "no field 'prompt'.* Set config.data.format='open_instruct'",
  ),
  "an unknown format": (
    of("x"),
    {"format": "sharegpt"},
    "config.data.format: unknown format 'sharegpt'; known: .*'verl'",
  ),
  "a function that is not there": (
    of("x"),
    {"format": "grpo_jax.data.layouts:tlr"},
    "config.data.format 'grpo_jax.data.layouts:tlr': .* mean 'trl'",
  ),
  "a function that fails": (
    of("x"),
    {"format": "json:loads"},
    "config.data.format: the function raised TypeError: .* has \\['prompt'\\]",
  ),
  "a function that returns no row": (
    of("x"),
    {"format": "builtins:len"},
    "config.data.format: the function returned 1; need a dictionary with",
  ),
}
# What holds of formats and functions as a whole, and not of a row.
_OF_SETTINGS = ("an unknown format", "a function that is not there")
_OF_TEMPLATES = (
  "roles without a chat template",
  "a template that refuses the system",
)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
  folder = chats.write_tokenizer(tmp_path_factory.mktemp("model"))
  return tokenizer.Tokenizer(folder)


def _written(data, text=None):
  """Opens the data, reads every record, and writes prompts."""
  train = records.open_sources(data, 0).train
  rows = [train[i] for i in range(len(train))]
  if text is not None:
    encoder = Encoder(text, data.template, data.chat_options)
    encoder.prompts(rows)


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_record_is_explained(what, text, tmp_path):
  row, settings, message = WRONG[what]
  path = tmp_path / "rows.jsonl"
  path.write_text(json.dumps(row))
  place = "rows.jsonl:1: "
  if what in _OF_SETTINGS:
    place = ""
  elif what in _OF_TEMPLATES:
    place = "record 'system: Be brief."
  data = groups.DataConfig(
    **{
      "source": "jsonl",
      "train_path": str(path),
      "template": "chat",
      **settings,
    }
  )
  with pytest.raises(ValueError, match=f"{place}.*{message}"):
    _written(data, text)


# Content of a file of the source "datasets", its ending, the message.
TABLES = {
  "a broken Parquet file": (
    b"PAR1 nothing",
    "rows.parquet",
    {},
    r"rows.parquet with the split 'train' cannot be read: Arrow.* Needed are",
  ),
  "an empty file": (b"", "rows.jsonl", {}, "cannot be read: .*it has no row"),
  "only a header": (
    b"prompt,answer\n",
    "rows.csv",
    {},
    "rows.csv .* cannot be read: .* corresponds to no data",
  ),
  "a row of a wrong kind": (
    b"prompt,answer\nx,1\n,2\n",
    "rows.csv",
    {},
    r"rows.csv \(train\), row 1: found 'prompt' = None; need a string",
  ),
  "a column that no row has": (
    b"question,answer\nx,1\n",
    "rows.csv",
    {"fields": {"prompt": "quesiton"}},
    r"row 0: found no field 'quesiton'; the dataset has \['answer', 'question'",
  ),
  "a slice that is none": (
    b"prompt,answer\nx,1\n",
    "rows.csv",
    {"train_split": "train[1"},
    r"the split 'train\[1' cannot be read: .*train_split",
  ),
  "another ending": (b"x", "rows.xlsx", {}, "ends in none of .parquet, .csv"),
}


@pytest.mark.parametrize("what", TABLES)
def test_a_wrong_table_is_explained(what, tmp_path, cache_of_datasets):
  content, name, settings, message = TABLES[what]
  (tmp_path / name).write_bytes(content)
  data = groups.DataConfig(
    source="datasets", train_path=str(tmp_path / name), **settings
  )
  with pytest.raises(ValueError, match=message):
    _written(data)


def test_what_is_not_there_is_explained(tmp_path, cache_of_datasets):
  missing = groups.DataConfig(source="datasets", train_path="no/rows.parquet")
  with pytest.raises(
    FileNotFoundError, match=r"no file or folder no/rows\.parq"
  ):
    records.open_sources(missing, 0)
  hub = groups.DataConfig(source="datasets", name="own/rows:a:b")
  with pytest.raises(ValueError, match=r"name='own/rows:a:b': need 'owner/na"):
    records.open_sources(hub, 0)
  with pytest.raises(ValueError, match=r"needs config\.data\.train_path, a"):
    groups.DataConfig(source="datasets")
