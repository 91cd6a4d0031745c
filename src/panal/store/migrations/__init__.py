"""Changes of the database's shape, in order. Each is written out and never edited after a release."""
