"""The problem of a run: its prompts, tokenizer, environment and rewards."""
