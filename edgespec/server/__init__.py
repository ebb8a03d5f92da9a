"""`edgespec serve`: the web process. It never imports llama_cpp; `edgespec.engine.worker` runs the engine."""
