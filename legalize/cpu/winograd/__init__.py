"""3x3 convolutions of stride 1 by Winograd's algorithm."""
