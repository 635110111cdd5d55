"""What members stand on: keywords that several of them take, turned into parts in one place."""
