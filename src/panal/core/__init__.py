"""The words of the system: ids, errors, nodes, requests, units, clock, settings."""
