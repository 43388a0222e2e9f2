"""The reader of compiled programs, against programs with known counts."""

import functools
import pathlib

import jax
import jax.numpy as jnp
import pytest

from experiments.pods import costs

SCOPES = ("decode", "update", "prefill")


def compiled(function, *shapes) -> str:
  arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
  return jax.jit(function).lower(*arguments).compile().as_text()


def analyze(text: str, most_tokens: int | None = None) -> costs.Analysis:
  found = costs.analyze(text, SCOPES, most_tokens=most_tokens)
  assert found.matmuls[0] == found.matmuls[1]
  return found


def flops(found: costs.Analysis) -> float:
  return sum(costs.flops for costs in found.phases.values())


def scan(x, w, length):  # Products of a square x, one after another.
  return jax.lax.scan(lambda x, _: (x @ w, None), x, length=length)[0]


def test_a_scan_counts_its_products_as_often_as_it_runs():
  text = compiled(functools.partial(scan, length=8), (64, 64), (64, 64))
  assert flops(analyze(text)) == 8 * 2 * 64**3


def test_nested_loops_multiply():
  def function(x, w):
    return jax.lax.fori_loop(0, 3, lambda _, x: scan(x, w, 5), x)

  text = compiled(function, (32, 32), (32, 32))
  assert flops(analyze(text)) == 3 * 5 * 2 * 32**3


def decode(x, w, limit):
  """A loop as the sampler's: a limit, and an end that data decide."""
  with jax.named_scope("decode"):
    return jax.lax.while_loop(
      lambda carry: (carry[1] < limit) & (carry[0] < 1e3).any(),
      lambda carry: (carry[0] @ w, carry[1] + 1),
      (x, 0),
    )[0]


def test_a_loop_that_may_end_early_counts_its_limit_and_says_so():
  found = analyze(compiled(functools.partial(decode, limit=7), *[(16, 16)] * 2))
  assert found.phases["decode"].flops == 7 * 2 * 16**3
  (loop,) = found.loops
  assert (loop.trips, loop.is_bound) == (7, True)


def test_a_loop_without_limit_takes_the_one_that_is_given():
  text = compiled(functools.partial(decode, limit=2**31 - 1), *[(16, 16)] * 2)
  assert flops(analyze(text, most_tokens=9)) == 9 * 2 * 16**3


def test_a_loop_that_only_data_end_is_counted_once_and_named():
  def function(x, w):
    with jax.named_scope("update"):
      return jax.lax.while_loop(lambda x: (x < 1e3).any(), lambda x: x @ w, x)

  found = analyze(compiled(function, (16, 16), (16, 16)))
  assert found.phases["update"].flops == 2 * 16**3
  assert ["update" in loop.op_name for loop in found.unresolved] == [True]


def test_an_instruction_belongs_to_its_innermost_scope():
  def function(x, w):
    with jax.named_scope("update"):
      x = x @ w
      with jax.named_scope("prefill"):
        return jnp.tanh(x) @ w @ w

  found = analyze(compiled(function, (16, 16), (16, 16)))
  assert found.phases["update"].flops == 2 * 16**3
  assert found.phases["prefill"].flops == 2 * 2 * 16**3


def test_the_branch_that_multiplies_most_is_counted():
  def function(x, w):
    return jax.lax.cond(
      x[0, 0] > 0, lambda: scan(x, w, 4), lambda: scan(x, w, 6)
    )

  text = compiled(function, (16, 16), (16, 16))
  assert flops(analyze(text)) == 6 * 2 * 16**3


# As libtpu 0.0.42 writes it, shortened: a tensor's layout may be in VMEM
# (S(1)), products are convolutions, a kernel's metadata has lines of its own,
# and loops carry what they read. Two steps of a cache that grows are two loops.
TPU = (pathlib.Path(__file__).parents[2] / "data/hlo/token_loop.txt").read_text(
  encoding="utf-8"
)


def tpu(gather: str = "", transfer: str = "", limit: int = 12) -> str:
  text = TPU.replace("  GATHER\n", gather).replace("  TRANSFER\n", transfer)
  return text.replace("LIMIT", str(limit))


def test_products_of_a_tpu_and_what_kernels_declare_are_counted():
  found = analyze(tpu())
  # From 2 to 12: ten steps.
  assert found.phases["decode"].flops == 10 * (2 * 8 * 128 * 256 + 1000)
  assert found.kernels == {}


def test_bytes_are_those_of_hbm_and_of_slices():
  found = analyze(tpu())
  # A step reads one of four matrices; x and y are in VMEM.
  # What is copied into VMEM before the loop is read once.
  steps = 10 * 2 * 128 * 256
  assert found.phases["decode"].bytes == steps + 2 * 8 * 128


def test_collectives_have_a_phase_a_count_and_what_they_send():
  reduced, sent = analyze(tpu()).collectives
  assert (reduced.kind, reduced.phase, reduced.count) == (
    "all-reduce",
    "decode",
    10,
  )
  assert (reduced.group_size, reduced.is_async) == (2, False)
  assert reduced.sent == 10 * 2 * (2 * 8 * 128) / 2
  assert (sent.kind, sent.phase, sent.is_async) == (
    "collective-permute",
    "update",
    True,
  )
  assert sent.sent == 2 * 8 * 128


@pytest.mark.parametrize(
  ("groups", "size"),
  [
    ("{{0,1,2,3}}", 4),
    ("[2,2]<=[4]", 2),
    ("[1,4]<=[2,2]T(1,0)", 4),
    ("mesh['axis_0'=2,'axis_1'=2] {'axis_1'}", 2),
    ("mesh['axis_0'=2,'axis_1'=2] {'axis_0','axis_1'}", 4),
    ("mesh['axis_0'=8] {'axis_0':(1)4}", 4),
    ("{}", 4),
  ],
)
def test_replica_groups_are_read_in_every_form(groups, size):
  text = tpu().replace("replica_groups=[2,2]<=[4]", f"replica_groups={groups}")
  assert analyze(text).collectives[0].group_size == size


def gather(of: str) -> str:
  return (
    f"  %whole = bf16[128,256]{{1,0}} all-gather(%{of}), channel_id=2,"
    " dimensions={1}, replica_groups=[1,4]<=[4],"
    ' metadata={op_name="jit(step)/decode/while/body/gather"}\n'
  )


def test_a_gather_of_weights_for_each_token_is_found():
  (found,) = analyze(tpu(gather("shard"))).weight_gathers
  assert (found.count, found.bytes) == (10, 2 * 128 * 256)


def test_a_gather_of_activations_is_none_of_weights():
  found = analyze(tpu(gather("x")))
  assert found.weight_gathers == []
  assert sum(one.kind == "all-gather" for one in found.collectives) == 1


def test_weights_that_travel_in_an_inner_loop_are_found():
  """Multiplies as the partitioner does: shards of devices are passed around."""
  inner = """
%turn (t: (s32[], bf16[128,64])) -> (s32[], bf16[128,64]) {
  %t = (s32[], bf16[128,64]) parameter(0)
  %k = s32[] get-tuple-element(%t), index=0
  %piece = bf16[128,64] get-tuple-element(%t), index=1
  %more = s32[] constant(1)
  %after = s32[] add(%k, %more)
  %passed = bf16[128,64] collective-permute(%piece), channel_id=4
  ROOT %both = (s32[], bf16[128,64]) tuple(%after, %passed)
}

%turns (t.1: (s32[], bf16[128,64])) -> pred[] {
  %t.1 = (s32[], bf16[128,64]) parameter(0)
  %k.1 = s32[] get-tuple-element(%t.1), index=0
  %three = s32[] constant(3)
  ROOT %less = pred[] compare(%k.1, %three), direction=LT
}

%add ("""
  call = """  %none = s32[] constant(0)
  %round = (s32[], bf16[128,64]) tuple(%none, %shard)
  %rounds = (s32[], bf16[128,64]) while(%round), condition=%turns, body=%turn
"""
  text = tpu(call).replace("\n%add (", inner, 1)
  (found,) = analyze(text).weight_gathers
  assert (found.kind, found.count) == ("collective-permute", 30)


def test_transfers_to_the_host_are_told_from_those_between_slices():
  host = (
    "  %token = token[] after-all()\n"
    "  %out.1 = (bf16[8,128], u32[], token[]) send(%state, %token),"
    " channel_id=9, is_host_transfer=true\n"
  )
  (found,) = analyze(tpu(transfer=host)).host_transfers
  assert (found.opcode, found.count) == ("send", 1)
  between = host.replace(
    "is_host_transfer=true",
    "is_host_transfer=true, frontend_attributes={_xla_host_transfer_handler_"
    'name="xla_megascale_runtime"}',
  )
  found = analyze(tpu(transfer=between))
  assert found.host_transfers == []
  assert len(found.transfers) == 1


def test_a_sum_of_which_a_slice_is_kept_is_a_reduce_scatter():
  text = tpu().replace("%fused", "%all-reduce-scatter.1")
  text = text.replace(
    "  ROOT %conv",
    "  %all = bf16[8,128]{1,0} all-reduce(%p.0), channel_id=7,"
    " replica_groups=[1,4]<=[4]\n  ROOT %conv",
  )
  found = analyze(text).collectives[0]
  assert (found.kind, found.is_async) == ("reduce-scatter", False)
  assert found.sent == 10 * 2 * 8 * 128 * 3 / 4


def test_a_gather_beside_several_fusions_is_one_and_asynchronous():
  text = tpu()
  part = (
    "  %all = bf16[32,128]{1,0} all-gather(%p.0), channel_id=7,"
    " dimensions={0}, replica_groups=[1,4]<=[4],"
    ' backend_config={"async_collective_fusion_config":{}}\n  ROOT %conv'
  )
  text = text.replace("  ROOT %conv", part)
  start, end = text.index("%fused ("), text.index("%add (")
  copy = text[start:end].replace("%fused", "%again")
  text = text[:end] + copy + text[end:]
  text = text.replace(
    "  %kernel =",
    "  %y.2 = bf16[8,256]{1,0:S(1)} fusion(%x, %ws), kind=kOutput,"
    " calls=%again\n  %kernel =",
  )
  found = [one for one in analyze(text).collectives if one.kind == "all-gather"]
  assert [(one.count, one.is_async) for one in found] == [(10, True)]


# As libtpu 0.0.42 writes an asynchronous gather, shortened: it starts in a
# fusion, goes on beside a product in others, and ends in one. All of them have
# the shard and the whole among their operands and results.
BESIDE_LOOP = (
  pathlib.Path(__file__).parents[2] / "data/hlo/gather_beside_loop.txt"
).read_text(encoding="utf-8")
WHOLE = 2 * 128 * 256


def test_a_gather_that_goes_on_beside_a_loop_is_sent_once():
  (found,) = analyze(BESIDE_LOOP).collectives
  assert (found.count, found.bytes, found.is_async) == (1, WHOLE, True)
  assert (found.phase, found.in_token_loop) == ("update", False)


def test_a_product_beside_a_gather_moves_what_it_moves_without_it():
  found = analyze(BESIDE_LOOP).phases
  assert found["decode"].flops == 5 * 2 * 8 * 128 * 256
  # In each of five steps it reads a state and a kernel, and writes a state.
  of_step = 2 * 8 * 128 + WHOLE + 2 * 8 * 256
  # The gather itself counts as sent.
  assert sum(of.bytes for of in found.values()) == 5 * of_step


def test_a_gather_that_starts_in_a_loop_is_sent_in_each_step():
  (line,) = (
    line
    for line in BESIDE_LOOP.splitlines(keepends=True)
    if "%async-collective-start.1 =" in line
  )
  inside = line.replace("start.1 =", "start.2 =").replace("%shard.5", "%shard")
  text = BESIDE_LOOP.replace("  %beside =", inside + "  %beside =")
  found = analyze(text).collectives
  assert [one.count for one in found] == [1, 5]


def test_a_copy_belongs_to_what_reads_it_first():
  found = analyze(tpu())
  # The state, which goes into the token loop.
  assert "other" not in found.phases or found.phases["other"].bytes == 0


def test_a_second_loop_goes_on_where_the_first_one_ended():
  again = (
    "  %loop.2 = (s32[], bf16[8,128], bf16[4,128,256], bf16[128,64])"
    " while(%loop), condition=%condition.2, body=%body.1,"
    ' metadata={op_name="jit(step)/decode/while"}\n'
  )
  text = tpu(transfer=again)
  start = text.index("%condition.1 (")
  end = text.index("ENTRY")
  second = text[start:end].replace("condition.1", "condition.2")
  second = second.replace("constant(12)", f"constant({2**31 - 1})")
  found = analyze(text[:end] + second + text[end:], most_tokens=40)
  assert [loop.trips for loop in found.loops] == [10, 28]


def test_a_window_that_reaches_into_padding_multiplies_what_it_meets():
  """Two batch dimensions of a product, as TPUs write them."""
  text = tpu().replace(
    "%conv = bf16[8,256]{1,0:T(8,128)S(1)} convolution(%p.0, %w),"
    " dim_labels=bf_io->bf",
    "%conv = bf16[8,256]{1,0:T(8,128)S(1)} convolution(%left, %right),"
    " window={size=4 pad=3_3 rhs_reversal=1}, dim_labels=0bf_io0->0bf",
  )
  text = text.replace(
    "  ROOT %conv",
    "  %left = bf16[1,8,128]{2,1,0} bitcast(%p.0)\n"
    "  %right = bf16[128,64,4]{2,1,0} bitcast(%w)\n  ROOT %conv",
  ).replace("%conv = bf16[8,256]", "%conv = bf16[4,8,64]")
  found = analyze(text)
  assert found.phases["decode"].flops == 10 * (2 * 8 * 128 * 256 + 1000)


def test_a_computation_that_is_lost_shows_in_the_count_of_products():
  text = tpu().replace("calls=%fused", "calls=%add")
  found = costs.analyze(text, SCOPES)
  assert found.matmuls == (0, 1)


def test_a_computation_of_another_core_ends_where_it_says_so():
  text = tpu()
  start = text.index("%fused")
  end = text.index("\n}\n", start) + len("\n}")
  of_core = text[:end] + ', execution_thread="sparsecore"' + text[end:]
  assert analyze(of_core) == analyze(text)


def test_other_text_is_refused():
  with pytest.raises(ValueError, match="no ENTRY computation"):
    costs.analyze("module @jit_f {\n}\n", SCOPES)
