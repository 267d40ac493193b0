"""`relay.image`: operators on images."""

from .generated.image import *  # noqa: F403
