"""The tuner: which configuration is the fastest for a shape on this GPU, found once and kept."""
