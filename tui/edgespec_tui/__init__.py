"""The terminal app of EdgeSpec: it sees an engine only through its endpoint."""
