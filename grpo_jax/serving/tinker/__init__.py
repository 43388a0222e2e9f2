"""A server that the SDK of Tinker has as its `base_url`.

The client writes the loop: it sends rows with a loss, takes steps, samples and
saves, one HTTP request each. Each client trains adapters of its own over a base
that all share.

`wire.py` reads and writes messages, `losses.py` has the losses, `device.py` the
compiled programs and `store.py` the files. `service.py` keeps clients, requests
that wait and their results, and `server.py` has the paths of HTTP.
"""
