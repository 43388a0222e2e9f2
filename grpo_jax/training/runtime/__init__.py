"""Devices, processes, checkpoints, compilation and the log.

A workdir is a local folder or gs://BUCKET/FOLDER. Locally, files become visible
by a rename. In a bucket nothing is renamed: a step counts once its last object,
`commit_success.txt`, is there. Logs are then held in memory and written whole,
before each checkpoint, at the end, and otherwise at most once a minute.

SIGTERM and the first Ctrl-C are one event: the step ends, everything is saved,
and the call returns.
"""
