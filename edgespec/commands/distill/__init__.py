"""`edgespec distill`: a draft made for a model of yours, from that model's own output."""
