"""Files with clusters of similar prompts, each ordered by difficulty.

| array    | content                                                        |
|----------|----------------------------------------------------------------|
| digests  | a hash of each record, 16 bytes [N, 16]                        |
| clusters | cluster of each record, from 0 [N]                             |
| losses   | mean negative log-prob of its reference solution, nats per     |
|          | token, under the policy that was used [N]                      |
| number   | number of clusters asked for; there may be fewer               |
| about    | other settings, as JSON                                        |

The digests tell to which data the clusters belong: a file of other data is
rejected.
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
  """Clusters and difficulties of N records.

  Attributes:
    clusters: The cluster of each record, below `number`.
    losses: The difficulty of each record, nats per token.
    number: Most clusters that there may be.
  """

  clusters: np.ndarray  # [N] int
  losses: np.ndarray  # [N] float
  number: int


def digest(record: Record) -> bytes:
  """Hashes the prompt, the answer and the solution of a record."""

  def plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value

  fields = [plain(record[x]) for x in ("prompt", "answer", "completion")]
  text = json.dumps(fields, ensure_ascii=False)
  return hashlib.sha256(text.encode()).digest()[:_SIZE]


def k_means(
  embeddings: np.ndarray,  # [N, D]
  num_clusters: int,
  least: int,
  seed: int,
) -> np.ndarray:  # [N] int
  """Finds clusters by k-means, each with at least `least` members.

  While a cluster has fewer, the smallest one is dissolved, and its members go
  to the clusters with the nearest centres.

  Args:
    embeddings: Embeddings of the records.
    num_clusters: K, the most clusters that there may be.
    least: Fewest members of a cluster.
    seed: Seed of the first centres.

  Raises:
    ValueError: There are too few records.
  """
  num = len(embeddings)
  if not 1 <= num_clusters <= num or num < least:
    raise ValueError(
      f"{num_clusters} clusters of at least {least} prompts each: there are"
      f" {num} prompts; ask for fewer, or give more prompts."
    )
  # The import takes a third of a second, so that only this function does it.
  from scipy.cluster import vq

  x = np.asarray(embeddings, np.float64)
  centres, labels = vq.kmeans2(x, num_clusters, minit="++", rng=seed)
  clusters = np.unique(labels)
  while len(clusters) > 1:
    sizes = np.bincount(labels, minlength=num_clusters)[clusters]
    if sizes.min() >= least:
      break
    smallest = clusters[np.argmin(sizes)]
    clusters = clusters[clusters != smallest]
    (rows,) = np.nonzero(labels == smallest)
    gaps = x[rows, None] - centres[clusters]  # [rows, clusters, D]
    labels[rows] = clusters[np.argmin(np.square(gaps).sum(-1), axis=1)]
  return np.searchsorted(clusters, labels)


def packed(
  records: Sequence[Record], clusters: Clusters, about: Mapping[str, Any]
) -> bytes:
  """The content of a file of clusters, with settings that JSON can hold."""
  buffer = io.BytesIO()
  np.savez_compressed(
    buffer,
    digests=np.array([list(digest(x)) for x in records], np.uint8),
    clusters=clusters.clusters.astype(np.int32),
    losses=clusters.losses.astype(np.float32),
    number=np.int32(clusters.number),
    about=np.array(json.dumps(dict(about), sort_keys=True)),
  )
  return buffer.getvalue()


def read(
  path: epath.PathLike, records: Sequence[Record], setting: str
) -> Clusters:
  """Reads the clusters of these records, all of them, from a file.

  Messages name the `setting` that has the path.

  Raises:
    FileNotFoundError: There is no such file.
    ValueError: The file is of another kind, or of other data.
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
      f"{where} is not a file of clusters ({error});"
      " `python -m experiments.embed` writes one."
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


def ranked(clusters: Clusters) -> tuple[np.ndarray, np.ndarray]:
  """The members of each cluster, the easiest first.

  Returns:
    Indices of the records [N], cluster by cluster; and the sizes of the
    clusters [number], some of which may be 0. Records with equal losses keep
    their order.
  """
  labels = clusters.clusters
  order = np.lexsort((np.arange(len(labels)), clusters.losses, labels))
  sizes = np.bincount(labels, minlength=clusters.number)
  return order.astype(np.int32), sizes.astype(np.int32)
