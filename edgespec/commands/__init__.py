"""The command line: one module or folder per command, with its flags and texts."""
