"""Layouts of Relay's operators: how each follows that of its operands, and which can be converted.

`rules.RULES` has the operators that follow, `convert.ROLES` those whose attributes name layouts;
`values` has what a value is while layouts change.
"""
