"""All three of depthwise convolutions."""
