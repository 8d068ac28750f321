"""Other rasterizers' names for what tsplat does."""
