"""What several members stand on."""
