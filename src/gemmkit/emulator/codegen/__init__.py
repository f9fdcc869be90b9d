"""From PTX to native code: one warp is one function over strips of eight lanes."""
