"""The bytes of tokens, joined, are what the decoder writes."""

import pathlib
import random

import pytest
import tokenizers
from tokenizers import decoders, models

from grpo_jax.data import sources, teacher, tokenizer

SAMPLE = pathlib.Path(__file__).parent / "gsm8k_sample"
TEXTS = ["", "  spaces\n\ttabs ", "π≈3.14 😀 \x00", "x\u3000數 ña", "<answer>é"]


def test_texts_of_the_shipped_tokenizer():
  tok = tokenizer.Tokenizer()
  tokens = tok.token_bytes()
  source = sources.JsonlSource(SAMPLE / "test.jsonl", format="gsm8k")
  taught = teacher.ThinkAnswerSource(source, 0, 0.0)
  texts = [taught[i][f] for i in range(64) for f in ("prompt", "completion")]
  for text in [*TEXTS, *texts]:
    ids = [*tok.encode(text), *tok.end_ids, tok.pad_id]
    assert b"".join(tokens[x] for x in ids) == tok.decode(ids).encode()
  assert len(tokens) == tok.vocab_size
  assert tok.stripped_spaces() == 0
  assert tokens[tok.pad_id] == tokens[tok.end_ids[0]] == b""
  assert b"<answer>" in tokens


PLAIN = ("<unk>", "<s>", "</s>", "▁", "▁▁", "a", "b", "▁a", "ab", "1", "é")
MERGES = [("▁", "a"), ("a", "b"), ("▁", "▁")]


def sentence_piece(decoder, with_bytes=True):
  """A model like SentencePiece's, and a space for each ▁."""
  names = [*PLAIN, *(f"<0x{k:02X}>" for k in range(256 * with_bytes))]
  model = models.BPE(
    vocab={name: k for k, name in enumerate(names)},
    merges=MERGES,
    unk_token="<unk>",
    byte_fallback=with_bytes,
  )
  made = tokenizers.Tokenizer(model)
  made.decoder = decoder
  made.normalizer = tokenizers.normalizers.Replace(" ", "▁")
  return made


LLAMA = [
  decoders.Replace("▁", " "),
  decoders.ByteFallback(),
  decoders.Fuse(),
  decoders.Strip(" ", 1, 0),
]


def checkpoint(made, tmp_path):
  path = tmp_path / "tokenizer.json"
  path.write_text(made.to_str(), encoding="utf-8")
  return tokenizer.Tokenizer(path, pad_token="<s>", end_tokens=("</s>",))


@pytest.mark.parametrize(
  ("decoder", "with_bytes", "strips"),
  [
    (decoders.Sequence(LLAMA), True, 1),
    (decoders.Sequence(LLAMA[:3]), True, 0),
    (decoders.Metaspace(), False, 1),
    (decoders.Metaspace(prepend_scheme="never"), False, 0),
  ],
  ids=["llama", "gemma", "metaspace", "metaspace never"],
)
def test_sentence_piece(decoder, with_bytes, strips, tmp_path):
  tok = checkpoint(sentence_piece(decoder, with_bytes), tmp_path)
  tokens = tok.token_bytes()
  assert tok.stripped_spaces() == strips
  rng = random.Random(0)
  words = ["a", " a", "ab", "1", "é", "ba", *["数", "😀\n"] * with_bytes]
  for _ in range(50):
    text = "".join(rng.choices(words, k=6))
    ids = tok.encode(text)
    data = b"".join(tokens[x] for x in ids)
    spaces = len(data) - len(data.lstrip(b" "))
    assert data[min(spaces, strips) :] == tok.decode(ids).encode()
  assert tokens[PLAIN.index("▁a")] == b" a"
  assert tokens[PLAIN.index("</s>")] == b""
  if with_bytes:
    assert tokens[len(PLAIN) + 0xE6] == b"\xe6"


def test_decoders_that_join_no_bytes_are_refused(tmp_path):
  made = sentence_piece(decoders.CTC(pad_token="1"), False)
  with pytest.raises(ValueError, match=r"token_bytes: .* Score on the host"):
    checkpoint(made, tmp_path).token_bytes()
  words = models.WordPiece(
    {x: k for k, x in enumerate(("<unk>", "<s>", "</s>", "a", "##b"))},
    unk_token="<unk>",
  )
  made = tokenizers.Tokenizer(words)
  made.decoder = decoders.WordPiece()
  with pytest.raises(ValueError, match=r"token_bytes: .* Score on the host"):
    checkpoint(made, tmp_path).token_bytes()


def test_ids_beyond_the_vocabulary_write_nothing():
  made = sentence_piece(decoders.Sequence(LLAMA))
  tokens = tokenizer.token_bytes(made, made.get_vocab_size() + 3, ())
  assert tokens[-3:] == [b""] * 3


def test_the_byte_alphabet_is_that_of_byte_level_tokens():
  alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
  assert {*alphabet} == {*tokenizer.byte_alphabet()}
  decoder = decoders.ByteLevel()
  for character, byte in tokenizer.byte_alphabet().items():
    if byte < 128:
      assert decoder.decode([character]) == chr(byte)
