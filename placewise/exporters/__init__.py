"""Plans in the forms that other tools load: one module per target, read back before anything is written."""
