"""A server that answers OpenAI's API with the completions of a policy."""
