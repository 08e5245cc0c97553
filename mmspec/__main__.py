"""`python -m mmspec` is the command `mmspec`."""

import sys

from mmspec.cli import main

sys.exit(main())
