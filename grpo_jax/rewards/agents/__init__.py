"""Tools, games and calls: environments that a policy talks to."""
