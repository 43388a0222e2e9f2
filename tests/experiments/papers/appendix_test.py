"""Appendix, BibTeX, and pages that are written again."""

from experiments.papers import appendix, citations, regenerate, registry
from experiments.sweeps import latex
from grpo_jax import algorithms
from tests.experiments.comparison import examples


def test_every_algorithm_has_a_paper_but_those_that_have_none():
  bibtex, without = citations.of(algorithms.ALGORITHMS)
  assert set(without) == {"otb", "sft"}
  keys = [line for line in bibtex.splitlines() if line.startswith("@")]
  assert len(set(keys)) == len(keys)
  assert bibtex.count("{") == bibtex.count("}")


def test_two_papers_of_an_algorithm_are_two_entries():
  bibtex, without = citations.of(["ppo_dpo", "ppo", "my_pkg:FOO"])
  assert without == ["my_pkg:FOO"]
  assert bibtex.count("@misc") == 2
  assert "@misc{schulman2017proximal,\n  title = {{Proximal" in bibtex
  assert citations.key("2606.06475") == "arxiv2606.06475"


def test_the_appendix_of_runs_says_what_differs_between_algorithms(tmp_path):
  examples.make(tmp_path / "a", [0.1, 0.2], "grpo", seed=1)
  examples.make(tmp_path / "b", [0.1, 0.2], "rloo", seed=4)
  text, bibtex = appendix.of_runs([tmp_path])
  shared, differing = text.split(r"\label{tab:differing}")
  assert r"\texttt{seeds} & 1, 4 \\" in shared
  assert r"\texttt{rl.steps} & 200 \\" in shared
  assert r"\texttt{algorithm.name} & grpo & rloo \\" in differing
  assert "clip\\_low" in text
  assert "ahmadian2024back" in bibtex
  assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 2


def test_the_appendix_of_a_config_has_versions():
  text, _ = appendix.of_config("configs/quickstart.py:gspo")
  assert r"\texttt{algorithm.name} & gspo \\" in text
  assert "jax & " in text
  assert r"\label{tab:environment}" in text
  # Of the options that all algorithms have, those that GSPO has otherwise.
  assert r"\texttt{algorithm.clip\_low}" in text
  assert r"\texttt{algorithm.kl\_horizon}" not in text


def test_text_is_escaped():
  assert latex.escape("a_b 5 % & λ") == r"a\_b 5 \% \& $\lambda$"


def test_pages_are_written_again_with_the_same_bytes():
  judges = registry.EXPERIMENTS["judges"]  # It has no figure.
  states = regenerate.again(judges, write=False)
  assert states == {"docs/judges.md": regenerate.SAME}


def test_another_page_is_said_to_differ(tmp_path):
  old, new = tmp_path / "a.md", tmp_path / "b.md"
  old.write_text("one\ntwo\n")
  new.write_text("one\n2\n")
  assert regenerate._first(old, new) == "line 2 was 'two', now '2'"
