"""The compiled step: models, advantages, exact gradients, updates.

`fused_step` draws, scores and learns. `features.py` lists what a phase may not
use, and then adds nothing to the program. `dynamic_sampling.py` draws more
groups until a batch is full of live ones: a loop around sampler and reward
whose body is compiled once. A step takes the prompts of all rounds from the
stream, whether it needs them or not, so a run with rounds resumes as any other.
`prompts.py` chooses the next prompts by the rewards of earlier ones, inside the
step. `partial.py` cuts rollouts that go on in a later step, `reservoir.py`
keeps old completions for a reward model, and `prefix_value.py` asks the policy
how likely an answer is behind a prefix.

A step returns its rows (`rows.py`), on the devices and split as they are. The
host decides which of them it fetches.
"""
