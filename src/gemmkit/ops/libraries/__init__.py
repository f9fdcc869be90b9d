"""One module for each library of arrays: how its arrays are read, and results made."""
