"""A small double of the hub's HTTP API on 127.0.0.1: repositories, commits, large files, downloads.

It keeps all in memory, and answers what ``huggingface_hub`` asks when it creates a repository, commits, and downloads;
anything else is a 404 that a test can see in ``requests``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlparse

TOKEN = "hf_token_of_the_double"


class HubDouble:
    """Start with ``with HubDouble() as hub``; ``hub.repos[repo_id]`` maps file names to bytes."""

    def __init__(self) -> None:
        self.reset()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def reset(self) -> None:
        """Forget everything that was stored."""
        self.repos: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.objects: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.commits: list[dict] = []
        self.fail_uploads = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> HubDouble:
        self._thread.start()
        return self

    def __exit__(self, *exc) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=10)

    # --- what a commit does

    def commit(self, repo_id: str, lines: list[dict]) -> str:
        files = self.repos[repo_id]
        for line in lines:
            kind, value = line["key"], line["value"]
            if kind == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif kind == "lfsFile":
                files[value["path"]] = self.objects[value["oid"]]
            elif kind == "deletedFile":
                del files[value["path"]]
            elif kind == "header":
                self.commits.append({"repo_id": repo_id, **value})
            else:
                raise AssertionError(f"the double does not know the operation {kind!r}")
        return self.revision(repo_id)

    def revision(self, repo_id: str) -> str:
        digest = hashlib.sha1()
        for name, content in sorted(self.repos[repo_id].items()):
            digest.update(name.encode() + b"\0" + content)
        return digest.hexdigest()


def _handler(hub: HubDouble) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args) -> None:
            pass

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
                chunks = []
                while size := int(self.rfile.readline(), 16):
                    chunks.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(chunks)
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))

        def _send(self, status: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def _json(self, content: object, status: int = 200) -> None:
            self._send(status, json.dumps(content).encode(), Content_Type="application/json")

        def _error(self, status: int, message: str, code: str | None = None) -> None:
            extra = {"X_Error_Code": code} if code else {}
            self._send(status, json.dumps({"error": message}).encode(), X_Error_Message=message, **extra)

        def _allowed(self) -> bool:
            if self.headers.get("Authorization") == f"Bearer {TOKEN}":
                return True
            self._error(401, "Invalid username or password.")
            return False

        def do_POST(self) -> None:
            path, body = unquote(urlparse(self.path).path), self._body()
            hub.requests.append(("POST", path))
            if path == "/api/validate-yaml":
                return self._json({"errors": [], "warnings": []})
            if not self._allowed():
                return None
            if path == "/api/repos/create":
                return self._create(json.loads(body))
            if path.endswith("/info/lfs/objects/batch"):
                return self._json({"transfer": "basic", "objects": [self._action(o) for o in _objects(body)]})
            if path == "/lfs/verify":
                asked = json.loads(body)
                found = len(hub.objects.get(asked["oid"], b"")) == asked["size"]
                return self._json({}, 200 if found else 404)
            repo_id, _, action = path.removeprefix("/api/models/").rpartition("/main")[0].rpartition("/")
            if repo_id not in hub.repos:
                return self._error(404, "Repository not found", "RepoNotFound")
            if action == "preupload":
                return self._json({"files": [self._mode(file) for file in json.loads(body)["files"]]})
            if action == "commit":
                oid = hub.commit(repo_id, [json.loads(line) for line in body.splitlines()])
                url = f"{hub.url}/{repo_id}/commit/{oid}"
                return self._json({"success": True, "commitOid": oid, "commitUrl": url})
            return self._error(404, f"the double does not know POST {path}")

        def _create(self, asked: dict) -> None:
            repo_id = f"{asked.get('organization') or 'me'}/{asked['name']}"
            status = 409 if repo_id in hub.repos else 200
            hub.repos.setdefault(repo_id, {})
            hub.private.setdefault(repo_id, asked.get("visibility") == "private")
            self._json({"url": f"{hub.url}/{repo_id}", "id": repo_id, "name": repo_id}, status)

        def _action(self, asked: dict) -> dict:
            upload = {"href": f"{hub.url}/lfs/{asked['oid']}"}
            return {**asked, "actions": {"upload": upload, "verify": {"href": f"{hub.url}/lfs/verify"}}}

        def _mode(self, file: dict) -> dict:
            large = file["path"].endswith(".safetensors")
            return {"path": file["path"], "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}

        def do_PUT(self) -> None:
            path, body = urlparse(self.path).path, self._body()
            hub.requests.append(("PUT", path))
            oid = path.rpartition("/")[2]
            if hub.fail_uploads:
                return self._error(400, "the double was told to fail uploads")
            if hashlib.sha256(body).hexdigest() != oid:
                return self._error(400, "content does not match its digest")
            hub.objects[oid] = body
            return self._send(200, ETag=f'"{oid}"')

        def do_GET(self) -> None:
            path = unquote(urlparse(self.path).path)
            hub.requests.append((self.command, path))
            if path.startswith("/api/models/"):
                return self._info(path.removeprefix("/api/models/"))
            repo_id, _, rest = path.lstrip("/").partition("/resolve/")
            _revision, _, name = rest.partition("/")
            if repo_id not in hub.repos:
                return self._error(404, "Repository not found", "RepoNotFound")
            if name not in hub.repos[repo_id]:
                return self._error(404, "Entry not found", "EntryNotFound")
            content = hub.repos[repo_id][name]
            etag = f'"{hashlib.sha256(content).hexdigest()}"'
            return self._send(200, content, ETag=etag, X_Repo_Commit=hub.revision(repo_id))

        do_HEAD = do_GET

        def _info(self, rest: str) -> None:
            repo_id, _, _ = rest.partition("/tree/")
            repo_id = repo_id.partition("/revision/")[0]
            if repo_id not in hub.repos:
                return self._error(404, "Repository not found", "RepoNotFound")
            files = hub.repos[repo_id]
            if "/tree/" in rest:
                return self._json(
                    [
                        {"type": "file", "path": n, "size": len(c), "oid": hashlib.sha1(c).hexdigest()}
                        for n, c in sorted(files.items())
                    ]
                )
            siblings = [{"rfilename": name} for name in sorted(files)]
            return self._json({"id": repo_id, "modelId": repo_id, "sha": hub.revision(repo_id), "siblings": siblings})

    return Handler


def _objects(body: bytes) -> list[dict]:
    return json.loads(body)["objects"]
