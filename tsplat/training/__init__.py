"""Training: configurations, the trainer, evaluation, checkpoints, and whole runs."""

from ..support.lazy_names import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
