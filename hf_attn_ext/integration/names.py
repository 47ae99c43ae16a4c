"""Names under which the package registers functions, makes classes, writes files and stores values."""

IMPLEMENTATION = "flexformer"  # attn_implementation of converted models
HASSE = "hasse"  # attn_implementation of softmax models with masks of set_mask
STREAM = "_attn_ext_stream"  # on attention modules: the listener of a softmax stream
BEFORE_MASK = "_attn_ext_before_mask"  # on models: the attention implementation that set_mask found
FOLDED = "attn_ext_folded"  # in configurations: the affine maps are folded into the projections
CLASS_PREFIX = "AttnExt"  # classes of converted models: AttnExtRobertaForMaskedLM
TYPE_PREFIX = "attn_ext_"  # their config.model_type: attn_ext_roberta
MANIFEST = "attn_ext_manifest.json"  # in saved folders: digests of the weight files and the attention settings
SHIM = "modeling_attn_ext"  # in saved folders: the module that config.auto_map names
