"""The problem of a run: its prompts, tokenizer, environment and rewards.

A `RewardSum` scores the completions of a phase. Its parts are functions of
arrays in the program, processes that read text, reward models, models that
write verdicts, and rewards derived from others. If one of them needs the host,
the split executor runs, and nothing else changes. A model never decides what is
right: neither in an evaluation, nor for the pairs that it learns from.

For a judge of the run the host fills the rubric with the values of the record
and encodes it, as arrays of `extras`. The program puts the completion into its
place, without control tokens, and the judge writes greedily with the sampler of
the policy.

A domain is a number in the program (`prompts.extras`) and a name outside of it
(`Problem.domains`). Metrics of domains are sums over rows with a mask.
"""
