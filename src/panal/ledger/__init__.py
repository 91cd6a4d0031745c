"""Who made what, who used what. Pure."""
