"""Checks for every algorithm, of the table or of your own package.

`cases` makes small batches of arrays. `checks` has the properties that the
tests of this package and `grpo-check-algorithm` both check. `reference`
compares with a loss that was written once more, in NumPy.
"""
