"""`__version__`: in a module of its own, because modules that `gemmkit` names need it too."""

from __future__ import annotations

__version__ = "0.2.0"
"""The version of the package, as text."""
