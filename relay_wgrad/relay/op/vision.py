"""`relay.vision`: operators of object detection."""

from .generated.vision import *  # noqa: F403
