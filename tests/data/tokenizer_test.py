"""The shipped tokenizer, the training of such files, and toy alphabets."""

import os
import pathlib

import pytest

from grpo_jax.data import sources, teacher, tokenizer
from grpo_jax.tasks import copy

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
  tok = tokenizer.TaskTokenizer(task)
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
