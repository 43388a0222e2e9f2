"""An algorithm that is wrong is told where; nothing of this compiles."""

import sys
import textwrap

import pytest

from grpo_jax.algorithms.contract import reference
from grpo_jax.cli import check_algorithm

WRONG = """
  from grpo_jax.algorithms import grpo
  from grpo_jax.algorithms.options import ClipConfig
  from grpo_jax.ops import aggregation, ratios
  from grpo_jax.types import Algorithm

  def make(name, loss=None, **fields):
    known = dict(
      name=name, config_class=ClipConfig, advantages=grpo.advantages,
      policy_loss=loss, aggregate=aggregation.over_sequences,
      needs=("old_logp",), min_group_size=2)
    return Algorithm(**{**known, **fields})

  def raises(config, policy, batch):
    return batch.nothing_of_this_name

  def scalar(config, policy, batch):
    return policy.logp.sum()

  def missing(config, policy, batch):
    policy.logp.sum()

  def arguments(policy, batch):
    return policy.logp

  def unasked(config, policy, batch):
    return ratios.sequence_ratio(policy.logp, batch.old_logp, batch.mask, 20.0)

  def helper(batch):
    return batch.anchor.sum_pi_squared[:, 0]

  def by_helper(config, batch):
    return grpo.advantages(config, batch) * helper(batch)

  def undrawn(config, policy, batch):
    return policy.logp + policy.entropy

  def averaged(values, mask):
    return values.mean()

  RAISES, SCALAR = make("raises", raises), make("scalar", scalar)
  MISSING, ARGUMENTS = make("missing", missing), make("arguments", arguments)
  UNASKED = make("unasked", unasked, needs=())
  HELPER = make("helper", unasked, advantages=by_helper)
  UNDRAWN = make("undrawn", undrawn)
  AVERAGED = make("averaged", raises, aggregate=averaged)
  ADVANTAGES = make("advantages", raises, advantages=lambda c, b: 1.0)
"""
LOSSES = """
  def unknown(logp, maskk):
    return 0.0

  def array(logp):
    return logp

  def nothing(logp):
    pass
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
  (tmp_path / "wrong_algorithms.py").write_text(textwrap.dedent(WRONG))
  (tmp_path / "wrong_losses.py").write_text(textwrap.dedent(LOSSES))
  monkeypatch.syspath_prepend(tmp_path)
  for name in ("wrong_algorithms", "wrong_losses"):
    monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.parametrize(
  ("name", "message"),
  [
    ("RAISES", "AttributeError: 'TrainBatch' object has no attribute 'nothing"),
    ("RAISES", "wrong_algorithms.py:15)"),
    ("SCALAR", "policy_loss (PLACE:17) returned the shape (); needs an"),
    ("SCALAR", "array [B] or [B, T], here (10,) or (10, 6)"),
    ("MISSING", "policy_loss (PLACE:20) returned NoneType; needs an"),
    ("ARGUMENTS", "policy_loss (PLACE:23) has the arguments (policy, batch):"),
    ("UNASKED", "It reads old_logp, which 'wrong_algorithms:UNASKED' does not"),
    ("HELPER", "It reads sum_pi_squared, which 'wrong_algorithms:HELPER' does"),
    ("HELPER", "PLACE:30)"),
    ("UNDRAWN", "It reads entropy, which"),
    ("AVERAGED", "aggregate (PLACE:38) returned the shape (); needs Weigh"),
    ("ADVANTAGES", "advantages (PLACE:47) returned float; needs an array"),
  ],
)
def test_a_wrong_function_is_named(package, tmp_path, capsys, name, message):
  assert not check_algorithm.report(f"wrong_algorithms:{name}", None)
  said = " ".join(capsys.readouterr().out.split())
  place = str(tmp_path / "wrong_algorithms.py")
  assert message.replace("PLACE", place) in said
  assert "1 of 1 checks fail" in said
  assert "advantages as they are; no KL; clip 0.2" in said
  assert "JAX has removed" not in said


@pytest.mark.parametrize(
  ("name", "message"),
  [
    ("unknown", r"unknown \(.*wrong_losses\.py:2\) .*'maskk', .*mean 'mask'\?"),
    ("array", r"array \(.*wrong_losses\.py:5\) returned ndarray .*\(10, 6\)"),
    ("nothing", r"nothing \(.*wrong_losses\.py:8\) returned NoneType"),
  ],
)
def test_a_wrong_reference_is_named(package, monkeypatch, name, message):
  import wrong_losses  # Of the fixture.

  from grpo_jax import algorithms

  algorithm = algorithms.get_algorithm("gpg")
  with pytest.raises(TypeError, match=message):
    reference.compare(
      algorithm, algorithm.config_class(), getattr(wrong_losses, name)
    )


def test_terms_that_a_reference_leaves_out_are_named():
  from grpo_jax import algorithms

  algorithm = algorithms.get_algorithm("gpg")
  config = algorithm.config_class(kl_coef=0.5)
  with pytest.raises(
    AssertionError, match=r"loss \(the config has kl_coef=0.5"
  ):
    reference.compare(algorithm, config, lambda logp: 0.0)
  with pytest.raises(AssertionError, match="loss: the"):
    reference.compare(algorithm, config, lambda logp, kl_coef: 0.0)


def test_advantages_are_those_of_the_module_that_was_named(
  tmp_path, monkeypatch
):
  from grpo_jax import algorithms

  (tmp_path / "aliased_losses.py").write_text(
    "from tests.references import gpg\n"
    "loss = gpg.loss\n"
    "def advantages(rewards): return rewards\n"
  )
  monkeypatch.syspath_prepend(tmp_path)
  algorithm = algorithms.get_algorithm("gpg")
  comparisons = check_algorithm._comparisons(
    algorithm, algorithm.config_class(), "aliased_losses:loss"
  )
  check = next(comparisons)[1]
  assert check.args[3].__module__ == "aliased_losses"


def test_the_largest_difference_is_told():
  ours, theirs = [[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.5], [3.0, 9.0]]
  with pytest.raises(AssertionError) as caught:
    reference._assert_close("gradient", ours, theirs, 1e-5, 0.0)
  assert "has 4, the reference 9 at [1, 1]; 2 of 4 differ" in str(caught.value)
  reference._assert_close("loss", 1.0, 1.0 + 1e-7, 1e-5, 0.0)
  with pytest.raises(AssertionError, match="has nan, the reference 1;"):
    reference._assert_close("loss", float("nan"), 1.0, 1e-5, 0.0)


def test_the_same_problem_is_told_once(monkeypatch, capsys):
  def fails(algorithm, config):
    raise ValueError("the very same")

  def holds(algorithm, config):
    pass

  monkeypatch.setattr(
    check_algorithm.checks, "ALL", (holds, fails, lambda *_: fails(*_))
  )
  assert not check_algorithm.report("gspo", None)
  said = capsys.readouterr().out
  assert said.count("the very same") == 1
  assert "as above: fails" in said
  assert "2 of 3 checks fail" in said
