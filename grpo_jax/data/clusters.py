"""Clusters of like prompts, each ordered by how hard its prompts are: a file.

| array    | content                                                        |
|----------|----------------------------------------------------------------|
| digests  | what each record is, 16 bytes of a hash [N, 16]                |
| clusters | its cluster, from 0 [N]                                        |
| losses   | mean negative log-prob of its reference solution, nats per     |
|          | token, under the policy that was asked [N]                     |
| number   | how many clusters were asked for; there may be fewer           |
| about    | what else was asked, as JSON                                   |

The digests say whose clusters they are: a file of other data is refused.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from grpo_jax.data.sources import Record

_ARRAYS = ("digests", "clusters", "losses", "number")
_SIZE = 16  # Bytes of a digest.


class Clusters(NamedTuple):
  """What is known of N records.

  Attributes:
    clusters: The cluster of each, below `number`.
    losses: How hard each is, nats per token.
    number: Clusters that there are at most.
  """

  clusters: np.ndarray  # [N] int
  losses: np.ndarray  # [N] float
  number: int


def digest(record: Record) -> bytes:
  """What a record is: a hash of its prompt, its answer and its solution."""

  def plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value

  fields = [plain(record[x]) for x in ("prompt", "answer", "completion")]
  text = json.dumps(fields, ensure_ascii=False)
  return hashlib.sha256(text.encode()).digest()[:_SIZE]


def found(
  embeddings: np.ndarray,  # [N, D]
  num_clusters: int,
  least: int,
  seed: int,
) -> np.ndarray:  # [N] int
  """k-means, without clusters of fewer than `least`.

  The smallest cluster that has fewer is given up, and its members go to those
  of the others whose centres are nearest, until there is none.

  Args:
    embeddings: Of the records.
    num_clusters: K, the most that there may be.
    least: Members of a cluster.
    seed: Of where the centres begin.

  Raises:
    ValueError: There are too few records.
  """
  num = len(embeddings)
  if not 1 <= num_clusters <= num or num < least:
    raise ValueError(
      f"{num_clusters} clusters of at least {least} prompts each: there are"
      f" {num} prompts; ask for fewer, or give more prompts."
    )
  # A third of a second, which other programs need not spend.
  from scipy.cluster import vq

  x = np.asarray(embeddings, np.float64)
  centres, labels = vq.kmeans2(x, num_clusters, minit="++", rng=seed)
  kept = np.unique(labels)
  while len(kept) > 1:
    sizes = np.bincount(labels, minlength=num_clusters)[kept]
    if sizes.min() >= least:
      break
    given_up = kept[np.argmin(sizes)]
    kept = kept[kept != given_up]
    (rows,) = np.nonzero(labels == given_up)
    gaps = x[rows, None] - centres[kept]  # [rows, kept, D]
    labels[rows] = kept[np.argmin(np.square(gaps).sum(-1), axis=1)]
  return np.searchsorted(kept, labels)


def packed(
  records: Sequence[Record], known: Clusters, about: Mapping[str, Any]
) -> bytes:
  """The content of a file.

  Args:
    records: Of N prompts.
    known: What is known of them.
    about: What was asked, as JSON has it.
  """
  buffer = io.BytesIO()
  np.savez_compressed(
    buffer,
    digests=np.array([list(digest(x)) for x in records], np.uint8),
    clusters=known.clusters.astype(np.int32),
    losses=known.losses.astype(np.float32),
    number=np.int32(known.number),
    about=np.array(json.dumps(dict(about), sort_keys=True)),
  )
  return buffer.getvalue()


def read(
  path: epath.PathLike, records: Sequence[Record], setting: str
) -> Clusters:
  """What a file knows of these records.

  Args:
    path: Local or `gs://` file.
    records: All of them have to be in it.
    setting: That names the file, for messages.

  Raises:
    FileNotFoundError: There is no such file.
    ValueError: It is another kind of file, or of other data.
  """
  path = epath.Path(path)
  where = f"{setting}={str(path)!r}"
  if not path.exists() or path.is_dir():
    raise FileNotFoundError(
      f"{where}: there is no such file; `python -m experiments.embed` writes"
      " it."
    )
  try:
    with np.load(io.BytesIO(path.read_bytes())) as file:
      arrays = {name: file[name] for name in _ARRAYS}
  except (
    LookupError,
    ValueError,
    OSError,
    EOFError,
    zipfile.BadZipFile,
  ) as error:
    raise ValueError(
      f"{where} is no file of clusters ({error}); `python -m experiments.embed`"
      " writes one."
    ) from error
  places = {bytes(row): i for i, row in enumerate(arrays["digests"])}
  rows = [places.get(digest(record), -1) for record in records]
  if missing := rows.count(-1):
    raise ValueError(
      f"{where} is of other data: it knows {len(places)} records, and not"
      f" {missing} of the {len(rows)} of the pool. Write one of the same data"
      " and seed with experiments.embed, of as many records or more."
    )
  number = int(arrays["number"])
  return Clusters(arrays["clusters"][rows], arrays["losses"][rows], number)


def ranked(known: Clusters) -> tuple[np.ndarray, np.ndarray]:
  """The members of each cluster, the easiest first.

  Returns:
    Places of the records [N], cluster by cluster; and the sizes of the clusters
    [number], of which some may be 0. Of records with equal losses the first one
    comes first.
  """
  labels = known.clusters
  order = np.lexsort((np.arange(len(labels)), known.losses, labels))
  sizes = np.bincount(labels, minlength=known.number)
  return order.astype(np.int32), sizes.astype(np.int32)
