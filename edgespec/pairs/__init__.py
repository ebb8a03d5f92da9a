"""Which files make a pair, where they lie, and how they are loaded."""
