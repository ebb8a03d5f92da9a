"""What a GGUF file says of its model, read within bounds and without loading it."""
