"""Models, contexts and devices: the only room that imports llama_cpp."""
