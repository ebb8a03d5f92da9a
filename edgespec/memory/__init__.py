"""How much memory a pair takes, asked of llama.cpp before anything is loaded.

`question` is what is asked and of whom, `answer` runs in the child process that asks llama.cpp, `free` says
what this machine has left, `at_load` refuses a pair that cannot fit. The choice of layers and context is in
`edgespec_models.fit.fit`, which knows nothing of llama.cpp.
"""
