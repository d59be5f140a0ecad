"""The objects in the workers that measure: one per runtime, and one for memory."""
