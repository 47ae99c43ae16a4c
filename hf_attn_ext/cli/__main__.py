"""``python -m hf_attn_ext.cli`` is ``hf-attn-ext``."""

import sys

from .main import main

sys.exit(main())
