"""The contracts, and what they share. Nothing here imports another folder of the package.

Here lie the abstract classes that parts keep, the data that one part hands to another, and the questions that several
kinds of parts ask.

Read in this order:

1. Data that travels: `heads` (queries, keys, sizes), `extra_projection`, `memo` (what one forward computes once),
   `layer` (Context, Layer, Out), `batch`.
2. Who reads whom: `pattern`; as sets of pairs that are cheap to read: `layout`; from text: `pattern_parser`; the
   patterns that the contracts name: `patterns/`.
3. One read: `request`, `score`, `bias`, `score_matrix` (logits, mask, softmax), `attention_output` (the result, and the
   merge).
4. What a layer keeps: `state`, `kv_cache`, and `memory` with `memory_compression`, for training.
5. A layer of attention: `projection`, `mechanism`, `key_value_mechanism` (mechanisms with a cache of keys),
   `aggregation`; then `nn/attention.py` joins them, and `attend/executors/reference.py` defines what a read means.
6. Layers in a model: `residual_block`, `collected_outputs` (reports of sublayers), `model`, `loss`, `token_positions`.
7. Registry: `discover` (folders and members), `public_names`, `keywords`, `did_you_mean`, `keyword_conditions`,
   `training_recipe`, `example`.

Contracts of further parts: `position`, `feature_map`, `pair_map`, `regulariser`, `shorten`, `pooler`, `after_step`.
Inputs and judgements of models: `actor`, `rollout`, `task`, `neighbours`, `search`. Coordinates of tokens: `raster`,
`span_tree`. Questions of constructors, laws and trainings: `checks`, `tokenwise`, `dropout`, `eval_mode`,
`parameter_noise`, `vocabulary`, `missing_path`, `from_json`, `module_hooks`. Tensors and gradients: `autocast`,
`unit_vector`, `choice`, `ties`, `function_transforms`, and `unrepeatable` for parts whose output may change between two
calls.
"""
