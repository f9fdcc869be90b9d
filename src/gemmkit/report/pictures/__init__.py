"""Pictures of a warp's accesses: addresses, banks, tiles; as text and as figures."""
