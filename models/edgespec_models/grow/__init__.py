"""A small model made larger without changing its output, to measure large ones on little disk."""
