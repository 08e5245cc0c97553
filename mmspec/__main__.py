"""`python -m mmspec` is the command `mmspec`."""

import sys

from mmspec.cli.app import main

sys.exit(main())
