"""``panal service``: the agent or a whole installation as a service of the system."""
