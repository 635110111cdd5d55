"""What several positions stand on."""
