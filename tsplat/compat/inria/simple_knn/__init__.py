"""The package ``simple_knn``, whose only module is ``_C``."""
