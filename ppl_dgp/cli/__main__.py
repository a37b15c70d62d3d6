"""``python -m ppl_dgp.cli``: the command line where ``ppl-dgp`` is not on the path."""

import sys

from ppl_dgp.cli import main

sys.exit(main())
