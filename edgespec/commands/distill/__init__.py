"""`edgespec distill`: a draft made for a model that one has, from what that model itself says."""
