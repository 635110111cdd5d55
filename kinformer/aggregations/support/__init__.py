"""What the aggregations share."""
