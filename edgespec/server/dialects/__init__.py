"""What clients of OpenAI, Anthropic and llama-server send, and what they expect to read."""
