"""How much memory a pair takes, asked of llama.cpp before anything is loaded.

`oracle` asks (`llama/memory_child.py` is the child process that answers), `free`
says what this machine has left, `at_load` refuses a pair that cannot fit. Layers and context are chosen in
`edgespec_models.fit.fit`, which knows nothing of llama.cpp.
"""
