"""Messages become a prompt; the text of an answer becomes reasoning, prose and tool calls."""
