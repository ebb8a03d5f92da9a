"""`edgespec pull`: download a pair that fits."""
