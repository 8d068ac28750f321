"""The version of gsplat whose names these modules have."""

__version__ = "1.5.3"
