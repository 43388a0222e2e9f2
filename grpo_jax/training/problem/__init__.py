"""The problem of a run: its prompts, its tokens, and who scores."""
