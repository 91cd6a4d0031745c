"""Load, measurement, reports."""
