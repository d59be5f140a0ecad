"""Where things lie in the repository."""

from __future__ import annotations

import os
from pathlib import Path

HELPERS = Path(__file__).parent
TESTS = HELPERS.parent
ROOT = TESTS.parent
DATA = TESTS / "data"
EXAMPLES = ROOT / "examples" / "models"
SEARCH_PATH = os.pathsep.join(map(str, (HELPERS, TESTS, ROOT)))
"""What PYTHONPATH names for a process that uses these modules."""
