"""The report of a run: images, plots, metrics and an HTML page."""
