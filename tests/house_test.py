"""The size of the house: imports, lines and functions may shrink, not grow."""

from scripts import house


def test_no_recorded_number_of_the_source_is_exceeded():
  numbers = house.in_source()
  grown = {
    name: (number, house.RECORDED[name])
    for name, number in numbers.items()
    if number > house.RECORDED[name]
  }
  assert not grown, f"(now, recorded) in scripts/house.py: {grown}"


def test_settings_import_no_jax_and_a_quickstart_only_what_it_names():
  numbers = house.in_processes()
  assert numbers["of JAX and Flax, that settings import"] == 0
  grown = {
    name: (number, house.RECORDED[name])
    for name, number in numbers.items()
    if number > house.RECORDED[name]
  }
  assert not grown, f"(now, recorded) in scripts/house.py: {grown}"
