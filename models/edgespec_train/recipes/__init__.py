"""How the embedded models are made, with one command each, from fixed seeds."""
