"""May it? Pure decisions about access, residency and owners."""
