"""Attention mechanisms: the ways in which queries read keys, such as softmax and linear attention."""
