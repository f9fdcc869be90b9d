"""Translates PTX to native code: a warp is one function over vectors of eight lanes (strips)."""
