"""`python -m edgespec`: the same as `edgespec`."""

import sys

from edgespec.cli import main

sys.exit(main())
