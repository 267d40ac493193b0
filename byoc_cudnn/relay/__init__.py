"""Relay modules: the rows as a pattern table, and partitioned as Relay modules.

`partition` loads this when a Relay module comes; who reads a partitioned text calls
`register_relay` from here.
"""

from .partition import register_relay

__all__ = ["register_relay"]
