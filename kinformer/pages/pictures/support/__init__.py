"""What the files of pictures share."""
