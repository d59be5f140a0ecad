"""windows: large-neighbourhood search (Shaw 1998). Class: `WindowsPlacer`.

Part of a good placement is freed and solved exactly, again and again.
"""
