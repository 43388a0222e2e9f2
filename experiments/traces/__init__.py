"""Viewer of a run's traces as a page or text: `python -m experiments.traces`.

| file          | holds                                                        |
|---------------|--------------------------------------------------------------|
| `__main__.py` | the command                                                  |
| `source.py`   | a run: its metrics, its alarms, its traced groups            |
| `filters.py`  | filters of the completions and groups to show                |
| `pack.py`     | a run as compressed columns, within a number of bytes        |
| `page.py`     | the page, made of `page.html`, `page.css` and the scripts    |
| `*.js`        | the scripts, in the order of `page.SCRIPTS`                  |
| `terminal.py` | the same groups as lines of text                             |
| `chromium.py` | a headless browser, through Playwright                       |
| `check.py`    | the page in a browser, with texts that attack it: a command  |
"""
