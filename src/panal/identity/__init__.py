"""Who is it? Keys, join tokens, certificates."""
