"""A small model made larger without changing what it says, to measure large ones on little disk."""
