"""Where, and what next? Pure decisions about routing, admission order and resume."""
