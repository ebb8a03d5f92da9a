"""llama-server's own routes: /completion, /infill, /props, /slots and their like."""
