"""Names under which the package registers functions and stores values on models and configurations."""

IMPLEMENTATION = "flexformer"  # attn_implementation of converted models
HASSE = "hasse"  # attn_implementation of softmax models with masks of set_mask
STREAM = "_attn_ext_stream"  # on attention modules: the listener of a softmax stream
BEFORE_MASK = "_attn_ext_before_mask"  # on models: the attention implementation that set_mask found
FOLDED = "attn_ext_folded"  # in configurations: the affine maps are folded into the projections
