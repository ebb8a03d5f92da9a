"""`edgespec serve`: the web process. It never imports llama_cpp; the engine is `edgespec.engine.worker`'s."""
