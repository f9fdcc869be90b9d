"""Pictures of what the lanes of a warp touch: addresses, banks, tiles; as text and as figures."""
