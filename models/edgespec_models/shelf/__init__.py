"""The pairs at hand: the catalogue, the store of installed ones, files found elsewhere."""
