"""The stages of the pipeline: projection, shading, exchange between ranks, intersection, compositing."""
