"""Templates of strangers end, soon and with a text of some size."""

import time

import pytest

from grpo_jax.data import chat

TEXTS = {
  "{{ 'a' * 3 ~ 2 ** 3 ~ 'b' + 'c' }}": "aaa8bc",
  "{{ 3 * 'ab' }}{{ [1] * 2 }}{{ 2 * 3 ~ none }}": "ababab[1, 1]6None",
  "{% for x in messages %}{{ loop.index ~ x }}{% endfor %}": "1ab2ab",
  "{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(1) ~ m(2) }}": "<1><2>",
  "{% set ns = namespace(a='') %}{% for x in range(3) %}"
  "{% set ns.a = ns.a ~ x %}{% endfor %}{{ ns.a }}": "012",
  "{% for x in [] %}x{% else %}empty{% endfor %}": "empty",
  "{{ messages | join(', ') | upper }}": "AB, AB",
  "{{ messages | map('upper') | list }}": "['AB', 'AB']",
  "{{ 'x'.center(5) }}{{ {'a': 1} | tojson }}": '  x  {"a": 1}',
  "{% set x %}{{ 1 }}{{ 2 }}{% endset %}{{ x }}": "12",
  "{{ missing ~ 1 }}": "1",
}
LOOP = "{% for i in range(99999) %}"
HOSTILE = [
  # Time, without a character of output.
  LOOP * 3 + "{% endfor %}" * 3,
  "{% macro m(n) %}{% if n %}{{ m(n - 1) ~ m(n - 1) }}{% endif %}"
  "{% endmacro %}{{ m(60) }}",
  "{% for i in range(9) recursive %}{{ loop(range(9)) }}{% endfor %}",
  # Size.
  "{{ 'a' * 10000000000 }}",
  "{{ 10000000000 * [1] }}",
  "{{ 9 ** (9 ** 9) }}",
  "{{ 'a'.center(10000000000) }}",
  "{{ 'a' | center(10000000000) }}",
  "{{ [1] | tojson(indent=10000000000) }}",
  "{{ range(10000000000) | list }}",
  LOOP + "{{ '" + 100 * "x" + "' }}{% endfor %}",
  *(
    "{% set ns = namespace(a='ab') %}{% for i in range(50) %}"
    + doubled
    + "{% endfor %}{{ ns.a }}"
    for doubled in (
      *("{% set ns.a = ns.a + ns.a %}", "{% set ns.a = ns.a ~ ns.a %}"),
      "{% set ns.a = ns.a * 2 %}",
      "{% set ns.a %}{{ ns.a }}{{ ns.a }}{% endset %}",
      "{% set ns.a = ns.a | replace('b', 'bb') %}",
      "{% set ns.a = ns.a.replace('b', 'bb') %}",
      "{% set ns.a = [ns.a, ns.a] | join %}",
    )
  ),
  "{% set ns = namespace(a=7) %}{% for i in range(50) %}"
  "{% set ns.a = ns.a * ns.a %}{% endfor %}{{ ns.a }}",
  # Programs that are none, or that fail.
  "{{ (" * 2000,
  "{% if 1 %}" * 500 + "{% endif %}" * 500,
  "{% for i in [1] %}" * 30 + "{% endfor %}" * 30,
  "{{ 1 / 0 }}",
  "{{ messages[0].nothing.more }}",
  "{{ ''.__class__.__mro__ }}",
  "{{ lipsum(9) }}",
  "{% include '/etc/passwd' %}",
  "{{ 'x' | nothing }}",
]


@pytest.mark.parametrize("source", TEXTS)
def test_limits_change_no_text(source):
  assert chat.render(source, {"messages": ["ab", "ab"]}) == TEXTS[source]


@pytest.mark.parametrize("source", HOSTILE)
def test_what_does_not_end_is_ended(monkeypatch, source):
  monkeypatch.setattr(chat, "MAX_SECONDS", 0.2)
  start = time.thread_time()
  with pytest.raises(ValueError, match=r".+ \(\w+\)"):
    chat.render(source, {"messages": ["ab"]})
  assert time.thread_time() - start < 2


def test_a_template_that_reads_the_clock_is_told_so_once(caplog):
  chat._warn_of_date.cache_clear()
  source = (
    "{% if not day %}{% set day = strftime_now('%Y') %}{% endif %}{{ day }}"
  )
  assert chat.render(source, {"day": "Monday"}) == "Monday"
  assert not caplog.records
  for _ in range(2):
    assert len(chat.render(source, {})) == 4
  assert [x for x in caplog.messages if "date_string" in x] == caplog.messages
  assert len(caplog.messages) == 1
