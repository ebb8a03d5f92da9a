"""`edgespec verify`: shows the owner of a pair that the draft changes the speed and nothing else.

What is exact by theorem, that tokens have the model's own distribution, is tested by chance (`samples`, with
the arithmetic in `goodness`), at a stated rate of false alarms. What is exact up to rounding is tested token
by token (`texts`, with `equality`), and every difference is replayed to find its cause.
"""
