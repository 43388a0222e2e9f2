"""Our losses against the recorded outputs of other libraries' real code.

    pytest tests/golden_test.py --golden=DIR

checks every case of a directory in the format of `tests/data/golden` (a
MANIFEST.json, and one .npz for each function of a peer): values, and gradients
where they are given. Without the option the shipped excerpt is checked. At the
end the number of cases is printed for each function.

`tests/golden/` rebuilds each function from `grpo_jax.ops`. A function that is
deliberately not rebuilt is in `NOT_REPRODUCED` with the reason, an output in
`NOT_COMPARED`; a function in none of the tables fails.
"""

import json
import re

import jax
import numpy as np
import pytest

from tests.golden import advantages, losses

# Of the shipped excerpt, one function of each kind: the others are slow tests.
_FAST = (
  *("adv_grpo_verl", "adv_reinforce_pp_verl", "adv_rloo_trl", "agg_loss_verl"),
  *("entropy_and_logprobs_from_logits_verl", "gae_verl", "kl_penalty_verl"),
  *("policy_gspo_verl", "policy_vanilla_verl", "rollout_is_weights_verl"),
  *("rollout_rejection_mask_verl", "trl_gkd_generalized_jsd", "trl_loss_grpo"),
  *("trl_reward_bt", "trl_vllm_is_ratio", "value_loss_verl"),
)
CHECKS = advantages.CHECKS | losses.CHECKS
NOT_REPRODUCED = advantages.NOT_REPRODUCED | losses.NOT_REPRODUCED
NOT_COMPARED = advantages.NOT_COMPARED | losses.NOT_COMPARED


def _tolerance(case: dict, note: str) -> tuple[float, float]:
  """(rtol, atol) that the manifest states for a case."""
  if case["dtype"] == "float32":
    rtol, atol = 1e-4, 1e-5
  else:
    rtol, atol = 1e-6, 1e-8
  if match := re.search(r"rtol (\d\S*)", note):
    rtol = float(match[1])
  if match := re.search(r"atol (\d\S*)", note):
    atol = float(match[1])
  return rtol, atol


def _read(file, names: dict[str, str]) -> dict[str, np.ndarray]:
  return {name: file[key] for name, key in names.items()}


def _as_one_program(check, cases: list[tuple[dict, dict]]) -> list:
  """Results of a check for each pair (hyperparameters, inputs).

  This is one program: otherwise each operation of each case would be compiled.
  """
  # Ids and masks are known before: some checks count with NumPy.
  real = [
    {
      name: x
      for name, x in inputs.items()
      if x.dtype.kind == "f" and "mask" not in name
    }
    for _, inputs in cases
  ]

  @jax.jit
  def outcomes(real):
    return [
      check(hyperparameters, {**inputs, **of_case})
      for (hyperparameters, inputs), of_case in zip(cases, real, strict=True)
    ]

  return jax.device_get(outcomes(real))


def check_file(directory, name: str) -> tuple[str, int]:
  """Checks every case of one .npz; returns its function and their number.

  Raises:
    AssertionError: A case differs, or the function is unknown.
  """
  manifest = json.loads((directory / "MANIFEST.json").read_text())
  entry = manifest["files"][name]
  function = entry["function"]
  assert function in CHECKS or function in NOT_REPRODUCED, (
    f"{name}: no check for {function!r}; add one to tests/golden/, or the"
    " reason why there is none to NOT_REPRODUCED."
  )
  if function not in CHECKS:
    return function, 0
  with np.load(directory / name) as file, jax.enable_x64(True):
    cases = [
      (case["hyperparameters"], _read(file, case["inputs"]))
      for case in entry["cases"].values()
    ]
    found = _as_one_program(CHECKS[function], cases)
    for (label, case), (outputs, gradients) in zip(
      entry["cases"].items(), found, strict=True
    ):
      rtol, atol = _tolerance(case, entry["note"])
      for ours, theirs in (
        (outputs, case["outputs"]),
        (gradients, case.get("grads") or {}),
      ):
        for output, expected in _read(file, theirs).items():
          if (function, output) in NOT_COMPARED:
            continue
          assert output in ours, f"{name} {label}: {output} is not computed"
          np.testing.assert_allclose(
            np.reshape(ours[output], expected.shape),
            expected,
            rtol,
            atol,
            err_msg=f"{name} {label}: {output}",
          )
  return function, len(entry["cases"])


def pytest_generate_tests(metafunc):
  if "npz" in metafunc.fixturenames:
    directories = metafunc.config.stash[metafunc.config.golden_key]
    every = bool(metafunc.config.getoption("golden"))
    metafunc.parametrize(
      "directory, npz",
      [
        pytest.param(
          directory,
          name,
          id=f"{directory.name}-{name[:-4]}",
          marks=() if every or name[:-4] in _FAST else pytest.mark.slow,
        )
        for directory in directories
        for name in json.loads((directory / "MANIFEST.json").read_text())[
          "files"
        ]
      ],
    )


def test_a_peer_agrees(directory, npz, record_property):
  function, count = check_file(directory, npz)
  record_property("golden", [function, count])


def _copy(source, target, edit):
  """One .npz of a directory with an edited manifest."""
  name = "agg_loss_verl.npz"
  manifest = json.loads((source / "MANIFEST.json").read_text())
  manifest["files"] = {name: manifest["files"][name]}
  edit(manifest["files"][name])
  (target / "MANIFEST.json").write_text(json.dumps(manifest))
  (target / name).write_bytes((source / name).read_bytes())
  return name


def test_an_unknown_function_fails(tmp_path, request):
  source = request.config.stash[request.config.golden_key][0]
  name = _copy(
    source, tmp_path, lambda entry: entry.update(function="core_algos.new")
  )
  with pytest.raises(AssertionError, match=r"no check for 'core_algos\.new'"):
    check_file(tmp_path, name)


def test_a_case_that_differs_fails(tmp_path, request):
  def swap(entry):
    first, *_ = entry["cases"].values()
    first["outputs"]["loss"] = first["inputs"]["loss_mat"]

  source = request.config.stash[request.config.golden_key][0]
  name = _copy(source, tmp_path, swap)
  with pytest.raises((AssertionError, ValueError)):
    check_file(tmp_path, name)


def test_every_reason_is_one_sentence_or_more():
  for reason in [*NOT_REPRODUCED.values(), *NOT_COMPARED.values()]:
    assert len(reason.split()) >= 5, reason
