"""The results of a run: images, plots, metrics and the page."""
