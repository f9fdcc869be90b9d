"""One module for each library of arrays: how its arrays are read, and results made."""

# Both handles of the legacy default stream.
LEGACY_STREAMS = (0, 1)
