"""``python -m tsplat`` runs the ``tsplat`` command."""

import sys

from .cli import main

sys.exit(main())
