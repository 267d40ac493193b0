"""`relay.image`: operators on images."""

from .made.image import *  # noqa: F403
