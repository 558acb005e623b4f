"""`python -m onward` is the command `onward`."""

import sys

from onward.cli.main import main

sys.exit(main())
