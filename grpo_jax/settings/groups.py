"""Settings of data, sampling, evaluation, checkpoints, logs and hosts.

Each group is a frozen dataclass that checks its own numbers and names. Images
in prompts are a part of the settings of data, and `parts` checks the entries of
`config.data.mixture`. `phase.py` has the settings of training, and `config.py`
puts all groups together.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import pathlib
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from grpo_jax import ranges
from grpo_jax.models.architecture import SAMPLED_DTYPES

if TYPE_CHECKING:
  from grpo_jax.rollout import sampling

# Settings that only prompts with images read.
_OF_IMAGES = (
  *("image_folder", "image_processor", "image_options", "max_images"),
  "max_patches",
)


class Switched:
  """A group of settings of which one, the switch, says which others it has.

  An object has every field of its class, and a config those that are read.

  Attributes:
    switch: Name of that setting.
    values: Values of the switch, if each has settings of its own. Empty: the
      group has the other settings if the switch is neither None nor empty.
  """

  switch: ClassVar[str]
  values: ClassVar[Collection[str]] = ()

  @classmethod
  def usual(cls, value: Any) -> Any:
    """Returns an object with the defaults for a value of the switch."""
    del value
    return cls()

  @classmethod
  def read_with(cls, value: Any) -> tuple[str, ...]:
    """Returns the names of the settings that a value of the switch has."""
    names = tuple(x.name for x in dataclasses.fields(cls.usual(value)))
    return names if value or cls.values else (cls.switch,)

  @classmethod
  def hint(cls, name: str, value: Any) -> str:
    """Says with which values of the switch the group has a setting."""
    if not cls.values:
      is_field = name in cls.read_with(True)
      return f" It has {name} if {cls.switch} is set." if is_field else ""
    having = [repr(x) for x in cls.values if name in cls.read_with(x)]
    if not having:
      return ""
    return (
      f" It has {name} with {cls.switch}={' or '.join(having)}, and here"
      f" {cls.switch}={value!r}."
    )

  def check_unread(self, where: str) -> None:
    """Raises ValueError if a setting is changed that is not read."""
    value = getattr(self, self.switch)
    usual, read = self.usual(value), self.read_with(value)
    for field in dataclasses.fields(usual):
      setting = getattr(self, field.name)
      if field.name not in read and setting != getattr(usual, field.name):
        raise ValueError(
          f"{where}.{field.name}={setting!r} is not read with"
          f" {where}.{self.switch}={value!r}.{self.hint(field.name, value)}"
          f" Leave it out, or set {where}.{self.switch}."
        )


@dataclasses.dataclass(frozen=True)
class ImageData:
  """The images of prompts; a part of the settings of data.

  Attributes:
    images: Fields of the rows that have the images of a prompt: each an image,
      a list of images, or null (docs/images.md). Empty: prompts are text alone.
    image_folder: Folder of images that are given by paths, which must not leave
      it; empty: the folder of `train_path`.
    image_processor: Folder of a checkpoint whose processor cuts images into
      patches; empty: that of `model.checkpoint`.
    image_options: Settings that replace those of the processor's file:
      "min_pixels" and "max_pixels", or "longest_edge", "tile" and "splits".
    max_images: Most images of a prompt; a tile counts as one.
    max_patches: Most patches of a prompt. Prompts with more patches, or with
      broken images, are left out and counted.
    image_workers: Number of processes that decode images.
  """

  images: tuple[str, ...] = ()
  image_folder: str = ""
  image_processor: str = ""
  image_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  max_images: int | None = ranges.SIZE.field(None)
  max_patches: int | None = ranges.SLOTS.field(None)
  image_workers: int = ranges.SIZE.field(2)

  def check_images(self) -> None:
    """Raises ValueError if these settings do not fit together."""
    if not self.images:
      usual = ImageData()
      for name in _OF_IMAGES:
        value = getattr(self, name)
        if value != getattr(usual, name):
          raise ValueError(
            f"config.data.{name}={value!r} is for prompts with images; name"
            " their fields in config.data.images, or leave it as it is."
          )
      return
    for name in ("max_images", "max_patches"):
      if getattr(self, name) is None:
        raise ValueError(
          f"config.data.images={self.images!r} needs config.data.{name}: arrays"
          " have room for as many in each prompt."
        )
    if len({*self.images}) < len(self.images):
      raise ValueError(
        f"config.data.images={self.images!r} has a field twice; name each once."
      )


def folder(data: Any) -> str:
  """The folder in which paths of images begin; "" if no paths are read.

  Args:
    data: A `DataConfig`.

  Raises:
    FileNotFoundError: There is no such folder.
    ValueError: The folder is in a bucket; or training and held-out records are
      in two folders, and `image_folder` is not set.
  """
  if data.image_folder:
    if "://" in data.image_folder:
      raise ValueError(
        f"config.data.image_folder={data.image_folder!r} is not on a disk of"
        " this machine, where processes read images; copy it here, or put the"
        " bytes of images into the records."
      )
    if not pathlib.Path(data.image_folder).is_dir():
      raise FileNotFoundError(
        f"config.data.image_folder={data.image_folder!r}: there is no such"
        " folder."
      )
    return os.path.abspath(data.image_folder)
  is_local = data.train_path and "://" not in data.train_path
  if data.source not in ("jsonl", "datasets") or not is_local:
    return ""
  folders = {
    os.path.abspath(pathlib.Path(path).parent)
    for path in (data.train_path, data.eval_path or data.train_path)
  }
  if len(folders) > 1:
    raise ValueError(
      f"config.data.train_path={data.train_path!r} and"
      f" config.data.eval_path={data.eval_path!r} lie in two folders; set"
      " config.data.image_folder to the one that paths of images begin in."
    )
  return folders.pop()


# Settings of data that each part has for itself; parts share all others.
OWN = (
  *("source", "name", "task_options", "train_path", "eval_path", "format"),
  *("fields", "train_split", "eval_split", "streaming", "separator"),
  *("datasets", "quarantine", "drop_tag_probability", "rejected_share"),
)


class MixturePart(NamedTuple):
  """An entry of `config.data.mixture`, checked.

  Attributes:
    data: Settings of its records, a `DataConfig`.
    weight: Weight with which its training prompts are drawn.
  """

  data: Any
  weight: float


def parts(data: Any) -> dict[str, MixturePart]:
  """The parts of a `DataConfig` whose source is "mixture", by domain.

  Raises:
    TypeError: A setting of a part has another type than that of the data.
    ValueError: An entry is not a part, two have the same name, or parts of text
      and of ids are mixed.
  """
  if not data.mixture:
    raise ValueError(
      "config.data.source='mixture' and config.data.mixture is empty; name its"
      " parts, as ({'name': 'add'}, {'name': 'sort', 'weight': 2.0})."
    )
  by_domain: dict[str, MixturePart] = {}
  for place, entry in enumerate(data.mixture):
    where = f"config.data.mixture[{place}]"
    name, part = _part(where, data, entry)
    if name in by_domain:
      raise ValueError(
        f"{where}: two parts are the domain {name!r}; give each a 'domain' of"
        " its own."
      )
    by_domain[name] = part
  if not any(part.weight for part in by_domain.values()):
    raise ValueError("config.data.mixture: all weights are 0.")
  kinds = {part.data.source == "task" for part in by_domain.values()}
  if len(kinds) > 1:
    raise ValueError(
      "config.data.mixture: some parts are tasks, which are made of ids, and"
      " some are text; a policy has one tokenizer. Take one kind."
    )
  return by_domain


def _part(
  where: str, data: Any, entry: Mapping[str, Any]
) -> tuple[str, MixturePart]:
  if not hasattr(entry, "items"):
    raise TypeError(
      f"{where} is {entry!r:.60}; needs a group, as {{'name': 'add'}}."
    )
  settings = dict(entry.items())
  domain = settings.pop("domain", None)
  weight = settings.pop("weight", 1.0)
  if type(weight) not in (int, float) or not 0 <= weight < 1e9:
    raise ValueError(
      f"{where} has the weight {weight!r}; needs a number from 0 on."
    )
  if unknown := settings.keys() - {*OWN}:
    raise ValueError(
      f"{where} has {sorted(unknown)}; it may have domain, weight and"
      f" {', '.join(OWN)}. All else is set once, in config.data."
    )
  if settings.get("source") == "environment":
    raise ValueError(
      f"{where} has the prompts of an environment, which answers all prompts of"
      " a run; set config.data.source='environment' instead."
    )
  if settings.get("source") == "mixture":
    raise ValueError(f"{where} is a mixture itself; name its parts instead.")
  usual = type(data)()
  for name, value in settings.items():
    default = getattr(usual, name)
    is_group = isinstance(default, Mapping) and hasattr(value, "items")
    is_whole = isinstance(default, float) and type(value) is int
    if not (isinstance(value, type(default)) or is_group or is_whole):
      raise TypeError(
        f"{where}: {name} is {value!r:.60}; it needs a"
        f" {type(default).__name__}, as {default!r}."
      )
  part_data = dataclasses.replace(
    data, **{"source": "task", "mixture": (), **settings}
  )
  name = domain if domain is not None else _name(part_data)
  if not isinstance(name, str) or not name:
    raise ValueError(f"{where} has the domain {name!r:.60}; needs a text.")
  return name, MixturePart(part_data, float(weight))


def _name(data: Any) -> str:
  """The default name of a part."""
  if data.source in ("jsonl", "datasets", "text") and data.train_path:
    return pathlib.PurePosixPath(data.train_path).stem
  if data.source == "reasoning_gym":
    return "_".join(str(entry.get("name")) for entry in data.datasets)
  return data.name


# Seconds. The operating system counts waiting times in up to 2³¹ milliseconds.
SECONDS = ranges.Range(1e-3, 1e6)
MAX_TIMEOUT_S = 200  # Less than JAX's own limit of a heartbeat.
# Logits are divided by the temperature, and must stay finite.
TEMPERATURE = ranges.Range(1e-6, ranges.MAX_FLOAT)
_SOME = ranges.Range(ranges.MIN_FLOAT, 1)  # A share above 0.
# Formats of a frozen model: its own dtype; all of it in bfloat16; or the
# kernels of its layers in 8 bits, and the rest in bfloat16.
TRACKERS = ("tensorboard", "wandb", "trackio")
STORAGE = ("own", "bfloat16", "int8")
MIX_ANCHORS = ("argmax", "sampled")
MIX_NEIGHBOURS = ("nearest", "random")


def one_of(name: str, value: str, names: tuple[str, ...]) -> None:
  """Raises ValueError unless a value is one of the known choices."""
  if value not in names:
    raise ValueError(
      f"config: {name} got {value!r:.80}{nearest(value, names)}; choose one of"
      f" {', '.join(names)}."
    )


def nearest(name: str, names: Iterable[str]) -> str:
  """A hint for a message: the known name that is most similar."""
  matches = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
  return f" (did you mean {matches[0]!r}?)" if matches else ""


SOURCES = (
  *("task", "tfds", "jsonl", "datasets", "text", "reasoning_gym"),
  *("environment", "mixture"),
)
# Settings that only some sources read, with their defaults.
_OF_SOURCES: dict[str, tuple[Any, tuple[str, ...]]] = {
  "train_path": ("", ("jsonl", "datasets", "text")),
  "eval_path": ("", ("jsonl", "datasets", "text")),
  "format": ("", ("jsonl", "datasets", "tfds", "mixture")),
  "train_split": ("train", ("tfds", "datasets")),
  "eval_split": ("test", ("tfds", "datasets")),
  "fields": ({}, ("tfds", "jsonl", "datasets")),
  "streaming": (False, ("jsonl", "datasets")),
  "separator": ("\n", ("text",)),
  "datasets": ((), ("reasoning_gym",)),
  "quarantine": ("", ("tfds", "jsonl", "datasets", "text")),
  "mixture": ((), ("mixture",)),
  "domain_key": ("", ("tfds", "jsonl", "datasets", "mixture")),
  "domains": ((), ("tfds", "jsonl", "datasets", "reasoning_gym")),
  "images": ((), ("tfds", "jsonl", "datasets", "mixture")),
}


@dataclasses.dataclass(frozen=True)
class DataConfig(ImageData):
  """The source of prompts and their encoding.

  Attributes:
    source: "task" (synthetic, `tasks/`), "tfds", "jsonl", "datasets" (the
      package of Hugging Face: Parquet, CSV, Arrow, or a name on its hub),
      "text" (prompts alone), "reasoning_gym", "environment" (first observations
      of `environment`, or the data set of one of the package verifiers), or
      "mixture" of several of the others.
    name: Task name, or the import path of a task ("my_pkg.tasks:make"), or TFDS
      dataset name ("gsm8k"). Of the source "datasets" without `train_path` a
      name on the hub, "owner/name:subset@revision", of which ":subset" and
      "@revision" may be missing.
    task_options: Options of the task (`tasks/<name>.py`).
    train_split, eval_split: Splits of a TFDS dataset or of the source
      "datasets", such as "train[:1000]". Of that source a file is a single
      split, so only the slice counts there.
    train_path: File of training prompts, JSON lines or text; local or gs://. Of
      the source "datasets" a local file or folder.
    eval_path: The same for held-out prompts; empty: the training file.
    format: Format of the rows of a file or a dataset. "gsm8k": question and
      worked answer. "math": problem and solution with a box. "pairs": prompt,
      chosen and rejected. "trl", "verl", "open_instruct": the layouts of these
      libraries. "my_pkg.rows:convert": a function of yours that takes a row and
      returns a dictionary with the fields of a record. Empty: the fields
      prompt, answer, completion and extras; or, if a TFDS dataset has such a
      name, its format.
    fields: Names of the rows' fields for a record without a format: `prompt`,
      `answer`, `completion`, `tools` and `chat_options`, and `extras`, a group
      of such names.
    mixture: Parts of a mixture: each a group with settings of its own, such as
      `source` ("task" by default), `name`, `task_options` or `train_path`; its
      `weight` (1 by default), with which its prompts are drawn for training;
      and the name of its `domain` (by default that of the task or the file).
      Evaluations take a prompt of each part in turn. Parts are tasks, or text
      for one tokenizer; other settings, such as `template`, are those of the
      mixture.
    domain_key: Field of the rows, or of their `extras`, whose text or whole
      number is the name of a prompt's domain. Metrics, evaluations and lengths
      are reported by domain, and rewards, teachers and weights of the KL can
      depend on it. Empty: the number `domain` in `extras`, if there is one;
      with the format "math" the subject.
    domains: Names of the domains in the order of their numbers; empty: the
      names in the data, in alphabetical order; a number without a name is its
      own name.
    streaming: Leave a JSON-lines file on the disk and read a line when it is
      its turn, which takes no memory; a file `.index` is made beside it. With
      the source "datasets", which is always on the disk, rows are not read once
      before the first step.
    separator: Text between the prompts of a text file: "\\n", or "\\n\\n" for
      paragraphs.
    datasets: Datasets of reasoning-gym: each a group with a `name`, and
      optionally `weight`, `settings`, and `level` or `levels` of difficulty
      (`data/gym.py`).
    tokenizer: Path of a `tokenizer.json` or of a checkpoint's folder, or
      "gsm8k" or "bytes" (every byte is a token) for those of the package;
      empty with a `model.checkpoint`: the checkpoint's. Unused by tasks, which
      are made of ids.
    template: Text around a prompt, with "{prompt}"; or "chat" for the
      tokenizer's own chat template.
    chat_options: Inputs of the chat template beside the messages. If an
      environment has tools (docs/tools.md), their schemas are added as `tools`,
      unless `tools` is set here. `tools` and `chat_options` of a record come
      before these.
    system: Text of a system message before prompts that have none, for the
      template "chat"; empty: none.
    end_tokens: Tokens that end a completion; empty: those of the tokenizer.
    max_prompt_len: Prompt slots S; longer prompts are left out and counted.
      None: the number that the task needs.
    drop_tag_probability: Probability, in [0, 1], with which the supervised
      teacher of worked answers ("gsm8k") drops one of its format tags.
    rejected_share: Share of rows of a file of pairs, in [0, 1], whose rejected
      text a supervised phase imitates instead of the chosen text.
    quarantine: JSON file with records to leave out of training, as
      `grpo-lint` writes it; empty: none.
    num_threads: Threads that read and tokenize batches ahead; 0: a batch is
      made when it is requested. Never changes the batches.
    environment: Import path "package.module:function" of a factory of sessions
      of an environment on the host (`types.HostEnvironment`): episodes of
      several turns, whose scores are the components of the reward. It replaces
      the verifier or environment of a task. "verifiers:TASKSET" is an
      environment of that package (docs/serving.md). Empty: none.
  """

  source: str = "task"
  name: str = "add"
  task_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  train_path: str = ""
  eval_path: str = ""
  format: str = ""
  train_split: str = "train"
  eval_split: str = "test"
  fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  streaming: bool = False
  separator: str = "\n"
  datasets: tuple[Mapping[str, Any], ...] = ()
  mixture: tuple[Mapping[str, Any], ...] = ()
  domain_key: str = ""
  domains: tuple[str, ...] = ()
  tokenizer: str = ""
  template: str = "{prompt}"
  chat_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  system: str = ""
  end_tokens: tuple[str, ...] = ()
  max_prompt_len: int | None = ranges.SLOTS.field(None)
  drop_tag_probability: float = ranges.SHARE.field(0.0)
  rejected_share: float = ranges.SHARE.field(0.0)
  quarantine: str = ""
  num_threads: int = ranges.Range(0, 64).field(1)
  environment: str = ""

  def __post_init__(self):
    one_of("data.source", self.source, SOURCES)
    if "{prompt}" not in self.template and self.template != "chat":
      raise ValueError(
        f"config.data.template={self.template!r} does not contain"
        ' "{prompt}"; write where the prompt goes, or "chat" for the'
        " tokenizer's own template."
      )
    if self.system and self.template != "chat":
      raise ValueError(
        f"config.data.system={self.system!r:.60} is a message, which only a"
        f" chat template writes, and config.data.template is"
        f" {self.template!r:.60}. Set it to 'chat', or write the text into it."
      )
    if self.chat_options and self.template != "chat":
      raise ValueError(
        f"config.data.chat_options={dict(self.chat_options)!r:.60} are inputs"
        " of a chat template, and config.data.template is"
        f" {self.template!r:.60}. Set it to 'chat', or leave them out."
      )
    if self.source == "datasets" and not (self.train_path or "/" in self.name):
      raise ValueError(
        "config.data.source='datasets' needs config.data.train_path, a local"
        " file or folder, or config.data.name, a name on the hub as"
        f" 'owner/name'; they are {self.train_path!r} and {self.name!r:.60}."
      )
    lines = {
      "jsonl": "one JSON object per line with a field 'prompt'",
      "text": "a prompt on each line",
    }
    if self.source in lines and not self.train_path:
      raise ValueError(
        f"config.data.source={self.source!r} needs config.data.train_path, a"
        f" file with {lines[self.source]}."
      )
    if self.source == "environment" and not self.environment:
      raise ValueError(
        "config.data.source='environment' needs config.data.environment, whose"
        " first observations are the prompts, as"
        " 'grpo_jax.rewards.agents.games:make'."
      )
    for name, (default, sources) in _OF_SOURCES.items():
      value = getattr(self, name)
      if value != default and self.source not in sources:
        raise ValueError(
          f"config.data.{name}={value!r} is for"
          f" config.data.source={' or '.join(map(repr, sources))}, and it is"
          f" {self.source!r}; leave one of them as it is."
        )
    self.check_images()
    if len({*self.domains}) < len(self.domains):
      raise ValueError(
        f"config.data.domains={self.domains} has a name twice; a domain has one"
        " name and one number."
      )
    if self.source == "mixture":
      parts(self)
    if self.quarantine and self.streaming:
      raise ValueError(
        f"config.data.quarantine={self.quarantine!r} is for data in memory;"
        " set config.data.streaming=False, or leave the records out of the"
        " file."
      )
    if self.rejected_share and self.format not in ("pairs", "trl"):
      raise ValueError(
        f"config.data.rejected_share={self.rejected_share} is for a file of"
        " pairs; set config.data.format='pairs', or leave it at 0."
      )
    is_gsm8k = self.source == "tfds" and self.name.startswith("gsm8k")
    if self.drop_tag_probability and not is_gsm8k and self.format != "gsm8k":
      raise ValueError(
        f"config.data.drop_tag_probability={self.drop_tag_probability} is for"
        " the worked answers of config.data.format='gsm8k', and the format is"
        f" {self.format!r:.60}; set it, or leave the probability at 0."
      )
    of_text = "template", "tokenizer", "end_tokens"
    for name in of_text if self.is_made_of_ids else ():
      value = getattr(self, name)
      if value != getattr(DataConfig, name):
        raise ValueError(
          f"config.data.{name}={value!r:.60} is for prompts of text, and"
          f" {self.shown_task} makes its own of ids; leave it as it is, or set"
          " config.data.source."
        )
    ranges.check(self, "config.data")

  @property
  def is_made_of_ids(self) -> bool:
    """True if tasks make the prompts as ids, without text."""
    if self.source != "mixture":
      return self.source == "task"
    first, *_ = parts(self).values()
    return first.data.is_made_of_ids

  @property
  def shown_task(self) -> str:
    """Name, in messages, of the task or mixture that makes prompts of ids."""
    if self.source == "mixture":
      return "the mixture of tasks"
    return f"the task {self.name!r}"


@dataclasses.dataclass(frozen=True)
class SamplingConfig:
  """Sampling of completions: lengths, temperature, filters, cache, mixing.

  Attributes:
    max_new_tokens: Most tokens T of a completion; None: the number that the
      task needs.
    temperature: Temperature of training rollouts, > 0.
    domain_limits: Most tokens of completions in some domains of prompts, by
      name: {"add": 8}. Other domains have max_new_tokens.
    top_k: Number of the likeliest tokens that are kept; None: all.
    top_p: Nucleus sampling: the smallest set of tokens with this probability
      is kept; None: all.
    min_p: Tokens with at least this share of the probability of the likeliest
      token are kept; None: all.
    lanes: Number of completions that are decoded at once; None: all. With
      fewer, a completion begins when another has ended, which saves time if
      lengths differ, and the cache is smaller. For example, 256 completions of
      geometric lengths, 38 tokens on average and 177 at most, take 3.7 s at
      once and 1.2 s in 32 lanes (2 layers, width 128, on a CPU).
    num_cache_sizes: Most sizes of the cache of keys and values, which grows
      with the completions; each size is half of the next, and is compiled
      anew. 1 compiles faster, but all decode steps read a cache of full length.
    weights_dtype: Format to which kernels are rounded for training rollouts
      ("int8", "float8_e4m3fn"; "model": not rounded). Updates and evaluations
      read the kernels as they are; see docs/quantised_sampling.md.
    uncorrected: Whether completions of rounded kernels, or of earlier
      parameters (config.rl.staleness, recycle_surplus, replay_size), may be
      trained on without a correction (config.algorithm.importance_mode,
      rejection).
    mix_rate: Probability with which the policy reads a blend of similar tokens
      instead of a token that it has written; every pass of the update reads the
      same blends. 0 for none, as in all evaluations; see docs/mixing.md.
    mix_top_k: Tokens of a blend, at least 2: an anchor and its neighbours.
    mix_anchor: "argmax", the likeliest token of the step, or "sampled", the
      token that was written.
    mix_neighbours: "nearest", tokens whose embeddings have the largest cosine
      with that of the anchor; or "random", for comparison.
    mix_min_entropy: Entropy of a token's distribution, nats, above which tokens
      are mixed; with mix_rate=1 entropy alone decides. 0: anywhere.
    mix_until: Text of a token. From it on, the tokens of a completion are not
      mixed; without it the whole completion may be. Empty: whole completions
      may be mixed.
  """

  max_new_tokens: int | None = ranges.SLOTS.field(None)
  temperature: float = 1.0
  domain_limits: Mapping[str, int] = dataclasses.field(default_factory=dict)
  top_k: int | None = ranges.SIZE.field(None)
  top_p: float | None = _SOME.field(None)
  min_p: float | None = _SOME.field(None)
  lanes: int | None = ranges.ROWS.field(None)
  num_cache_sizes: int = ranges.Range(1, 16).field(4)
  weights_dtype: str = "model"
  uncorrected: bool = False
  mix_rate: float = ranges.SHARE.field(0.0)
  mix_top_k: int = ranges.Range(2, ranges.MAX_INT).field(2)
  mix_anchor: str = "argmax"
  mix_neighbours: str = "nearest"
  # The log of 2³¹ tokens is 21.5.
  mix_min_entropy: float = ranges.Range(0, 22).field(0.0)
  mix_until: str = "</think>"

  def __post_init__(self):
    if self.temperature not in TEMPERATURE:
      raise ValueError(
        f"config.sampling.temperature={self.temperature} must be"
        f" {TEMPERATURE}: training needs samples. Evaluation is greedy by"
        " itself."
      )
    ranges.check(self, "config.sampling")
    one_of("sampling.weights_dtype", self.weights_dtype, SAMPLED_DTYPES)
    one_of("sampling.mix_anchor", self.mix_anchor, MIX_ANCHORS)
    one_of("sampling.mix_neighbours", self.mix_neighbours, MIX_NEIGHBOURS)

  def sampler(
    self,
    max_new_tokens: int,
    end_ids: tuple[int, ...],
    pad_id: int,
    record_kept: bool = False,
    record_routing: bool = False,
    mix_until: tuple[int, ...] = (),
  ) -> sampling.SamplerConfig:
    """The sampler's config for a tokenizer."""
    from grpo_jax.rollout import mixing, sampling

    mix = None
    if self.mix_rate:
      mix = mixing.Mixing(
        rate=self.mix_rate,
        top_k=self.mix_top_k,
        anchor=self.mix_anchor,
        neighbours=self.mix_neighbours,
        min_entropy=self.mix_min_entropy,
        until=mix_until,
      )
    return sampling.SamplerConfig(
      max_new_tokens=max_new_tokens,
      end_ids=end_ids,
      pad_id=pad_id,
      temperature=self.temperature,
      top_k=self.top_k,
      top_p=self.top_p,
      min_p=self.min_p,
      record_kept=record_kept,
      record_routing=record_routing,
      lanes=self.lanes,
      num_cache_sizes=self.num_cache_sizes,
      mix=mix,
    )


@dataclasses.dataclass(frozen=True)
class EvalConfig:
  """Held-out evaluation.

  Attributes:
    num_prompts: Number of held-out prompts, with one completion each.
    batch_size: Prompts per evaluation batch.
    temperature: Temperature of the completions; 0 is greedy.
    every: Steps of the "rl" phase between evaluations; 0: only before and
      after the phase.
  """

  num_prompts: int = ranges.ROWS.field(256)
  batch_size: int = ranges.ROWS.field(256)
  temperature: float = 0.0
  every: int = ranges.COUNT.field(0)

  def __post_init__(self):
    ranges.check(self, "config.eval")
    if self.temperature and self.temperature not in TEMPERATURE:
      raise ValueError(
        f"config.eval.temperature={self.temperature} must be 0, for the most"
        f" likely tokens, or {TEMPERATURE}."
      )


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
  """Saving of checkpoints.

  Attributes:
    every: Steps between checkpoints; 0: only at the end of a phase.
    keep: Number of the latest checkpoints that are kept.
  """

  every: int = ranges.COUNT.field(0)
  keep: int = ranges.SIZE.field(2)

  def __post_init__(self):
    ranges.check(self, "config.checkpoint")


@dataclasses.dataclass(frozen=True)
class LogConfig:
  """Logs beside metrics.jsonl: trackers, samples, traces, curves.

  Attributes:
    trackers: Programs that show curves, of `TRACKERS`; "wandb" and "trackio"
      are extras.
    project: Project of the run at W&B and Trackio.
    name: Name of the run there; empty: the name of its folder.
    group: Group of related runs; a sweep sets it to its own name.
    tags: The tags of the run.
    samples_every: Steps between sampled texts in samples.jsonl; 0: none.
    num_samples: Rows of sampled texts each time.
    traces_every: Steps between groups of completions, token by token, in
      traces.jsonl.gz; 0: none. The first and the last step of a phase, and
      evaluations, are traced too.
    trace_groups: Most groups each time, beside those of `trace_prompts`; and
      most prompts of each evaluation.
    trace_prompts: Prompts that are traced whenever they come: numbers of their
      records, or texts that they contain.
    traces_max_mib: Most MiB of that file. Each time gets an equal part of the
      rest; groups that do not fit are left out, and rows are cut.
    curves: Whether curves.png is drawn at the end, which takes one to two
      seconds.
  """

  trackers: tuple[str, ...] = ("tensorboard",)
  project: str = "grpo_jax"
  name: str = ""
  group: str = ""
  tags: tuple[str, ...] = ()
  samples_every: int = ranges.COUNT.field(20)
  num_samples: int = ranges.COUNT.field(4)
  traces_every: int = ranges.COUNT.field(20)
  trace_groups: int = ranges.COUNT.field(4)
  trace_prompts: tuple[str, ...] = ()
  traces_max_mib: int = ranges.SIZE.field(64)
  curves: bool = True

  def __post_init__(self):
    names = list(self.trackers)
    if not {*names} <= {*TRACKERS} or len(names) > len({*names}):
      raise ValueError(
        f"config.log.trackers={self.trackers!r}; needs some of"
        f" {', '.join(map(repr, TRACKERS))}."
      )
    ranges.check(self, "config.log")


@dataclasses.dataclass(frozen=True)
class HostsConfig:
  """Timeouts of processes in a run on several hosts; see `hosts.py`.

  Attributes:
    timeout_s: Seconds without a sign of life after which a process is given up.
    stall_s: Seconds after which a live process that is behind the others, or a
      run without any progress, is given up; set it above the longest
      compilation, evaluation or save.
  """

  timeout_s: float = SECONDS.field(60.0)
  stall_s: float = SECONDS.field(3600.0)

  def __post_init__(self):
    ranges.check(self, "config.hosts")
    if self.timeout_s > MAX_TIMEOUT_S:
      raise ValueError(
        f"config.hosts.timeout_s={self.timeout_s} must be at most"
        f" {MAX_TIMEOUT_S}: JAX itself waits little longer."
      )
