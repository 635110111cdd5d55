"""The contracts of the library and their shared code. It imports no other folder of the package.

It contains the abstract classes of parts, the data that parts exchange, and checks that several kinds of parts need.

Read in this order:

1. Data: `heads` (queries, keys, sizes), `extra_projection`, `memo` (values that one forward computes once),
   `layer` (Context, Layer, Out), `sublayer_names`, `batch`.
2. Patterns, the pairs of query and key that attention allows: `pattern`, `layout` (sets of pairs that are cheap to
   compute), `pattern_parser` (patterns from text), `patterns/` (the patterns that the contracts name).
3. One attention call: `request`, `score`, `bias`, `score_matrix` (logits, mask, softmax), `attention_output` (the
   result, and the merge).
4. State of a layer: `state` and `kv_cache` for decoding; `memory` with `memory_compression`, for long texts.
5. A layer of attention: `projection`, `mechanism`, `key_value_mechanism` (mechanisms with a cache of keys),
   `aggregation`; then `nn/attention.py` joins them, and `attend/executors/reference.py` defines its result.
6. Layers in a model: `residual_block`, `collected_outputs` (reports of sublayers), `model`, `loss`, `token_positions`.
7. Registry: `discover` (folders and members), `module_import`, `public_names`, `keywords`, `did_you_mean`,
   `keyword_hints`, `warn`, `keyword_conditions`, `training_recipe`, `example`, `named_part` (a part from text).
8. Conversions of trained models: `conversion` (their contract), `change` (their record).

Contracts of further parts: `position`, `rotary_scaling`, `feature_map`, `pair_map`, `regulariser`, `shorten`, `pooler`,
`after_step`.
Inputs and results of models: `actor`, `rollout`, `task`, `neighbours`, `search`. Coordinates of tokens: `raster`,
`span_tree`. Helpers of constructors, trainings and laws (tested properties): `checks`, `tokenwise`, `dropout`,
`eval_mode`, `parameter_noise`, `uninitialised`, `vocabulary`, `quote`, `missing_path`, `from_json`, `module_hooks`.
Tensors and gradients: `autocast`, `unit_vector`, `choice`, `ties`, `function_transforms`, and `unrepeatable` for parts
with outputs that may change between two calls.
"""
