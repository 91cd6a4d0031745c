"""``panal doctor``: what is wrong on this machine, and what to do. Looking and judging are apart."""
