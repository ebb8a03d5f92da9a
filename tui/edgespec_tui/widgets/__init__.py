"""The parts of screens. An answer passes `answering`, `answer_body`, `answer_markdown`, `markdown_blocks`."""
