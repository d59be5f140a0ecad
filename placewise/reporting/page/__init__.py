"""A plan as one HTML page that opens offline: its data as plain JSON, and the page around it."""
