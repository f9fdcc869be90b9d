"""Products of host matrices that need not fit in a device's memory: tiles streamed both ways."""
