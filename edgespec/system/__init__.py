"""The computer around us: paths, processes, threads, terminals, and whether its llama.cpp computes right."""
