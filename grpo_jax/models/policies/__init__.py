"""Policies and critics made of other ones, or of a function of tokens."""
