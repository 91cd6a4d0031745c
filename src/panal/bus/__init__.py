"""The seam between programs, and its two implementations: NATS and memory."""
