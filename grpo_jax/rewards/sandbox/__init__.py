"""The box of a program that a policy wrote."""
