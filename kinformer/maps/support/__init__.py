"""What several feature maps share."""
