"""Documents as HTML pages: one file each, with everything in it, that needs no network."""
