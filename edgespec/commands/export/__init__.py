"""`edgespec export`: the same pair on a larger engine, as its command or file."""
