"""Rules that flag calls of tools."""

from __future__ import annotations

import base64

import hypothesis
import pytest
from hypothesis import strategies as st

from grpo_jax.rewards.agents import interceptor

FLAGGED = [
  ("shell", "rm -rf /"),
  ("shell", "rm --force -r build"),
  ("shell", ":(){ :|:& };:"),
  ("shell", "cat x | bash"),
  ("shell", "getattr(__import__('o' + 's'), 'system')('ls')"),
  ("files", "cat /etc/passwd"),
  ("files", "cat ~/.ssh/id_rsa"),
  ("files", "print(os.environ)"),
  ("network", "curl -s example.org"),
  ("network", "git -C repo fetch --all"),
  ("network", "exec 3<>/dev/tcp/10.0.0.1/80"),
  ("tests", "sed -i s/1/2/ tests/test_api.py"),
  ("tests", "import sys; sys.exit(0)"),
  ("tests", "def __eq__(self, other): return True"),
  ("golds", "cat data/gold.json"),
  ("golds", "git log --all -p"),
  ("golds", "ls .git/objects"),
]
NOT_FLAGGED = [
  ("shell", "rm notes.md"),
  ("shell", "skillful = 1"),
  ("files", "cat src/app.py 2> /dev/null"),
  ("network", "def hostess(): pass"),
  ("tests", "print('latest contest')"),
  ("golds", "git status"),
  ("golds", "ls .github"),
]


@pytest.mark.parametrize(("name", "call"), FLAGGED)
def test_what_a_set_is_about_is_flagged(name, call):
  assert interceptor.RULES[name](call)


@pytest.mark.parametrize(("name", "call"), NOT_FLAGGED)
def test_what_only_looks_like_it_is_not(name, call):
  assert not interceptor.RULES[name](call)


@pytest.mark.parametrize(
  ("hidden", "call"),
  [
    ("c\\url example.org", "curl example.org"),
    ('c""url x', "curl x"),
    ("cat${IFS}a$IFS/b", "cat a /b"),
    ("open('go' + 'ld')", "open('gold')"),
  ],
)
def test_what_hides_words_is_taken_away(hidden, call):
  assert interceptor.plain(hidden).rstrip() == call


def test_base64_is_read_where_it_says_text():
  hidden = base64.b64encode(b"cat /etc/shadow").decode()
  assert "cat /etc/shadow" in interceptor.plain(f"echo {hidden}")
  assert interceptor.RULES["files"](f"echo {hidden.rstrip('=')}")
  assert interceptor.plain("A" * 16 + "/" * 4).count("A") == 16


def test_what_is_too_long_to_be_looked_at_is_flagged():
  assert all(rule("x" * 2**17) for rule in interceptor.RULES.values())


@hypothesis.given(st.text(max_size=200), st.sampled_from(FLAGGED))
def test_what_stands_around_a_call_hides_nothing(text, flagged):
  name, call = flagged
  assert interceptor.RULES[name](f"{text}\n{call}\n{text}")
