"""Lets `python -m bae` run the command `bae`."""

from __future__ import annotations

import sys

from bae.cli import main

if __name__ == "__main__":
    sys.exit(main())
