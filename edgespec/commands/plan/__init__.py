"""`edgespec plan`: how fast a pair would run here, before anything of it is downloaded.

What an evaluation costs depends on shapes and number formats, not on weights. So models of one format with
random weights are evaluated in the real engine, once for each machine, and a model costs what its bytes do.
`pair_plan.plan_pair` is the entry for programs.
"""
