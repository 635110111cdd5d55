"""What several patterns stand on."""
