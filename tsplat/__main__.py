"""``python -m tsplat`` is the command ``tsplat``."""

import sys

from .cli import main

sys.exit(main())
