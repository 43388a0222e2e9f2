"""Settings of the model of a run, its vision tower and the mesh of devices."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import TYPE_CHECKING, Any, ClassVar

from grpo_jax import ranges
from grpo_jax.models import architecture
from grpo_jax.models.architecture import LORA_RANKS, TowerConfig
from grpo_jax.settings import groups

if TYPE_CHECKING:
  from grpo_jax.models.policies import lora


@dataclasses.dataclass(frozen=True, kw_only=True)
class TowerSettings(TowerConfig, groups.Switched):
  """The vision tower, which reads images of prompts.

  `models/vision_parts.py` describes the other fields.

  Attributes:
    kind: Family of the tower, "siglip", "qwen2_vl", "qwen2_5_vl" or "qwen3_vl";
      empty: prompts have no images.
    trained: Whether the tower is trained; else it is frozen. Beneath adapters
      it is never trained itself.
    image_token: Id of the placeholder token, in whose places the features of
      images are read; with a checkpoint it comes from config.json.
  """

  switch: ClassVar[str] = "kind"

  kind: str = ""
  trained: bool = True
  image_token: int | None = None

  def __post_init__(self):
    if not self.kind:
      return
    super().__post_init__()
    if self.image_token is None:
      raise ValueError(
        f"config.model.tower.kind={self.kind!r} reads images in the places of"
        " a token; set config.model.tower.image_token to its id."
      )

  @classmethod
  def read_with(cls, value: Any) -> tuple[str, ...]:
    """Returns all names; without a kind, a checkpoint may have a tower."""
    return super().read_with(value) if value else ("kind", "trained")

  @property
  def fields(self) -> dict[str, Any]:
    """Fields of a `TransformerConfig` with this tower."""
    if not self.kind:
      return {}
    sizes = {
      field.name: getattr(self, field.name)
      for field in dataclasses.fields(TowerConfig)
    }
    return {
      "tower": TowerConfig(**sizes),
      "image_token": self.image_token,
      "tower_trained": self.trained,
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig(architecture.Architecture):
  """A transformer; `models/architecture.py` describes the other fields.

  Attributes:
    tower: The vision tower, which reads images of prompts.
    checkpoint: Folder or hub name of a Hugging Face checkpoint to start from,
      or a GGUF file. It then decides the architecture. Only these other fields
      may be set: `dtype`, `param_dtype`, `attention`, `decode_attention`,
      `experts`, `remat`, `split_positions`, `prefill_chunk`, `cache_dtype`,
      `long_context` and `tower.trained`. Empty: from scratch.
    revision: Commit, tag or branch of a checkpoint on the hub; with a commit a
      run always starts from the same files. Empty: the newest.
    adapter_checkpoint: Folder with adapters to start from, as PEFT and
      `grpo-export --adapters` write it, for this `checkpoint`. Rank, α
      and modules are those of the file, and need not be set. Empty: fresh
      adapters.
    lora_rank: Rank of the adapters, which alone are trained; 0 for no adapters.
    lora_alpha: α of the adapters, whose term is multiplied by
      lora_alpha / lora_rank.
    lora_modules: Projections with an adapter, by the names of
      `lora.LoRAConfig`; empty: all projections of the layers, except those of
      experts.
    quantization: Format of the kernels beneath the adapters: "none", "int8",
      "nf4" or "nf4_double".
  """

  tower: TowerSettings = dataclasses.field(default_factory=TowerSettings)
  checkpoint: str = ""
  revision: str = ""
  adapter_checkpoint: str = ""
  lora_rank: int = ranges.Range(0, LORA_RANKS.high).field(0)
  lora_alpha: float = ranges.POSITIVE.field(32.0)
  lora_modules: tuple[str, ...] = ()
  quantization: str = "none"

  def __post_init__(self):
    super().__post_init__()
    ranges.check(self, "config.model")
    if self.revision and not self.checkpoint:
      raise ValueError(
        f"config.model.revision={self.revision!r} is of a checkpoint on the"
        " hub; set config.model.checkpoint to its name."
      )
    if self.adapter_checkpoint:
      if not self.checkpoint:
        raise ValueError(
          f"config.model.adapter_checkpoint={self.adapter_checkpoint!r}: these"
          " adapters belong to a checkpoint; set config.model.checkpoint to the"
          " one that they were trained with."
        )
      return  # The file of the adapters is read when the run begins.
    if not self.lora_rank and self.quantization != "none":
      raise ValueError(
        f"config.model.quantization={self.quantization!r} freezes the kernels"
        " of the layers, and nothing else would be trained; set"
        " config.model.lora_rank, or quantization='none'."
      )
    self.adapters()

  def adapters(self) -> lora.LoRAConfig | None:
    """The low-rank adapters, or None.

    Raises:
      FileNotFoundError: `adapter_checkpoint` has no adapters.
      ValueError: A number is out of range, or differs from the file's.
    """
    if self.adapter_checkpoint:
      from grpo_jax.models.hf import peft

      config = peft.config_of(self.adapter_checkpoint, self.quantization)
      for name in ("rank", "alpha", "modules"):
        setting, actual = f"lora_{name}", getattr(config, name)
        value = getattr(self, setting)
        if value != getattr(ModelConfig, setting) and value != actual:
          raise ValueError(
            f"config.model.{setting}={value}, and the adapters in"
            f" {self.adapter_checkpoint} have {actual}; leave the setting out:"
            " it is taken from there."
          )
      return config
    if not self.lora_rank:
      return None
    from grpo_jax.models.policies import lora

    return lora.LoRAConfig(
      rank=self.lora_rank,
      alpha=self.lora_alpha,
      modules=self.lora_modules,
      quantization=self.quantization,
    )

  def directory(self, weights: bool = False) -> pathlib.Path:
    """The folder of the checkpoint, downloaded if it is on the hub.

    Args:
      weights: Whether the weights are needed, and not only config and
        tokenizer.
    """
    from grpo_jax.models.hf import hub

    return hub.local_directory(self.checkpoint, self.revision, weights)

  def transformer(self, vocab_size: int) -> architecture.TransformerConfig:
    """The architecture, for a vocabulary of at least this size.

    Raises:
      FileNotFoundError, ValueError: The checkpoint is missing, unsupported,
        or too small for the vocabulary; or a field contradicts it.
    """
    fields = {
      field.name: getattr(self, field.name)
      for field in dataclasses.fields(architecture.Architecture)
    }
    if not self.checkpoint:
      return architecture.TransformerConfig(
        vocab_size=vocab_size, **fields, **self.tower.fields
      )
    default = ModelConfig()
    free = architecture.FIELDS_OF_A_RUN
    for name, value in fields.items():
      if name not in free and value != getattr(default, name):
        raise ValueError(
          f"config.model.{name}={value} with config.model.checkpoint="
          f"{self.checkpoint!r}: its config.json decides the architecture; of"
          f" the model's fields only {', '.join(free)} may be set beside it."
          " Start from configs/checkpoint.py, which sets none."
        )
    if self.tower.kind:
      raise ValueError(
        f"config.model.tower.kind={self.tower.kind!r} with"
        f" config.model.checkpoint={self.checkpoint!r}: its config.json says"
        " which tower it has; leave the kind empty."
      )
    from grpo_jax.models.hf import families

    source, _ = families.from_config_json(self.directory())
    if source["vocab_size"] < vocab_size:
      raise ValueError(
        f"config.model.checkpoint={self.checkpoint!r} has"
        f" {source['vocab_size']} token ids and the tokenizer {vocab_size};"
        " set config.data.tokenizer to the checkpoint's own."
      )
    extra = {name: fields[name] for name in free}
    extra["tower_trained"] = self.tower.trained
    return architecture.TransformerConfig(**{**source, **extra})


@dataclasses.dataclass(frozen=True)
class MeshConfig:
  """Devices = data × fsdp × expert × tensor; see `sharding.py`.

  Rows of a batch are split over data × fsdp × expert.

  Attributes:
    data: Number of copies of the parameters; None: as many as devices allow.
      With several TPU slices, a multiple of their number; the gradient of
      every micro-batch is summed across them, so there a large
      `micro_batch_size` saves time.
    fsdp: Devices over which parameters, gradients and moments are split.
    tensor: Devices over which heads, MLP width and vocabulary are split; it
      must divide them, and the key/value heads.
    expert: Devices over which experts are split; it must divide their number.
  """

  data: int | None = ranges.SIZE.field(None)
  fsdp: int = ranges.SIZE.field(1)
  tensor: int = ranges.SIZE.field(1)
  expert: int = ranges.SIZE.field(1)

  def __post_init__(self):
    ranges.check(self, "config.mesh")
