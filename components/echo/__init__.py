"""Says a message in an image without Python, and passes results on from a shell script."""
