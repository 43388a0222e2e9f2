"""Processes that run untrusted rewards and environments.

A verifier in plain Python may raise, and may hang. `host.py` scores rows in
worker processes (`pool.py`) with a deadline for each row, and replaces the
worker that misses it. After the first such loss a spare worker is held ready.
Workers read and write length-capped JSON (`frames.py`), without waiting, each
answer with the number of the question that is open. Anything else is a dead
worker. On Linux a keeper above a worker adopts all that the worker starts, so
that nothing outlives it. The environment of a worker is an allowlist
(`processes.py`).

A session is a process that its worker has forked (`session_worker.py`), so a
hang is killed without the episodes of its neighbours. A worker imports the
factory once, and has up to `config.environment.concurrency` sessions at work;
one at a time if the factory says `serial`. An interceptor stands between the
loop and the sessions, in the process that trains: what runs in a session cannot
change it, and is not told of a call that was blocked.

Images are decoded in workers too (`image_worker.py`): a decoder reads what
strangers wrote, and is written in C.
"""
