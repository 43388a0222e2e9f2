"""The size of the house: imports, lines and functions may shrink, not grow."""

import pytest

from scripts import house


@pytest.mark.parametrize("read", [house.in_source, house.in_processes])
def test_no_number_is_above_the_recorded_one(read):
  assert house.grown(read()) == {}, (
    "(now, recorded): raise it in scripts/house.py, and say why in the commit"
  )


def test_settings_are_recorded_to_import_no_jax():
  assert house.RECORDED["of JAX and Flax, that settings import"] == 0
