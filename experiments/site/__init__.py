"""Site of the documents: pages of `docs/`, and pages that are made of code.

`make docs` builds the site with mkdocs, which loads `hook.py`. Pages of
algorithms, settings and functions are made of docstrings while the site is
built, and lie in no folder of the repository.

    links.py       addresses on the site of files of the repository
    algorithms.py  a page for each algorithm
    settings.py    the page of all settings
    functions.py   pages of modules: functions, classes, shapes
    sources.py     pages of source files that some page links to
    hook.py        functions that mkdocs calls
"""
