"""`edgespec doctor`: is this machine set up as well as it can be, and is speculation on, and does it pay?

Whatever touches llama.cpp runs in child processes, so that a build that cannot even be loaded
is a finding, not the end of the doctor. Each check returns findings; a problem comes with its remedy.
"""
