"""The agent: runs attempts on a local engine and gives the machine back to its owner."""
