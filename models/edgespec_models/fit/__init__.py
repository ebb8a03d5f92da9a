"""How much memory a pair needs, by formula, before it is downloaded."""
