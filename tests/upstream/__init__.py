"""Relay's own tests, of a checkout of TVM 0.19, against the Relay surface.

    python -m tests.upstream CHECKOUT

The tests stay where they are and as they are; what their import lines give is in `names.py`.
"""
