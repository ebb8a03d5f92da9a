"""`edgespec plan`: how fast a pair would run here, before anything of it is downloaded.

What an evaluation costs depends on shapes and number formats, not on weights. So a few layers of the model
are made with random weights, evaluated in the real engine, and their cost is scaled to the full depth.
`pair_plan.plan_pair` is the entry for programs; measurements are kept for this machine (`kept`), so that
asking again costs nothing.
"""
