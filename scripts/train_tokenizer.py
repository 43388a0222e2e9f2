"""Trains the small byte-level BPE tokenizer of the GSM8K configs.

  TFDS_DATA_DIR=... python scripts/train_tokenizer.py \
      --output=grpo_jax/data/assets/gsm8k_bpe_2048.json

The same data and vocabulary size give the same file. The six special tokens
get ids 0 to 5; digits are split one by one, so that numbers of any length are
made of the same ten tokens.
"""

import json
import pathlib

import tokenizers
from absl import app, flags, logging
from tokenizers import decoders, models, pre_tokenizers, trainers

from grpo_jax.data import sources

_OUTPUT = flags.DEFINE_string("output", None, "File to write.", required=True)
_VOCAB_SIZE = flags.DEFINE_integer("vocab_size", 2048, "Number of tokens.")
_TFDS = flags.DEFINE_string("tfds", "gsm8k", "TFDS dataset; its train split.")

SPECIAL_TOKENS = [
    "<pad>",
    "<eos>",
    "<think>",
    "</think>",
    "<answer>",
    "</answer>",
]


def train(texts: list[str], vocab_size: int) -> tokenizers.Tokenizer:
  """Returns a byte-level BPE tokenizer of at most `vocab_size` tokens."""
  tokenizer = tokenizers.Tokenizer(models.BPE())
  tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
      pre_tokenizers.Digits(individual_digits=True),
      pre_tokenizers.ByteLevel(add_prefix_space=False),
  ])
  tokenizer.decoder = decoders.ByteLevel()
  trainer = trainers.BpeTrainer(
      vocab_size=vocab_size,
      special_tokens=SPECIAL_TOKENS,
      # All 256 bytes, so that any text can be encoded without an unknown token.
      initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
      show_progress=False,
  )
  tokenizer.train_from_iterator(texts, trainer)
  return tokenizer


def main(argv):
  del argv
  source = sources.TfdsSource(_TFDS.value, "train")
  texts = []
  for i in range(len(source)):
    record = source[i]
    texts += [record["prompt"], record["completion"], record["answer"]]
  tokenizer = train(texts, _VOCAB_SIZE.value)
  # Through json for a compact file.
  compact = json.dumps(
      json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":")
  )
  output = pathlib.Path(_OUTPUT.value)
  output.write_text(compact + "\n", encoding="utf-8")
  num_tokens = sum(len(e.ids) for e in tokenizer.encode_batch(texts))
  logging.info(
      "%s: %d tokens, %d bytes; %.2f characters a token on its own data",
      output,
      tokenizer.get_vocab_size(),
      output.stat().st_size,
      sum(map(len, texts)) / num_tokens,
  )


if __name__ == "__main__":
  app.run(main)
