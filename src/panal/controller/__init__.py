"""What is wanted and what is seen, kept equal."""
