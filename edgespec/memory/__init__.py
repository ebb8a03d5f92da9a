"""How much memory a pair takes, asked of llama.cpp before anything is loaded.

`question` is the question and who is asked, `answer` runs in the child process that asks llama.cpp, `free`
says what this machine has left, `at_load` refuses a pair that cannot fit. Layers and context are chosen in
`edgespec_models.fit.fit`, which knows nothing of llama.cpp.
"""
