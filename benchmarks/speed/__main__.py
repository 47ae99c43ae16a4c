"""``python -m benchmarks.speed COMMAND``: the same as ``hf-attn-ext bench COMMAND`` in this checkout."""

import sys

from hf_attn_ext.cli.main import main

sys.exit(main(["bench", *sys.argv[1:]]))
