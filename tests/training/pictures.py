"""Files of a run whose prompts show images: pictures, records, a tokenizer."""

import json
import pathlib

import tokenizers

from grpo_jax.settings import config as config_lib
from tests.data.images import pictures
from tests.experiments import tiny_config

ROOT = pathlib.Path(__file__).parents[1]
PROCESSORS = ROOT / "data" / "images" / "processors"
CHECKPOINTS = ROOT / "data" / "checkpoints"
# The first ids are those of the tiny checkpoints with towers.
TOKENS = (
  *("<pad>", "<bos>", "<eos>", "<|vision_start|>", "<|vision_end|>"),
  *("<|image_pad|>", "<|video_pad|>", "<image>", "<fake_token_around_image>"),
  *("<global-img>", "<unk>"),
)
LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz<>/?.-"
BROKEN = ("gone.png", "truncated.png", "bomb.png", "text.png")


def id_of(token):
  """The id of one of `TOKENS`."""
  return TOKENS.index(token)


def write_tokenizer(folder):
  """Writes a tokenizer with `TOKENS` and all letters; returns its path."""
  vocab = {token: i for i, token in enumerate((*TOKENS, *LETTERS))}
  made = tokenizers.Tokenizer(
    tokenizers.models.BPE(vocab=vocab, merges=[], unk_token="<unk>")
  )
  made.decoder = tokenizers.decoders.Fuse()
  made.add_special_tokens(list(TOKENS))
  path = folder / "tokenizer.json"
  made.save(str(path))
  return path


def write_records(folder, count=8, broken=BROKEN):
  """Writes records, the last of which have images that cannot be shown."""
  rows = []
  for number in range(count):
    pictures.picture(8, 12 + 4 * (number % 3), number).save(
      folder / f"{number}.png"
    )
    rows.append(
      {
        "prompt": "<image>?",
        "answer": str(number % 3),
        "completion": f"<answer>{number % 3}</answer>",
        "picture": f"{number}.png",
      }
    )
  for name in broken:
    if name in pictures.BROKEN:
      (folder / name).write_bytes(pictures.BROKEN[name])
    rows.append({**rows[0], "picture": name})
  path = folder / "data.jsonl"
  path.write_text("\n".join(map(json.dumps, rows)))
  # Of an evaluation none is left out.
  (folder / "eval.jsonl").write_text("\n".join(map(json.dumps, rows[:count])))
  return path


def set_data(config, folder):
  """Sets records with images, which are in the folder.

  Qwen's processor makes one or two tokens of an image, of 4 patches each.
  """
  config.data.source = "jsonl"
  config.data.train_path = str(folder / "data.jsonl")
  config.data.eval_path = str(folder / "eval.jsonl")
  config.data.tokenizer = str(folder / "tokenizer.json")
  config.data.images = ("picture",)
  config.data.image_processor = str(PROCESSORS / "qwen2_5_vl")
  config.data.image_options = {"min_pixels": 64, "max_pixels": 256}
  config.data.max_images = 1
  config.data.max_patches = 16
  config.data.image_workers = 1
  config.data.max_prompt_len = 24
  config.sampling.max_new_tokens = 8
  config.rewards.functions = ("counting",)
  config.rewards.num_workers = 1


def make_config(folder, **changes):
  """Makes the settings of a run on records in a folder, with Qwen's images."""
  write_records(folder)
  write_tokenizer(folder)
  config = config_lib.default_config()
  set_data(config, folder)
  return tiny_config.change(config, changes)
