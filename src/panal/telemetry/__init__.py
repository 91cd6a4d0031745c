"""Logs and metrics. No keys, no prompts, bounded labels."""
