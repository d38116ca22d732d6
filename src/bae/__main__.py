"""`python -m bae` is the command `bae`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from bae.cli import main
from bae.cli.taken_names import put_on_path

if __name__ == "__main__":
    if sys.path[0] in ("", os.getcwd()):  # put there by Python; a rich.py in it is not Rich
        put_on_path(Path(sys.path[0]).absolute())
    sys.exit(main())
