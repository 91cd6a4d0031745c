"""Every admin operation once: authorise, do, audit."""
