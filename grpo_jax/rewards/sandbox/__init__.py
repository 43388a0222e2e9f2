"""The sandbox of programs that a policy has written."""
