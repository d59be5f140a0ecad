"""Settings of all tests: on continuous integration, hypothesis draws the same examples every time."""

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True, print_blob=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
