"""Sampling in the program: drawing, the decode loop, turns and contexts.

`prefill` gives keys and values of each prompt once, and a decode step reads
them with one product for all rows of the prompt. `weights` takes out of the
parameters what a step reads: layers are a stack, and the loop would copy each
out of it in every step. `allocate` makes a cache of 128 slots or more that
doubles, at most `config.sampling.num_cache_sizes` loops one after another, each
compiled for its size. With `config.sampling.lanes` fewer rows are decoded at
once; a lane whose row has ended takes the next row, and its cache is a ring
into which all lanes write at the same slot. The tokens of a row depend neither
on the growth of the cache nor on lanes, because its random numbers do not.

An environment in the graph is stepped inside the decode loop (`turns.py`): an
iteration writes one token of every row that is not over, a drawn one or the
next of an observation. If contexts are compacted, a rollout is J rows, one for
each context (`compaction.py`). If tools are Python, the host loops over calls
of one program (`host_turns.py`): a call takes the answers that have come, and
draws until no row can go on. Token n of a row is in slot n of its lane, and the
key of a draw has the place in the completion, so tokens do not depend on when
answers come.
"""
