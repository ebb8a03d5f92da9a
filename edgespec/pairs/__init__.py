"""Which files make a pair, where they are, and how they are loaded."""
