"""Messages become a prompt; the text of an answer becomes thoughts, prose and tool calls."""
