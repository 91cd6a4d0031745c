"""Who made what, who used what. Pure: values in, values out."""
