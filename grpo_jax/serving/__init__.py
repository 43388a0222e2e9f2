"""A server that answers OpenAI's API with the completions of a policy.

`engine.py` has a queue that any thread may fill and that the thread of the
device empties, with one program of fixed shape. Each row has its own key,
limit, temperature and top_p, so its tokens depend on the weights and on the
row's own fields alone.
"""
