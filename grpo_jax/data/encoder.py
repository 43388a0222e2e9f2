"""Encodes the fields of records as token ids, and images as patches.

A record with images has a text too. Each marker `<image>` in the text, or each
image token of the model's family, is the place of one image; without markers
the images come before the text. A chat template writes the family's token for
each image. Each token is then repeated as often as the image has merged
patches.

A text that is a `conversations.Conversation` is written by the chat template
with all its messages. Its module is imported when there is one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from grpo_jax.data.sources import Record
from grpo_jax.types import Images

if TYPE_CHECKING:
  from grpo_jax.data.images.processors import PatchCut, Processor

MARKER = "<image>"


class Unusable(str):
  """The reason why a record is left out, in words."""


class PromptWithImages(NamedTuple):
  """A prompt with images.

  Attributes:
    ids: Token ids, placeholders included.
    cuts: The patches of the images, in the order of their placeholders.
  """

  ids: np.ndarray  # [any] int32
  cuts: tuple[PatchCut, ...]


@dataclasses.dataclass(frozen=True)
class ImageEncoder:
  """Settings for images in prompts.

  Attributes:
    processor: The family's processor of images.
    read: (images) -> the patches of each image, or the reason why it has none.
    max_images: M, most images of a prompt; each tile of an image counts.
    max_patches: N, most patches of a prompt.
  """

  processor: Processor
  read: Callable[[Sequence[Any]], list[PatchCut | str]]
  max_images: int
  max_patches: int

  @property
  def shapes(self) -> Images:
    """Shapes and dtypes of the images of one prompt."""
    return jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), self.arrays([()])
    )

  def cuts(
    self, records: Sequence[dict[str, Any]]
  ) -> list[tuple[PatchCut, ...] | Unusable]:
    """The patches of the images of several records, read all at once."""
    images = [tuple(record.get("pictures", ())) for record in records]
    cuts = iter(self.read([image for of_row in images for image in of_row]))
    return [self._of_record(row, [next(cuts) for _ in row]) for row in images]

  def _of_record(
    self, images: Sequence[Any], results: Sequence[PatchCut | str]
  ) -> tuple[PatchCut, ...] | Unusable:
    cuts: list[PatchCut] = []
    for place, (image, cut) in enumerate(zip(images, results, strict=True)):
      if isinstance(cut, str):
        label = f" ({image[1]!r:.80})" if image[0] == "path" else ""
        return Unusable(f"image {place + 1} of {len(images)}{label}: {cut}")
      cuts.append(cut)
    num_grids = sum(len(cut.grids) for cut in cuts)
    if num_grids > self.max_images:
      return Unusable(
        f"it has {num_grids} images, tiles among them; there is room for"
        f" {self.max_images} (config.data.max_images)"
      )
    num_patches = sum(len(cut.pixels) for cut in cuts)
    if num_patches > self.max_patches:
      return Unusable(
        f"its images have {num_patches} patches; there is room for"
        f" {self.max_patches} (config.data.max_patches)"
      )
    return tuple(cuts)

  def parts(self, prompt: str, num_images: int) -> list[str] | Unusable:
    """The texts before, between and after the images of a prompt."""
    token = self.processor.image_token
    marker = MARKER if MARKER in prompt else token
    parts = prompt.split(marker)
    if len(parts) == 1:
      parts = [""] * num_images + [prompt]
    if len(parts) != num_images + 1:
      return Unusable(
        f"its prompt has {len(parts) - 1} markers {marker!r}, and it has"
        f" {num_images} images"
      )
    return parts

  def content(self, parts: Sequence[str]) -> list[dict[str, str]]:
    """Converts the parts to the form that a chat template reads."""
    content: list[dict[str, str]] = []
    for place, text in enumerate(parts):
      if place:
        content.append({"type": "image"})
      if text:
        content.append({"type": "text", "text": text})
    return content

  def in_text(self, parts: Sequence[str]) -> str:
    """Joins the parts with image tokens, without a chat template."""
    family = self.processor
    return f"{family.before}{family.image_token}{family.after}".join(parts)

  def expanded(self, text: str, cuts: Sequence[PatchCut]) -> str | Unusable:
    """Replaces each image token in a text by the placeholders of its image."""
    token = self.processor.image_token
    parts = text.split(token)
    if len(parts) != len(cuts) + 1:
      return Unusable(
        f"its prompt shows {len(parts) - 1} times {token!r}, and it has"
        f" {len(cuts)} images"
      )
    pieces = [parts[0]]
    for cut, part in zip(cuts, parts[1:], strict=True):
      pieces += [self.processor.placeholders(cut), part]
    return "".join(pieces)

  def arrays(self, prompts: Sequence[Sequence[PatchCut]]) -> Images:
    """The images of P prompts as NumPy arrays of fixed sizes.

    Args:
      prompts: Images of each prompt, which fit `max_images` and `max_patches`.
    """
    num, room, most = len(prompts), self.max_patches, self.max_images
    patches = np.zeros((num, room, self.processor.features), np.float32)
    image = np.full((num, room), -1, np.int32)
    place = np.zeros((num, room, 2), np.int32)
    grid = np.zeros((num, most, 2), np.int32)
    for p, cuts in enumerate(prompts):
      start = count = 0
      for cut in cuts:
        stop = start + len(cut.pixels)
        patches[p, start:stop] = self.processor.patches(cut.pixels)
        for size in cut.grids:
          end = start + size[0] * size[1]
          image[p, start:end] = count
          place[p, start:end] = self.processor.places(size)
          grid[p, count] = size
          start, count = end, count + 1
    arrays: dict[str, Any] = {
      "patches": patches,
      "image": image,
      "place": place,
      "grid": grid,
    }
    return Images(**arrays)


@contextlib.contextmanager
def _complaining(record: Record) -> Iterator[None]:
  """Names the record in errors of the chat template."""
  try:
    yield
  except ValueError as error:
    raise ValueError(
      f"config.data: the record {record['prompt']!r:.80}: {error}"
    ) from error


@dataclasses.dataclass(frozen=True)
class Encoder:
  """Token ids of a record's fields; fields that are ids already pass through.

  Attributes:
    tokenizer: Tokenizer with `encode(text) -> ids`, `context_ids(text) -> ids`,
      and `end_ids`.
    template: Text that the policy reads; "{prompt}" is replaced by the record's
      prompt, all other text (markers, instructions) is literal. The begin token
      comes first, once, if the tokenizer has one. Or "chat": the tokenizer's
      chat template, with the prompt as the user's message and the assistant's
      turn opened; it writes a begin token itself.
    chat_options: Further inputs of that template ("enable_thinking", …); those
      of a conversation come first.
    image_encoder: Settings for images; None if prompts are text alone.
    system: Text of the system message before prompts that have none; "": they
      have none.
  """

  tokenizer: Any
  template: str = "{prompt}"
  chat_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  image_encoder: ImageEncoder | None = None
  system: str = ""

  def __post_init__(self):
    if self.template != "chat" and "{prompt}" not in self.template:
      raise ValueError(
        f"config.data.template={self.template!r}: it lacks '{{prompt}}', where"
        " the question goes; or use 'chat'."
      )
    if self.image_encoder is not None:
      token = self.image_encoder.processor.image_token
      if len(self.tokenizer.encode(token)) != 1:
        raise ValueError(
          f"config.data.images: the tokenizer has no token {token!r}, which"
          " stands for a part of an image; set config.data.tokenizer to the"
          " checkpoint's own, or config.data.image_processor to the folder of"
          " another one."
        )

  def prompts(
    self, records: Sequence[Record]
  ) -> list[np.ndarray | PromptWithImages | Unusable]:
    """Ids of several prompts, or `PromptWithImages` for prompts with images.

    If the images of a record cannot be shown, its entry is an `Unusable` with
    the reason.
    """
    if self.image_encoder is None:
      return [self.prompt(record) for record in records]
    all_cuts = self.image_encoder.cuts(records)
    return [
      self._with_images(self.image_encoder, record, cuts)
      if not isinstance(cuts, Unusable)
      else cuts
      for record, cuts in zip(records, all_cuts, strict=True)
    ]

  def _with_images(
    self, image_encoder: ImageEncoder, record: Record, cuts: tuple[Any, ...]
  ) -> PromptWithImages | Unusable:
    messages, options = self._inputs(record["prompt"])
    if len(messages) > 1 + bool(self.system):
      raise ValueError(
        f"config.data.images: the prompt {record['prompt']!r:.80} has several"
        " messages; prompts with images are texts, with a mark <image> for each"
        " image. Write the messages as a text."
      )
    parts = image_encoder.parts(messages[-1]["content"], len(cuts))
    if isinstance(parts, Unusable):
      return parts
    encode = self.tokenizer.context_ids
    if self.template == "chat":
      messages[-1] = {**messages[-1], "content": image_encoder.content(parts)}
      text = self.tokenizer.chat_text(messages, **options)
      encode = self.tokenizer.encode
    else:
      text = self.template.replace("{prompt}", image_encoder.in_text(parts))
    full_text = image_encoder.expanded(text, cuts)
    if isinstance(full_text, Unusable):
      return full_text
    return PromptWithImages(self._some(encode(full_text), record), cuts)

  def content(self, record: Record) -> list[Hashable]:
    """The ids and images of a prompt, for comparison; no image is opened.

    Parts that all prompts share, such as the template, are left out.

    Raises:
      ValueError: The prompt cannot be written.
    """
    value = record["prompt"]
    if not isinstance(value, str):
      return np.asarray(value).tolist()
    if self.image_encoder is None:
      self.prompt(record)  # Raises if it cannot be written.
    options = getattr(value, "options", None)
    further = [json.dumps(options, default=str)] if options else []
    images = (tuple(image) for image in record.get("pictures", ()))
    return [*self.tokenizer.encode(value), *further, *images]

  def prompt(self, record: Record) -> np.ndarray:  # [any] int32
    """Ids of a prompt.

    Raises:
      ValueError: There are no ids; or the images of the record cannot be shown.
    """
    if self.image_encoder is not None:
      (entry,) = self.prompts([record])
      if isinstance(entry, Unusable):
        raise ValueError(
          f"config.data: the record {record['prompt']!r:.80}: {entry}."
          " Take it out, or correct its images."
        )
      assert isinstance(entry, PromptWithImages)
      return entry.ids
    value = record["prompt"]
    if isinstance(value, str) and self.template == "chat":
      messages, options = self._inputs(value)
      with _complaining(record):
        value = self.tokenizer.chat_ids(messages, **options)
    elif isinstance(value, str):
      # Not str.format, as templates and prompts may contain other braces.
      text = self.template.replace("{prompt}", self._as_text(value, "prompt"))
      value = self.tokenizer.context_ids(text)
    return self._some(value, record)

  def _inputs(self, prompt: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Messages of a prompt for the chat template, and its other inputs."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    options = dict(self.chat_options)
    if type(prompt) is not str:
      from grpo_jax.data import conversations

      assert isinstance(prompt, conversations.Conversation)
      messages = [*map(conversations.for_template, prompt.messages)]
      options |= prompt.options
    return self.with_system(messages), options

  def with_system(
    self, messages: Sequence[dict[str, Any]]
  ) -> list[dict[str, Any]]:
    """Messages behind the system message, unless they have one."""
    if self.system and messages[0]["role"] not in ("system", "developer"):
      return [{"role": "system", "content": self.system}, *messages]
    return [*messages]

  def _as_text(self, value: str, field: str) -> str:
    """The text of a field for a template without roles.

    Raises:
      ValueError: The field has more than a text.
    """
    if not getattr(value, "is_text", True):
      raise ValueError(
        f"config.data: the record {value!r:.80}: its {field} has roles or"
        " tools, which only a chat template writes, and config.data.template is"
        f" {self.template!r:.40}. Set it to 'chat'."
      )
    return value

  def _some(self, value: Any, record: Record) -> np.ndarray:  # [any] int32
    ids = np.asarray(value, np.int32)
    if not ids.size:
      raise ValueError(
        f"config.data: the record {record!r:.80} has no prompt tokens; a policy"
        " needs at least one to start from."
      )
    return ids

  def masked_completion(
    self, record: Record
  ) -> tuple[np.ndarray, np.ndarray | None]:  # [any] int32, [any] bool
    """Ids of the completion of a record, and the mask of `observed`, or None.

    Messages are written by the chat template, and end with an end token.
    """
    value = record["completion"]
    if isinstance(value, str) and type(value) is not str:
      if self.template == "chat":
        from grpo_jax.data import conversations

        assert isinstance(value, conversations.Conversation)
        messages, options = self._inputs(record["prompt"])
        with _complaining(record):
          return conversations.reply(
            self.tokenizer, messages, options, value.messages
          )
      self._as_text(value, "completion")
    return self.completion(record), self.observed(record)

  def completion(self, record: Record) -> np.ndarray:  # [any] int32
    """Ids of the text of a completion, or its ids."""
    value = record["completion"]
    if value is None:
      raise ValueError(
        f"config.data: the record {record!r:.80} has no completion; supervised"
        " training needs one in every record. Or leave supervised phases out:"
        " --config.phases=\"('rl',)\"."
      )
    if isinstance(value, str):
      value = self.tokenizer.encode(value)
    return np.asarray(value, np.int32)

  def pair(self, record: Record) -> list[Record]:
    """The record with the preferred completion, and with the rejected one."""
    if record.get("rejected") is None:
      raise ValueError(
        f"config.data: the record {record!r:.80} has no pair of completions; a"
        " phase on pairs needs config.data.format='pairs', and rows with"
        " 'chosen' and 'rejected'."
      )
    return [
      {**record, "completion": record[field]}
      for field in ("completion", "rejected")
    ]

  def observed(self, record: Record) -> np.ndarray | None:  # [any] bool
    """Mask of the ids of the completion that are not imitated, or None."""
    value = record.get("observed")
    if value is None:
      return None
    if np.shape(value) != np.shape(record["completion"]):
      raise ValueError(
        f"config.data: the record {record!r:.80} has {np.size(value)} flags"
        f" 'observed' for a completion of {np.size(record['completion'])};"
        " needs one for each of its ids."
      )
    return np.asarray(value, bool)
