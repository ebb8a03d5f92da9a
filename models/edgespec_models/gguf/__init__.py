"""The content of a GGUF header, read within limits and without loading the model."""
