"""How the environments here, and Gymnasium's, are made from text."""
