"""`relay.annotation`: where a region of another compiler begins and ends."""

from .made.annotation import *  # noqa: F403
