"""One view of a Relax function, which all passes share.

`walk` : the blocks and bindings of a function, what an expression uses.  `view.Graph` : what binds
each variable and what uses it.  `rebuild` : the function with other bindings, all else kept.
"""
