"""What was measured of configurations, and kept: trials, their store, and files of them.

`gemmkit.dispatch` chooses by them, and `gemmkit.tune` adds to them.
"""
