"""Reward models from Hugging Face checkpoints: a trunk with a scalar head.

`transformers` has two kinds of them, with the same head, `score`:

| architecture               | scores                    | labels              |
|----------------------------|---------------------------|---------------------|
| …ForSequenceClassification | whole completions         | 1                   |
| …ForTokenClassification    | steps, at their last token| 1, or wrong / right |

The score is a linear function of the state after a token, as in
`critic.make_reward_model`. If there are two labels, only the difference counts:
the probability of the second label is σ(r₁ − r₀).
"""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import numpy as np

from grpo_jax.models.hf import config_json, families, safetensors

_CAUSAL = "ForCausalLM"
_OF_COMPLETIONS = "ForSequenceClassification"
_OF_STEPS = "ForTokenClassification"
_HEAD = "score."
# Keys about the training of the head.
_DROPOUT = frozenset({"classifier_dropout", "num_labels"})


@dataclasses.dataclass(frozen=True)
class Classifier:
  """The architecture of a reward model, from its config.json.

  Attributes:
    fields: Fields of a `TransformerConfig`, without a head for tokens.
    family: The family, which names the tensors.
    scores_steps: Whether the model was trained to score steps.
  """

  fields: dict[str, Any]
  family: families.Family
  scores_steps: bool


def described(directory: pathlib.Path) -> Classifier:
  """The architecture of a checkpoint with a scalar head.

  Raises:
    FileNotFoundError: There is no config.json.
    ValueError: The checkpoint is of another kind, or not supported.
  """
  config = config_json.read(directory)
  names = config.get("architectures") or [""]
  name = str(names[0])
  kinds = [kind for kind in (_OF_COMPLETIONS, _OF_STEPS) if name.endswith(kind)]
  if len(names) != 1 or not kinds:
    raise ValueError(
      f"{directory}: config.json has the architectures {names}; a reward model"
      f" is one whose name ends with {_OF_COMPLETIONS} or {_OF_STEPS}, as"
      " AutoModelForSequenceClassification saves it."
    )
  own = {k: x for k, x in config.items() if k not in _DROPOUT}
  causal = name.removesuffix(kinds[0]) + _CAUSAL
  try:
    fields, family = families.from_config_json(
      # The files of a classifier have no head for tokens.
      {**own, "architectures": [causal], "tie_word_embeddings": True}
    )
  except ValueError as error:
    raise ValueError(f"{directory}: {error}") from error
  parts = (*family.other_parts, _HEAD)
  return Classifier(
    fields,
    dataclasses.replace(family, other_parts=parts),
    scores_steps=kinds[0] == _OF_STEPS,
  )


def head(
  directory: pathlib.Path, classifier: Classifier
) -> dict[str, np.ndarray]:  # kernel [D], bias []
  """The head of a checkpoint, in float32.

  Raises:
    FileNotFoundError, ValueError: The head is missing, or has another shape.
  """
  tensors = safetensors.find(directory)
  width = classifier.fields["width"]
  most = 2 if classifier.scores_steps else 1
  if (kernel := tensors.get(f"{_HEAD}weight")) is None:
    raise ValueError(
      f"{directory} has no tensor {_HEAD}weight, the head of its architecture;"
      " it is of another kind, or a part of it is missing."
    )
  labels = kernel.shape[0]
  if kernel.shape != (labels, width) or not 1 <= labels <= most:
    raise ValueError(
      f"{directory}: {_HEAD}weight is {list(kernel.shape)}; needs"
      f" [{' or '.join(map(str, range(1, most + 1)))}, {width}]: a reward model"
      f" has one label{', or wrong and right' if most == 2 else ''}."
    )
  weight = np.asarray(kernel.map(), np.float32)
  bias = np.zeros(labels, np.float32)
  if (tensor := tensors.get(f"{_HEAD}bias")) is not None:
    bias = np.asarray(tensor.map(), np.float32)
  if labels == 2:
    weight, bias = weight[1:] - weight[:1], bias[1:] - bias[:1]
  return {"kernel": weight[0], "bias": bias[0]}
