"""`relay.vision`: operators of object detection."""

from .made.vision import *  # noqa: F403
