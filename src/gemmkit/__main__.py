"""The command `gemmkit`, also as `python -m gemmkit`."""

from __future__ import annotations

from gemmkit.interrupts import end_at_once


def main() -> None:
    """Run the command line and exit."""
    end_at_once()
    from gemmkit.cli import main as run

    run()


if __name__ == "__main__":
    main()
