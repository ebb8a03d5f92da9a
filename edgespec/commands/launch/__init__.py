"""`edgespec launch`: a coding agent on a pair of this machine, in one command."""
