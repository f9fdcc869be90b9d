"""The one strict table of PTX instructions that engine and oracle execute."""
