"""`edgespec bench`: what speculation is worth on this machine, measured in turn with plain decoding."""
