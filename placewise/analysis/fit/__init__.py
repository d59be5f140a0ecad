"""What to type to run a language model on given devices, how fast it will be, and what would make it faster."""
