"""`edgespec pull`: downloads a pair that fits."""
