"""Settings of what reads the images of prompts."""

from __future__ import annotations

import dataclasses
from typing import Any

from grpo_jax.models.tower_parts import KINDS, TowerConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class TowerSettings(TowerConfig):
  """What reads the images of prompts; `models/tower_parts.py` has the sizes.

  Attributes:
    kind: Family of the tower, "siglip", "qwen2_5_vl" or "qwen3_vl"; empty:
      prompts have no images.
    trained: Whether the tower is trained; else it stays as it is. Beneath
      adapters it is never trained itself.
    image_token: The id of the placeholder, in whose places prompts show their
      images; with a checkpoint its config.json says it.
  """

  kind: str = ""
  trained: bool = True
  image_token: int | None = None

  def __post_init__(self):
    if self.kind:
      super().__post_init__()
      if self.image_token is None:
        raise ValueError(
          f"config.model.tower.kind={self.kind!r} reads images in the places of"
          " a token; set config.model.tower.image_token to its id."
        )
      return
    changed = [
      field.name
      for field in dataclasses.fields(self)
      if field.name != "trained" and getattr(self, field.name) != field.default
    ]
    if changed:
      raise ValueError(
        f"config.model.tower has {', '.join(changed)}, and no kind; set"
        f" config.model.tower.kind to one of {', '.join(KINDS)}, or leave them"
        " as they are."
      )

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
