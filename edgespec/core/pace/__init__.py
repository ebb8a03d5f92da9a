"""How long a draft may be: measured costs, measured odds, and the choice they lead to."""
