"""A loaded pair, many requests, one process: slots, steps, prefix reuse, the worker."""
