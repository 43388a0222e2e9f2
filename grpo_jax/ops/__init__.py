"""Operations on arrays: one formula a function, with its equation."""
