"""Names of slices of TPUs: what they mean, and which are refused."""

import importlib.util

import pytest

from experiments.pods import chips


@pytest.mark.parametrize(
  ("name", "topology", "num_chips"),
  [
    # As libtpu has it.
    ("v5e:4x4", "v5e:4x4", 16),
    ("v5p:4x4x4", "v5p:4x4x4", 64),
    ("v6e:16x16", "v6e:16x16", 256),
    ("tpu7x:2x2x1", "tpu7x:2x2x1", 4),
    ("v5p:16x16x16", "v5p:16x16x16", 4096),
    ("v5p:4x4x12", "v5p:4x4x12", 192),
    # Products whose names count chips.
    ("v5e-16", "v5e:4x4", 16),
    ("v5litepod-16", "v5e:4x4", 16),
    ("v6e-256", "v6e:16x16", 256),
    # Products whose names count cores, two a chip.
    ("v5p-128", "v5p:4x4x4", 64),
    ("v5p-512", "v5p:4x8x8", 256),
    ("v4-4096", "v4:8x16x16", 2048),
    ("tpu7x-8", "tpu7x:2x2x1", 4),
  ],
)
def test_a_name_means_a_slice(name, topology, num_chips):
  found = chips.parse(name)
  assert (found.topology, found.num_chips) == (topology, num_chips)


@pytest.mark.parametrize(
  ("name", "message"),
  [
    ("v5e:32x32", "no slice of v5e has that shape; there are 2x2, 2x4"),
    ("v5e:3x3", "no slice of v5e has that shape"),
    ("v5p:16x16x40", "multiples of 4 in ascending order, up to 6144 chips"),
    ("v5p:8x4x4", "ascending order"),
    ("v5p-100", r"has 100 \(the number in its name counts TensorCores"),
    ("v5e-100", r"has 100 \(the number in its name counts chips"),
    ("v7x:2x2x1", "no generation 'v7x' here; known: v4, v5e, v5litepod, v5p"),
    ("tpu", "needs GENERATION:SHAPE"),
  ],
)
def test_what_is_not_sold_is_refused(name, message):
  with pytest.raises(ValueError, match=message):
    chips.parse(name)


@pytest.mark.parametrize("chip", chips.CHIPS.values(), ids=lambda c: c.name)
def test_the_product_of_a_slice_is_that_slice(chip):
  for shape in chip.slices:
    of = chips.Slice(chip, shape)
    assert chips.parse(of.product) == chips.parse(of.topology) == of


def test_without_libtpu_it_is_said_what_to_install(monkeypatch):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  with pytest.raises(ImportError, match=r'pip install "jax\[tpu\]=='):
    chips.devices(chips.parse("v5e-8"))
