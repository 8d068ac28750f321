"""Drop-in replacements for the interfaces of other rasterizers."""
