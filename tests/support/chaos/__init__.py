"""A fleet to which everything happens at once, and clients who check every character of their answers."""
