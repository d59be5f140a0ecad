"""What searches over schedules share: moves of blocks between devices, and tempering."""
