"""A plan as one page that opens offline: what it shows as plain data, and the page around it."""
