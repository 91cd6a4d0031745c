"""The command line: wires programs by hand; admin commands are clients of /api/v1."""
