"""What commands draw in a terminal."""
