"""`python -m gemmkit` is the same as `gemmkit`."""

from gemmkit.cli import main

main()
