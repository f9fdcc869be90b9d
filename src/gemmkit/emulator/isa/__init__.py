"""The strict table of PTX instructions that engine and oracle execute."""
