"""Worker processes: pinned before they import anything, timed out, and never longer alive than their parent."""
