"""`python -m tardis_machine` is the program too."""

from __future__ import annotations

import sys

from .commands.cli import main

sys.exit(main())
