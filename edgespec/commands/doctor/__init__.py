"""`edgespec doctor`: is this machine set up as well as it can be, is speculation on, and does it pay?

Whatever touches llama.cpp runs in child processes: a build that cannot be loaded is a finding, not the end.
"""
