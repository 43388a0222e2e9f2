"""Rewards of text as arrays, inside the compiled step.

The text is made of the token ids inside the program: a table has the bytes of
each token, and a row of bytes is what the functions here read. They find the
answer by the rules of `rewards/answers.py`, parse numbers by a finite
automaton, and compare them exactly, as rows of digits. Gold answers are turned
into digits where records are read. Algebra is refused here, and is for the
host.
"""
