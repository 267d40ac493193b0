"""What each op does with a layout: the facts behind our pass and the stock pass's rules.

`perms` is the arithmetic, `in_layout` what a rule says, `table` the ops that follow a layout,
`convs` those that want one, `stock` the same facts as `FRelaxInferLayout`.
"""
