"""The contracts, and what they share. Nothing here imports another folder of the package.

Here lie the abstract classes that parts keep, the data that one part hands to another, and the questions that several
kinds of parts ask.

Read in this order:

1. Data that travels: `heads` (queries, keys, sizes), `memo` (what one forward computes once), `layer` (Context, Layer,
   Out), `batch`.
2. Who reads whom: `pattern`; as sets of pairs that are cheap to read: `layout`; from text: `expression`; the patterns
   that the contracts name: `patterns/`.
3. One read: `request`, `score`, `bias`, `score_matrix` (logits, mask, softmax), `read` (the result, and the merge).
4. What a layer keeps: `state`, `cache`, and `memory` with `compression`, for training.
5. A layer of attention: `projection`, `mechanism`, `key_value_mechanism` (mechanisms with a cache of keys),
   `aggregation`; then `nn/attention.py` joins them, and `attend/executors/reference.py` defines what a read means.
6. Layers in a model: `block`, `collected` (reports of sublayers), `model`, `loss`, `numbering`.
7. Registry: `discover` (folders and members), `keywords`, `needs`, `recipe`, `example`.

Contracts of further parts: `position`, `feature_map`, `pair_map`, `regulariser`, `shorten`, `pooler`, `after_step`.
Inputs and judgements of models: `acting`, `rollout`, `task`, `neighbours`, `search`, `search_named`. Coordinates of
tokens: `raster`, `tree`. Questions of constructors, laws and trainings: `checks`, `tokenwise`, `dropout`, `evaluating`,
`parameter_noise`, `vocabulary`, `missing_path`, `from_json`, `hooks`. Tensors and gradients: `autocast`, `vectors`,
`choice`, `ties`, `transforms`, and `unrepeatable` for parts whose output may change between two calls.
"""
