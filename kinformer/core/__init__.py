"""The contracts, and what they share.

Here lies what parts of several kinds meet by: an abstract class that a part of some kind writes, what is handed from
one part to another, or a question that several kinds ask. What one kind alone asks lies in its own `support/`.

To read, in this order:

1. What travels: `heads` (queries, keys, sizes), `memo` (what a forward has found out), `layer` (Context, Layer, Out).
2. Who reads whom: `pattern`; as sets of pairs that are cheap to read: `layout`, `parts`; from text: `expression`.
3. One read: `request`, `score`, `bias`, `scores` (logits, mask, softmax), `read` (its result, and the merge).
4. What is kept: `state`, `cache`, and `memory` with `compression`, for training.
5. A layer of attention: `projection`, `mechanism`, `keyed` (mechanisms with a cache of keys), `aggregation`; then
   `nn/attention.py`, which joins them, and `attend/executors/reference.py`, which says what a read means.
6. Layers in a model: `block`, `collected` (what sublayers report), `model`, `loss`, `numbering`, `batch`.

The rest is read when it is met. Contracts of further parts: `position`, `feature_map`, `pair_map`, `regulariser`,
`shorten`. Of what a model is asked, told or judged by: `acting`, `experience`, `task`, `neighbours`, `search`.
Coordinates of tokens: `raster`, `tree`. What constructors, laws, trainings and members ask: `checks`, `alone`,
`dropping`, `jitter`, `example`, `vocabulary`, `absent`, `watched`. Of tensors and gradients: `autocast`, `vectors`,
`choice`, `ties`, `transforms`, and of parts whose output may change between two calls: `unrepeatable`.
"""
