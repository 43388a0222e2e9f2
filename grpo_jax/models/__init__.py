"""Models: the transformer, its adapters, towers, critics and kernels.

A layer hands on [B, T, D], which the backward pass keeps. With
`config.model.split_positions` its positions are split over the mesh axis
`tensor`, and only there. Kernels of attention count slots in the place of
tokens: the part of a row that `mask` shows has no holes.

A prompt may show images. A tower (`vision_towers.py`) makes vectors of the
patches, and the r-th placeholder of a prompt reads the r-th vector in the place
of a row of the embedding table (`vision_inputs.py`). A tower is run once for
each prompt: in `prefill` before the decode loop, and in `prefix` before the
rows of an update. Rows get the result with the keys and values of their prompt,
so the first ratio is exactly 1, as without images. Text alone is read as by a
model without a tower, to the bit.

A critic (`policies/critic.py`) is a trunk, whose `prefix` and `hidden` are
those of a policy, and a head with one number. No gradient of its loss enters
the policy. A trunk of its own is a copy of the policy, made where the first
phase with a critic begins; a shared trunk is run again, forward only. Values,
explained variance and calibration are those before the update. A reward model
is a critic whose `hidden` is run over one slot more: it gives the states after
each token, so a score is for the whole completion with its end token.
"""
