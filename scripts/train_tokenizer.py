"""Trains the small tokenizer of the GSM8K configs.

  TFDS_DATA_DIR=... python scripts/train_tokenizer.py \
      --output=grpo_jax/data/assets/gsm8k_bpe_2048.json

The same data and vocabulary size give the same file.
"""

import pathlib

from absl import app, flags, logging

from grpo_jax.data import sources, tokenizer

_OUTPUT = flags.DEFINE_string("output", None, "File to write.", required=True)
_VOCAB_SIZE = flags.DEFINE_integer("vocab_size", 2048, "Number of tokens.")
_TFDS = flags.DEFINE_string("tfds", "gsm8k", "TFDS dataset; its train split.")


def main(argv):
  del argv
  source = sources.TfdsSource(_TFDS.value, "train")
  text = tokenizer.train(source, _VOCAB_SIZE.value)
  output = pathlib.Path(_OUTPUT.value)
  output.write_text(text, encoding="utf-8")
  prompts = [source[i]["prompt"] for i in range(len(source))]
  tok = tokenizer.Tokenizer(output)
  logging.info(
    "%s: %d tokens, %d bytes; %.2f characters of a prompt in a token",
    output,
    tok.vocab_size,
    output.stat().st_size,
    sum(map(len, prompts)) / sum(len(tok.encode(p)) for p in prompts),
  )


if __name__ == "__main__":
  app.run(main)
