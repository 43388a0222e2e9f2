"""The shipped tokenizer, training, toy alphabets, checkpoints and chats."""

import dataclasses
import itertools
import json
import os
import pathlib

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax.data import encoder, observations, sources, teacher, tokenizer
from grpo_jax.tasks import copy
from grpo_jax.tasks import vocabulary as vocab

SAMPLE = pathlib.Path(__file__).parent / "gsm8k_sample"


def test_texts_survive_a_round_trip():
  tok = tokenizer.Tokenizer()
  source = sources.JsonlSource(SAMPLE / "test.jsonl", format="gsm8k")
  taught = teacher.ThinkAnswerSource(source, 0, 0.0)
  texts = [taught[i][f] for i in range(64) for f in ("prompt", "completion")]
  for text in [*texts, "", "  spaces\n\ttabs ", "π≈3.14 😀 \x00"]:
    ids = tok.encode(text)
    assert tok.decode(ids) == text
    assert all(0 <= i < tok.vocab_size for i in ids)
    assert not {tok.pad_id, *tok.end_ids} & set(ids)


def test_tags_are_single_tokens_and_digits_are_split():
  tok = tokenizer.Tokenizer()
  for tag in ("<think>", "</think>", "<answer>", "</answer>"):
    assert len(tok.encode(tag)) == 1
  digits = tok.encode("0123456789")
  assert len(set(digits)) == 10
  assert tok.encode("<answer>1207</answer>")[1:-1] == [
    digits[i] for i in (1, 2, 0, 7)
  ]


def test_pad_and_end_tokens_are_not_text():
  tok = tokenizer.Tokenizer()
  ids = tok.encode("<answer>6</answer>")
  row = [tok.pad_id, *ids, *tok.end_ids, tok.pad_id]
  assert tok.decode(row) == "<answer>6</answer>"


def test_shipped_file_has_the_stated_size():
  assert tokenizer.Tokenizer().vocab_size == 2048
  assert tokenizer.GSM8K_BPE.stat().length < 200_000


def test_training_again_gives_the_same_file():
  if "TFDS_DATA_DIR" in os.environ:
    first = tokenizer.GSM8K_BPE.read_text(encoding="utf-8")
    source, size = sources.TfdsSource("gsm8k", "train"), 2048
  else:
    path = SAMPLE / "train.jsonl"
    source, size = sources.JsonlSource(path, format="gsm8k"), 512
    first = tokenizer.train(source, size)
  assert tokenizer.train(source, size) == first


def test_trained_file_is_usable(tmp_path):
  source = sources.JsonlSource(SAMPLE / "train.jsonl", format="gsm8k")
  path = tmp_path / "tokenizer.json"
  path.write_text(tokenizer.train(source, 300), encoding="utf-8")
  tok = tokenizer.Tokenizer(path)
  assert tok.vocab_size == 300
  assert (tok.pad_id, tok.end_ids) == (0, (1,))
  assert tok.decode(tok.encode("é<think>12")) == "é<think>12"


def test_unusable_files_are_refused(tmp_path):
  with pytest.raises(FileNotFoundError, match="no file"):
    tokenizer.Tokenizer(tmp_path / "none.json")
  with pytest.raises(ValueError, match="does not have the token '<nope>'"):
    tokenizer.Tokenizer(end_tokens=("<eos>", "<nope>"))
  with pytest.raises(ValueError, match="end_tokens is empty"):
    tokenizer.Tokenizer(end_tokens=())


def test_toy_alphabet_has_the_same_interface():
  task = copy.make(length=3)
  tok = observations.TaskTokenizer(task)
  source = sources.TaskSource(task, "train", 0, num_examples=1)
  record = source[0]
  letters = task.decode(record["extras"]["answer"])
  assert len(letters) == 3
  assert tok.decode([tok.pad_id, *record["completion"], tok.pad_id]) == letters
  assert tok.vocab_size == task.vocab_size
  assert tok.end_ids == task.end_ids
  # A prompt that a person types gets the begin token.
  assert tok.encode("a b =") == [task.bos_id, *task.encode("ab=")]
  assert tok.decode(tok.encode("a b =")) == "ab="
  with pytest.raises(ValueError, match="not tokens"):
    tok.encode("A")


# Small templates with what those of the open families do; what they write was
# compared with transformers 5.23.
CHATML = """\
{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nBe brief.<|im_end|>\\n' }}
{%- endif %}
{%- if tools %}
    {%- for tool in tools %}
        {{- tool | tojson }}
    {%- endfor %}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or message.role == 'assistant' %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content }}
        {{- '<|im_end|>' + '\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content }}
        {{- '\\n</tool_response><|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""
# Drops the reasoning of all replies before the last question.
FORGETFUL = """\
{%- set ns = namespace(last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- if message.role == 'user' %}
        {%- set ns.last = messages|length - 1 - loop.index0 %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' and loop.index0 < ns.last %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
HEADERS = """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now("%d %b %Y") %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" + date_string }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
# Without dashes: newlines go by trim_blocks and lstrip_blocks.
TURNS = """\
{{ bos_token }}
  {% if messages[0]['role'] == 'system' %}
    {{ raise_exception('System role not supported') }}
  {% endif %}
{% for message in messages %}
  {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
    {{ raise_exception('Roles must alternate') }}
  {% endif %}
  {% set role = 'model' if message['role'] == 'assistant' else 'user' %}
<start_of_turn>{{ role }}
{% generation %}{{ message['content'] | trim }}{% endgeneration %}<end_of_turn>
{% endfor %}
{% if add_generation_prompt %}
<start_of_turn>model
{% endif %}
"""
BRACKETS = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'user' %}
        {{- '[INST] ' + message['content'] + ' [/INST]' }}
    {%- else %}
        {{- ' ' + message['content'] + eos_token }}
    {%- endif %}
{%- endfor %}
"""
CONTROL = (
  *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin|>"),
  *("<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>"),
  *("<start_of_turn>", "<end_of_turn>"),
)
SIZE = 300 + len(CONTROL)
ASK = {"role": "user", "content": "2 + 2 < 5?"}
REPLY = {"role": "assistant", "content": " yes\n"}


@pytest.fixture(scope="module")
def files():
  """A tokenizer.json with control tokens, as text."""
  source = sources.JsonlSource(SAMPLE / "train.jsonl", format="gsm8k")
  tok = tokenizers.Tokenizer.from_str(tokenizer.train(source, 300))
  tok.add_special_tokens(list(CONTROL))
  tok.enable_truncation(max_length=8)  # As some published files have it.
  tok.enable_padding(length=12)
  return tok.to_str()


@pytest.fixture
def checkpoint(files, tmp_path):
  """Makes a checkpoint's folder from what its files say."""

  def make(**contents):
    (tmp_path / "tokenizer.json").write_text(files, encoding="utf-8")
    contents.setdefault("tokenizer_config", {"eos_token": "<eos>"})
    for name, value in contents.items():
      if name == "chat_template":
        path = tmp_path / "chat_template.jinja"
        path.write_text(value, encoding="utf-8")
      else:
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    return tmp_path

  return make


@pytest.fixture
def chat(checkpoint):
  """Makes a tokenizer with a template."""

  def make(template, end, **options):
    folder = checkpoint(
      tokenizer_config={
        "bos_token": {"content": "<|begin|>", "special": True},
        "eos_token": end,
        "chat_template": template,
      }
    )
    return tokenizer.Tokenizer(folder, **options)

  return make


def control(token):
  return 300 + CONTROL.index(token)


def test_folder_encodes_whole_texts(checkpoint):
  tok = tokenizer.Tokenizer(checkpoint())
  text = "a text of more than eight tokens, and of less than none"
  ids = tok.encode(text)
  assert len(ids) > 12
  assert tok.decode(ids) == text
  assert len(tok.encode("a")) == 1


def sentence_piece(tok):
  """A tokenizer.json as those of Llama 2 and Gemma: spaces are signs."""
  normalizers, decoders = tokenizers.normalizers, tokenizers.decoders
  pieces = ["<unk>", "<eos>", "<bos>", "<pad>", "\u2581", *"helo", "\u2581h"]
  made = tokenizers.Tokenizer(
    tokenizers.models.BPE(
      {piece: i for i, piece in enumerate(pieces)},
      [("\u2581", "h")],
      unk_token="<unk>",
    )
  )
  made.add_special_tokens(pieces[:4])
  made.normalizer = normalizers.Sequence(
    [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
  )
  made.decoder = decoders.Replace("\u2581", " ")
  made.post_processor = tok.post_processor
  return made


# What transformers 5.24 writes beside "hello", with the tokenizer.json alone
# and with `add_bos_token` true or false in the tokenizer_config.json. It has an
# end token behind the text where the file says so; a prompt has none.
@pytest.mark.parametrize("family", [None, sentence_piece])
@pytest.mark.parametrize(
  ("written", "begins"),
  [(None, 0), ("<bos> $A", 1), ("<bos> $A <eos>", 1), ("$A <eos>", 0)],
)
def test_the_begin_token_is_written_once(tmp_path, family, written, begins):
  processors = tokenizers.processors
  tok = tokenizers.Tokenizer.from_str(
    tokenizer.BYTES.read_text(encoding="utf-8")
  )
  tok.add_special_tokens(["<bos>"])
  id_ = tok.token_to_id("<bos>") if family is None else 2
  if written:
    tok.post_processor = processors.Sequence(
      [
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(
          single=written, special_tokens=[("<bos>", id_), ("<eos>", 1)]
        ),
      ]
    )
  made = tok if family is None else family(tok)
  path = tmp_path / "tokenizer.json"
  path.write_text(made.to_str(), encoding="utf-8")
  text = tokenizer.Tokenizer(path)
  ids = text.encode("hello")
  assert id_ not in ids
  assert text.context_ids("hello") == [id_] * begins + ids
  twice = text.context_ids("<bos>hello")
  assert twice == text.encode("<bos>hello")
  assert twice.count(id_) == 1
  # In a prompt, and not in a completion or in what a chat template writes.
  encode = encoder.Encoder(text, "hello{prompt}")
  record = {"prompt": "", "completion": "hello"}
  assert encode.prompt(record).tolist() == [id_] * begins + ids
  assert encode.completion(record).tolist() == ids


END, EOT, EOM = "<|endoftext|>", "<|eot_id|>", "<|eom_id|>"


@pytest.mark.parametrize(
  ("contents", "expected"),
  [
    # The first that says something decides.
    ({"tokenizer_config": {"eos_token": EOT}}, [EOT]),
    ({"tokenizer_config": {"eos_token": {"content": EOT}}}, [EOT]),
    ({"generation_config": {"eos_token_id": 300}}, [END]),
    ({"config": {"eos_token_id": 300}}, ["<eos>"]),
    ({"tokenizer_config": {}, "config": {"eos_token_id": 300}}, [END]),
    (
      {
        "tokenizer_config": {"eos_token": None},
        "special_tokens_map": {"eos_token": EOT},
        "config": {"text_config": {"eos_token_id": [300]}},
      },
      [END],
    ),
    (
      {"tokenizer_config": {}, "special_tokens_map": {"eos_token": EOT}},
      [EOT],
    ),
    # Of several, first the end of a turn.
    ({"generation_config": {"eos_token_id": [300, 1]}}, ["<eos>", END]),
    (
      {
        "generation_config": {"eos_token_id": [300, 306, 307]},
        "tokenizer_config": {
          "eos_token": EOT,
          "chat_template": f"{EOM}{EOT}",
        },
      },
      [EOT, EOM, END],
    ),
    (
      {
        "generation_config": {"eos_token_id": [1, 309]},
        "chat_template": TURNS,
      },
      ["<end_of_turn>", "<eos>"],
    ),
  ],
)
def test_end_tokens_of_a_folder(checkpoint, contents, expected):
  tok = tokenizer.Tokenizer(checkpoint(**contents))
  ids = [1 if name == "<eos>" else control(name) for name in expected]
  assert list(tok.end_ids) == ids
  row = [*tok.encode("6"), *ids, *tok.encode("<|im_end|>")]
  assert tok.decode(row) == "6<|im_end|>"
  given = tokenizer.Tokenizer(checkpoint(), end_tokens=("<|im_end|>",))
  assert given.end_ids == (control("<|im_end|>"),)


@pytest.mark.parametrize(
  ("pad", "expected"),
  [
    ("<pad>", 0),
    ({"content": "<|endoftext|>"}, 300),
    (None, 1),
    ("[PAD]", 1),  # Not in the vocabulary.
    ("<end_of_turn>", 1),  # Beyond the rows of the model.
  ],
)
def test_pad_token_of_a_folder(checkpoint, pad, expected):
  folder = checkpoint(
    tokenizer_config={"pad_token": pad, "eos_token": "<eos>"},
    config={"vocab_size": 305},
  )
  tok = tokenizer.Tokenizer(folder)
  assert tok.pad_id == expected
  assert tok.decode([tok.pad_id, *tok.encode("6"), tok.pad_id]) == "6"
  assert tokenizer.Tokenizer(folder, pad_token="<think>").pad_id == 2


def test_size_is_that_of_the_model(checkpoint):
  assert tokenizer.Tokenizer(checkpoint()).vocab_size == SIZE
  tok = tokenizer.Tokenizer(checkpoint(config={"vocab_size": 1024}))
  assert tok.vocab_size == 1024
  # Rows without a token can be sampled.
  assert tok.decode([*tok.encode("a"), SIZE, 1023, *tok.encode("b")]) == "ab"
  nested = {"text_config": {"vocab_size": 305}}
  tok = tokenizer.Tokenizer(checkpoint(config=nested))
  assert tok.vocab_size == 305
  assert tok.encode("<|start_header_id|>") == [304]
  with pytest.raises(ValueError, match="'<end_of_turn>' with the id 309"):
    tok.encode("a <end_of_turn>")


def test_unusable_folders_are_refused(checkpoint, tmp_path):
  with pytest.raises(FileNotFoundError, match=r"no file .*tokenizer\.json"):
    tokenizer.Tokenizer(tmp_path)
  with pytest.raises(ValueError, match="names no end token; write eos_token_"):
    tokenizer.Tokenizer(checkpoint(tokenizer_config={}))
  folder = checkpoint()
  (folder / "config.json").write_text("{")
  with pytest.raises(ValueError, match=r"config\.json is not JSON"):
    tokenizer.Tokenizer(folder)
  (folder / "config.json").write_text("[]")
  with pytest.raises(ValueError, match=r"config\.json holds no object of keys"):
    tokenizer.Tokenizer(folder)


@pytest.mark.parametrize("end", [512, "<eos>", -1])
def test_end_tokens_that_cannot_be_sampled_are_refused(checkpoint, end):
  folder = checkpoint(
    config={"vocab_size": 512}, generation_config={"eos_token_id": [1, end]}
  )
  with pytest.raises(ValueError, match=rf"names {end!r} as an end .*below 512"):
    tokenizer.Tokenizer(folder)


@pytest.mark.parametrize(
  ("template", "end", "options", "expected"),
  [
    (
      CHATML,
      "<|im_end|>",
      {},
      "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2 + 2 < 5?"
      "<|im_end|>\n<|im_start|>assistant\n yes\n<|im_end|>\n<|im_start|>user"
      "\n2 + 2 < 5?<|im_end|>\n<|im_start|>assistant\n",
    ),
    (
      CHATML,
      "<|im_end|>",
      # Neither escaped nor sorted.
      {"enable_thinking": False, "tools": [{"name": "<é>", "a": 1}]},
      '<|im_start|>system\nBe brief.<|im_end|>\n{"name": "<é>", "a": 1}'
      "<|im_start|>user\n2 + 2 < 5?<|im_end|>\n<|im_start|>assistant\n yes\n"
      "<|im_end|>\n<|im_start|>user\n2 + 2 < 5?<|im_end|>\n<|im_start|>"
      "assistant\n<think>\n\n</think>\n\n",
    ),
    (
      HEADERS,
      "<|eot_id|>",
      {"date_string": "26 Jul 2024"},
      "<|begin|><|start_header_id|>system<|end_header_id|>\n\n26 Jul 2024"
      "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n2 + 2 < 5?"
      "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nyes<|eot_id|>"
      "<|start_header_id|>user<|end_header_id|>\n\n2 + 2 < 5?<|eot_id|>"
      "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    (
      TURNS,
      "<eos>",
      {},
      "<|begin|>\n<start_of_turn>user\n2 + 2 < 5?<end_of_turn>\n"
      "<start_of_turn>model\nyes<end_of_turn>\n<start_of_turn>user\n2 + 2 < 5?"
      "<end_of_turn>\n<start_of_turn>model\n",
    ),
    (
      BRACKETS,
      "<eos>",
      {},
      "<|begin|>[INST] 2 + 2 < 5? [/INST]  yes\n<eos>[INST] 2 + 2 < 5? [/INST]",
    ),
  ],
)
def test_chats_are_written_as_by_transformers(
  chat, template, end, options, expected
):
  tok = chat(template, end)
  messages = [ASK, REPLY, ASK]
  assert tok.chat_text(messages, **options) == expected
  ids = tok.chat_ids(messages, **options)
  assert ids == tok.encode(expected)
  named = [300 + i for i, token in enumerate(CONTROL) if token in expected]
  assert set(named) == {i for i in ids if i >= 300}
  # The last turn of the assistant is open, unless it is asked not to be.
  closed = tok.chat_text(messages, False, **options)
  assert expected.startswith(closed)
  assert (closed == expected) == (template == BRACKETS)


def test_keys_without_a_value_do_not_count(chat):
  tok = chat("{{ 'tool_calls' in messages[0] }}", "<eos>")
  assert tok.chat_text([{**REPLY, "tool_calls": None}]) == "False"
  assert tok.chat_text([{**REPLY, "tool_calls": []}]) == "True"


@pytest.mark.parametrize(
  ("fields", "expected"),
  [
    ({}, "|"),
    ({"reasoning": "a"}, "a|a"),
    ({"thinking": "a"}, "a|a"),
    ({"reasoning_content": "a", "reasoning": "b"}, "a|a"),
    ({"reasoning_content": None, "thinking": "b", "reasoning": "c"}, "b|b"),
    ({"reasoning_content": "a", "thinking": "b"}, "a|b"),
  ],
)
def test_reasoning_has_several_names(chat, fields, expected):
  # transformers 5.24 writes the same text.
  tok = chat(
    "{% for m in messages %}{{ m.reasoning_content }}|{{ m.thinking }}"
    "{% endfor %}",
    "<eos>",
  )
  assert tok.chat_text([REPLY | fields]) == expected


def test_templates_know_the_date(chat):
  tok = chat("{{ strftime_now('%Y') }}", "<eos>")
  assert 2024 < int(tok.chat_text([REPLY])) < 3000


def test_templates_know_tokens_by_all_their_names(checkpoint):
  folder = checkpoint(
    tokenizer_config={
      "add_bos_token": True,
      "eos_token": "<eos>",
      "extra_special_tokens": {"opening": "<|b|>"},
      "image_token": {"content": "<|i|>"},
    },
    chat_template="{{ opening }}{{ image_token }}{{ add_bos_token }}",
  )
  # transformers 5.24 writes the same text.
  assert tokenizer.Tokenizer(folder).chat_text([REPLY]) == "<|b|><|i|>"


def test_places_of_templates(checkpoint, chat):
  named = [
    {"name": "default", "template": "plain"},
    {"name": "tool_use", "template": "{{ tools | length }} tools"},
  ]
  tok = chat(named, "<eos>")
  assert tok.chat_text([REPLY]) == "plain"
  assert tok.chat_text([REPLY], tools=[{}]) == "1 tools"
  folder = checkpoint(
    tokenizer_config={"eos_token": "<eos>", "chat_template": "old"},
    chat_template="file",
  )
  (folder / "additional_chat_templates").mkdir()
  further = folder / "additional_chat_templates/tool_use.jinja"
  further.write_text(named[1]["template"], encoding="utf-8")
  tok = tokenizer.Tokenizer(folder)
  assert tok.chat_text([REPLY]) == "file"
  assert tok.chat_text([REPLY], tools=[{}]) == "1 tools"
  tok = tokenizer.Tokenizer(folder, chat_template="given")
  assert tok.chat_text([REPLY]) == "given"
  tok = tokenizer.Tokenizer(chat_template="{{ messages[0].content }}")
  assert tok.chat_text([REPLY]) == REPLY["content"]


def test_unusable_chats_are_refused(chat):
  with pytest.raises(ValueError, match="has no chat template; set config"):
    tokenizer.Tokenizer().chat_text([ASK])
  tok = chat(TURNS, "<eos>")
  with pytest.raises(ValueError, match=r"\['user', 'user'\]: Roles must alt"):
    tok.chat_ids([ASK, ASK])
  with pytest.raises(ValueError, match="never reads tools, so the model"):
    tok.chat_ids([ASK], tools=[{"type": "function"}])
  with pytest.raises(ValueError, match="Encountered unknown tag"):
    chat("{% nonsense %}", "<eos>").chat_text([ASK])
  # A template is somebody else's program.
  with pytest.raises(ValueError, match="unsafe"):
    chat("{{ ''.__class__.__mro__ }}", "<eos>").chat_text([ASK])
  with pytest.raises(ValueError, match="unsafe"):
    chat("{{ messages.append(1) }}", "<eos>").chat_text([ASK])


@pytest.mark.parametrize(
  ("template", "end"),
  [
    (CHATML, "<|im_end|>"),
    (HEADERS, "<|eot_id|>"),
    (TURNS, "<end_of_turn>"),
    (BRACKETS, "<eos>"),
  ],
)
@pytest.mark.parametrize("ended", [True, False])
def test_turns_are_added_after_sampled_ids(chat, files, template, end, ended):
  tok = chat(template, end)
  prompt = tok.chat_ids([ASK])
  # Sampled: not the tokens that the text would be split into.
  reply = [i for letter in "yes, it is" for i in tok.encode(letter)]
  assert reply != tok.encode("yes, it is")
  ids = [*prompt, *reply, *(tok.end_ids if ended else ())]
  messages = [ASK, {"role": "assistant", "content": "yes, it is"}]
  more = {"role": "user", "content": "and 3 + 3?"}
  longer = tok.extend(ids, messages, [more])
  assert longer[: len(ids)] == ids
  # The rest is what the whole conversation has there.
  whole = tok.chat_ids([*messages, more])
  rest = longer[len(prompt) + len(reply) :]
  assert rest == whole[-len(rest) :]
  assert rest[0] == tok.end_ids[0]
  text = tok.chat_text([*messages, more])
  if template != BRACKETS:  # Which writes a space before the reply.
    plain = tokenizers.Tokenizer.from_str(files)
    assert plain.decode(longer, skip_special_tokens=False) == text


def test_another_end_token_stays(chat):
  tok = chat(CHATML, "<|im_end|>", end_tokens=("<|im_end|>", END))
  ids = [*tok.chat_ids([ASK]), *tok.encode("yes"), control(END)]
  messages = [ASK, {"role": "assistant", "content": "yes"}]
  longer = tok.extend(ids, messages, [{"role": "tool", "content": "ok"}])
  assert longer[: len(ids)] == ids
  assert longer[len(ids) :] == tok.encode(
    "\n<|im_start|>user\n<tool_response>\nok\n</tool_response><|im_end|>\n"
    "<|im_start|>assistant\n"
  )


def test_rewritten_turns_are_refused(chat):
  tok = chat(FORGETFUL, "<|im_end|>")
  reply = {"role": "assistant", "content": "<think>hm</think>\nyes"}
  ids = tok.chat_ids([ASK, reply], add_generation_prompt=False)
  with pytest.raises(ValueError, match=r"rewrites earlier turns.*'<think>hm<"):
    tok.extend(ids, [ASK, reply], [ASK])
  # A tool's answer is no new question: the reasoning stays.
  tool = {"role": "tool", "content": "4"}
  longer = tok.extend(ids[:-1], [ASK, reply], [tool])
  assert longer == tok.chat_ids([ASK, reply, tool])
  with pytest.raises(ValueError, match="end with the role 'user'"):
    tok.extend(ids, [ASK], [ASK])
  with pytest.raises(ValueError, match="received 0 ids"):
    tok.extend([], [ASK, reply], [ASK])


@pytest.mark.parametrize(
  ("file", "content", "message"),
  [
    ("config.json", '{"text_config": 5}', r"text_config = 5"),
    ("config.json", "[" * 99_999, r"config\.json is not JSON"),
    ("tokenizer_config.json", b"\xff", r"tokenizer_config\.json is not JSON"),
    ("tokenizer_config.json", '{"eos_token": 7}', r"eos_token = 7"),
    ("tokenizer_config.json", '{"pad_token": {"a": 1}}', r"pad_token = {'a'"),
    ("tokenizer_config.json", '{"chat_template": 5}', r"chat_template = 5"),
    ("tokenizer_config.json", '{"chat_template": [5]}', r"chat_template = \[5"),
    (
      "tokenizer_config.json",
      '{"chat_template": [{"name": "x"}]}',
      r"chat_template = \[\{'name'",
    ),
    ("generation_config.json", '{"eos_token_id": {"a": 1}}', r"\{'a': 1\} as"),
    ("generation_config.json", '{"eos_token_id": []}', r"end_tokens is empty"),
    ("tokenizer.json", "[" * 99_999, r"is not a tokenizer\.json"),
    ("tokenizer.json", b"\xff", r"is not a tokenizer\.json"),
  ],
)
def test_files_of_another_kind_are_refused(tmp_path, file, content, message):
  path = tmp_path / "tokenizer.json"
  path.write_bytes(tokenizer.GSM8K_BPE.read_bytes())
  (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<eos>"}')
  if isinstance(content, str):
    content = content.encode()
  (tmp_path / file).write_bytes(content)
  with pytest.raises(ValueError, match=message):
    tokenizer.Tokenizer(tmp_path)


def test_a_pattern_that_is_too_much_is_an_error(tmp_path):
  spec = json.loads(tokenizer.GSM8K_BPE.read_text(encoding="utf-8"))
  spec["pre_tokenizer"] = {
    "type": "Split",
    "pattern": {"Regex": "(a+)+$"},
    "behavior": "Isolated",
    "invert": False,
  }
  path = tmp_path / "tokenizer.json"
  path.write_text(json.dumps(spec))
  text = tokenizer.Tokenizer(path)
  with pytest.raises(ValueError, match=r"cannot encode the text 'aaa.*: Onig"):
    text.encode("a" * 40 + "b")


DOUBLED = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}


@pytest.mark.parametrize(
  ("part", "step"),
  [
    ("normalizer", {"type": "Sequence", "normalizers": [DOUBLED] * 40}),
    ("normalizer", {**DOUBLED, "content": "a" * 10**7}),
    (
      "normalizer",
      {**DOUBLED, "pattern": {"Regex": ""}, "content": "b" * 9**7},
    ),
    ("decoder", {"type": "Sequence", "decoders": [DOUBLED] * 40}),
  ],
)
def test_texts_are_not_multiplied_without_end(tmp_path, part, step):
  spec = json.loads(tokenizer.GSM8K_BPE.read_text(encoding="utf-8"))
  ids = tokenizer.Tokenizer().encode("banana")
  path = tmp_path / "tokenizer.json"
  path.write_text(json.dumps({**spec, part: step}))
  text = tokenizer.Tokenizer(path)
  with pytest.raises(ValueError, match=r"tokenizer\.json makes .* 'Replace'"):
    text.decode(ids) if part == "decoder" else text.encode("banana")


@pytest.mark.parametrize(
  "template",
  [
    "{% for m in messages %}{% for part in m.content %}"
    "{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}"
    "{% endfor %}<|assistant|>",
    "{% for m in messages %}<{{ m.role }}>{{ m.content[0].text }}{% endfor %}",
    "{{ messages[0].content[:4] }}",
  ],
)
def test_a_template_that_leaves_the_question_out_is_refused(chat, template):
  tok = chat(template, "<eos>")
  message = r"writes nothing of the user's message.*template to a text"
  with pytest.raises(ValueError, match=message):
    encoder.Encoder(tok, "chat").prompt({"prompt": "2 + 2?"})
  with pytest.raises(ValueError, match=message):
    tok.chat_text([{"role": "system", "content": "x"}, ASK])
  parts = [{"type": "text", "text": "2 + 2?"}]
  if "part" in template:
    written = tok.chat_text([{"role": "user", "content": parts}])
    assert written == "2 + 2?<|assistant|>"


# --- Observations -------------------------------------------------------------


def test_special_tokens_in_what_a_tool_says_are_characters():
  tok = tokenizer.Tokenizer()
  text = "a<eos> <pad>1</think>"
  ids = tok.observation_ids(text, 100)
  assert not {*range(6)} & set(ids)
  assert tok.decode(ids) == text
  assert tok.encode("<eos>") == [1]  # Those of prompts are what they were.


def test_a_chat_around_what_a_tool_says_is_meant_and_is_not_cut():
  tok = tokenizer.Tokenizer()
  said = ("<eos><answer>", "one two three " * 50 + "<eos>", "</answer>")
  ids = tok.observation_ids(said, 12)
  assert len(ids) == 12
  assert (ids[:2], ids[-1]) == ([1, 4], 5)
  assert ids[2:-1] == tok.encode(said[1])[:9]
  assert tok.observation_ids(("<eos>", "", ""), 1) == [1]
  for before, max_len in (("<eos><eos>", 1), ("x" * 10**7, 4)):
    with pytest.raises(ValueError, match="has no room in"):
      tok.observation_ids((before, "", ""), max_len)


MARKUP = ["", " ", "<eos>\n ", " .<answer>", "\n<eos><pad>x\n"]


@pytest.mark.slow
@settings(deadline=None)  # The first text is slow.
@given(
  first=st.sampled_from(MARKUP),
  rest=st.lists(
    st.tuples(
      st.lists(st.sampled_from(["the", *" \n.<7é"]), max_size=6).map("".join),
      st.sampled_from(MARKUP),
    ),
    min_size=1,
    max_size=3,
  ),
)
def test_what_is_not_cut_has_the_ids_of_the_whole_conversation(first, rest):
  tok = tokenizer.Tokenizer()
  parts = (first, *itertools.chain(*rest))
  assert tok.observation_ids(parts, 200) == tok.encode("".join(parts))


def test_a_sign_of_markup_may_be_one_token_with_a_text():
  tok = tokenizer.Tokenizer()
  said = ("<eos> ", "the", "<answer>")
  together, apart = tok.encode("<eos> the<answer>"), tok.encode("the")
  assert len(together) == 3
  assert tok.observation_ids(said, 3) == together
  # Where there is no room, the text is cut, and the markup is not.
  said = ("<eos> ", "the" + "1" * 9, "<answer>")
  space = tok.encode(" ")
  assert tok.observation_ids(said, 5) == [1, *space, *apart, 4]


def test_of_several_texts_the_longest_are_cut():
  tok = tokenizer.Tokenizer()
  said = ("<eos>", "7", "<think>", "1" * 9, "</think>", "2" * 999, "<pad>")
  ids = tok.observation_ids(said, 15)
  assert tok.exact_text(ids) == (
    "<eos>7<think>" + "1" * 5 + "</think>" + "2" * 5 + "<pad>"
  )
  assert tok.observation_ids(("", "12", "", "3", ""), 2) == tok.encode("13")


@pytest.mark.parametrize("said", [(), ("a",), ("a", "b"), ("a", "b", "c", "d")])
def test_markup_stands_at_both_ends(said):
  with pytest.raises(ValueError, match=f"received {len(said)} parts; needs"):
    tokenizer.Tokenizer().observation_ids(said, 9)


@pytest.mark.parametrize("piece", ["word ", "7", " ", "é", "ab\n", "\u4e2d"])
@pytest.mark.parametrize("max_len", [0, 1, 7, 64])
def test_what_is_cut_away_does_not_change_the_tokens_before(piece, max_len):
  tok = tokenizer.Tokenizer()
  text = piece * 3000
  assert tok.observation_ids(text, max_len) == tok.encode(text)[:max_len]


def test_megabytes_take_the_time_of_what_is_kept(monkeypatch):
  tok = tokenizer.Tokenizer()
  read = []

  class Spy:
    def encode(self, text, **options):
      read.append(len(text))
      return tok._tokenizer.encode(text, **options)

  monkeypatch.setitem(tok.__dict__, "_plain", Spy())
  assert len(tok.observation_ids("some words " * 10**6, 100)) == 100
  assert len(tok.observation_ids(" " * 10**7, 2)) <= 2
  assert max(read) <= 1600


def test_half_a_surrogate_pair_can_be_read():
  tok = tokenizer.Tokenizer()
  ids = tok.observation_ids("a\ud800b\ud83d\ude00", 100)
  assert tok.decode(ids) == "a\ufffdb\U0001f600"


def test_what_cannot_be_written_without_meaning_it_is_refused(tmp_path):
  words = {"<eos>": 0, "<pad>": 1, "<unk>": 2, "a": 3}
  model = tokenizers.models.WordLevel(words, unk_token="<unk>")
  file = tokenizers.Tokenizer(model)
  file.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
  file.add_special_tokens(["<eos>", "<pad>", "<unk>"])
  file.save(str(tmp_path / "tokenizer.json"))
  tok = tokenizer.Tokenizer(tmp_path / "tokenizer.json")
  assert tok.observation_ids("a é", 9) == [3, 2]
  with pytest.raises(ValueError, match="the text has '<eos>'"):
    tok.observation_ids("a <eos>", 9)
  assert tok.observation_ids("a <eos>", 1) == [3]


def test_observations_of_an_alphabet():
  task = observations.TaskTokenizer(copy.make())
  assert task.observation_ids("<obs>12</obs>", 3) == vocab.encode("<obs>12")
  assert task.observation_ids("1" * 15 + "</answer>" * 99, 1) == [
    vocab.DIGIT_0 + 1
  ]
  said = ("<eos><obs>", "1" * 10**6, "</obs>")
  assert task.observation_ids(said, 5) == vocab.encode("<eos><obs>11</obs>")
  said = ("<obs>", "12", "</obs><obs>", "3" * 99, "</obs>")
  assert task.observation_ids(said, 8) == vocab.encode(
    "<obs>12</obs><obs>33</obs>"
  )
  for text in ("<eos>", "1<pad>", "<bos>"):
    with pytest.raises(ValueError, match=f"the text has '{text[-5:]}'"):
      task.observation_ids(text, 9)
  with pytest.raises(ValueError, match="not tokens"):
    task.observation_ids("\ud800", 9)


def test_every_byte_is_a_token_of_the_smallest_tokenizer():
  tok = tokenizer.Tokenizer(tokenizer.BYTES)
  text = "Spell <answer>é\n\N{GRINNING FACE}</answer>"
  ids = tok.encode(text)
  inside = text.removeprefix("Spell <answer>").removesuffix("</answer>")
  assert len(ids) == len("Spell ") + 1 + len(inside.encode()) + 1
  assert tok.decode(ids) == text
  assert tok.vocab_size == 256 + len(tokenizer.SPECIAL_TOKENS)


def test_tokens_have_text_where_the_begin_token_has_none():
  made = copy.make()
  silent = dataclasses.replace(
    made,
    decode=lambda ids: made.decode([i for i in ids if i != made.bos_id]),
  )
  tok = observations.TaskTokenizer(silent)
  ids = made.encode("ab")
  assert [tok.exact_text([i]) for i in ids] == ["a", "b"]
