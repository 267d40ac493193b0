"""A seeded fuzzer of the four ops and their gradients, from Relax program to numbers.

    python -m tests.fuzz --count 500 --orders 1,2 --seed 0

Each case is a random problem of one op.  `case` draws it and writes it on one line, `program` makes
Relax functions of it, `reference` says what they should return, `check` compiles and runs them.
"""
