"""The parts of screens. Answers pass `turn_writer`, `answer_body`, `markdown_blocks`."""
