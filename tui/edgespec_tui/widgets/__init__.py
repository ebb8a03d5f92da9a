"""The parts of screens. Answers pass `turn_writer`, `answer_body`, `answer_markdown`, `markdown_blocks`."""
