"""`relay.annotation`: where a region of another compiler begins and ends."""

from .generated.annotation import *  # noqa: F403
