"""The phases of a run, from a config to their compiled steps.

The name of a phase decides what is compiled, so a phase that comes again finds
its program. This requires that the state has the same arrays each time.

With `config.rl.staleness=k` the executor draws the rollouts of the next k
batches while the host scores one, so a step takes as long as the slower of the
two. The random numbers are those of the batch's own step, and the device runs
its programs in a fixed order. With an environment on the host, the update
begins when all rows of a later rollout wait for their sessions, between the
same two calls of the program in all processes. The rollout goes on with a copy
of the weights from before the update.

On several hosts each process scores the rows that its devices hold. Processes
whose devices hold parts of the same rows split them, so that no row has two
scores.
"""
