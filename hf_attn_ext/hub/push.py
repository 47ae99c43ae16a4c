"""Upload a converted model: exactly the files of :func:`hf_attn_ext.hub.files.files_to_upload`, in one commit."""

from __future__ import annotations

import dataclasses
import fnmatch
import tempfile
from pathlib import Path
from typing import Any

from hf_attn_ext.errors import AttnExtError, first_line

from .files import WEIGHTS_PATTERNS, UploadFile, files_to_upload


@dataclasses.dataclass(frozen=True)
class PushResult:
    """The result of a push: the files that were uploaded, or would be in a dry run.

    Attributes:
        repo_id: the repository.
        files: the files, with sizes and digests.
        dry_run: True when nothing was sent.
        url: the commit's address; None for a dry run.
        removed: weight files of an earlier push that this one replaced; left in place, they would be loaded instead
            of the new ones. Always empty for a dry run, which does not ask the hub.
    """

    repo_id: str
    files: list[UploadFile]
    dry_run: bool
    url: str | None = None
    removed: tuple[str, ...] = ()

    @property
    def total_size(self) -> int:
        """Bytes of all files together."""
        return sum(file.size for file in self.files)


def push_to_hub(
    model: Any,
    repo_id: str,
    tokenizer: Any = None,
    dry_run: bool = False,
    *,
    private: bool | None = None,
    token: str | None = None,
    commit_message: str = "Upload converted model",
    base_model: str | None = None,
    card: str | None = None,
) -> PushResult:
    """Upload a converted model, its tokenizer and a card to the hub.

    Args:
        model: a model that :func:`hf_attn_ext.convert` returned or that was loaded from a converted folder.
        repo_id: ``"user/name"``.
        tokenizer: uploaded with the model when given.
        dry_run: list the files with sizes and digests, without any network.
        private: whether a new repository is private; None takes the account's default.
        token: an access token; None takes the one stored by ``hf auth login`` or in ``HF_TOKEN``.
        commit_message: the commit's first line.
        base_model: the base model's hub id, for the card.
        card: the text of README.md; None writes one from the model's configuration, without measured numbers.

    Returns:
        A :class:`PushResult`.

    Raises:
        AttnExtError: the model is not converted, the repository's name is not valid, or the hub refuses or cannot
            be reached.

    Example:
        >>> hax.push_to_hub(model, "me/minilm-flexformer", tokenizer, dry_run=True)  # doctest: +SKIP
    """
    from .card import render_card

    config = getattr(model, "config", None)
    if config is None or not isinstance(getattr(config, "attn_ext", None), dict):
        raise AttnExtError(f"{type(model).__name__} is not a converted model; call hf_attn_ext.convert first")
    check_repo_id(repo_id)
    with tempfile.TemporaryDirectory(prefix="attn-ext-push-") as folder:
        model.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
        text = card if card is not None else render_card(config.to_dict(), {}, repo_id=repo_id, base_model=base_model)
        (Path(folder) / "README.md").write_text(text, encoding="utf-8")
        return push_folder(folder, repo_id, dry_run, private=private, token=token, commit_message=commit_message)


def push_folder(
    folder: str | Path,
    repo_id: str,
    dry_run: bool = False,
    *,
    private: bool | None = None,
    token: str | None = None,
    commit_message: str = "Upload converted model",
) -> PushResult:
    """Upload an existing folder of a converted model; see :func:`push_to_hub` for the arguments.

    Raises:
        AttnExtError: as :func:`push_to_hub`, and for a folder that is damaged or holds no converted model.
    """
    check_repo_id(repo_id)
    if not commit_message.strip():
        raise AttnExtError(f"commit_message is empty: {commit_message!r}")
    files = files_to_upload(folder)
    if dry_run:
        return PushResult(repo_id, files, dry_run=True)
    return _upload(Path(folder), repo_id, files, private, token, commit_message)


def check_repo_id(repo_id: str) -> None:
    """Raise AttnExtError unless ``repo_id`` is a valid name such as ``"user/name"``; needs no network."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(repo_id if isinstance(repo_id, str) else "")
    except HFValidationError:
        raise AttnExtError(
            f"{repo_id!r} is not a repository name: write 'user/name', letters, digits, '-', '_' and '.' only"
        ) from None


def _upload(
    folder: Path, repo_id: str, files: list[UploadFile], private: bool | None, token: str | None, message: str
) -> PushResult:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

    api = HfApi(token=token, library_name="hf_attn_ext")
    try:
        created = api.create_repo(repo_id, private=private, exist_ok=True)
        repo_id = created.repo_id
        kept = {file.path for file in files}
        stale = tuple(
            name
            for name in api.list_repo_files(repo_id)
            if name not in kept and any(fnmatch.fnmatch(name, pattern) for pattern in WEIGHTS_PATTERNS)
        )
        operations: list[CommitOperationAdd | CommitOperationDelete] = [
            *(CommitOperationAdd(file.path, folder / file.path) for file in files),
            *(CommitOperationDelete(name) for name in stale),
        ]
        commit = api.create_commit(repo_id, operations, commit_message=message)
    except (HfHubHTTPError, LocalTokenNotFoundError) as error:
        raise AttnExtError(_refusal(error, repo_id, api.endpoint)) from error
    except _upload_errors() as error:
        # An upload thread's failure arrives as a RuntimeError whose cause says what happened.
        cause = error.__cause__ if isinstance(error, RuntimeError) and error.__cause__ else error
        raise AttnExtError(
            f"uploading {repo_id!r} to the hub at {api.endpoint} failed: {first_line(cause)}; nothing was committed"
        ) from error
    return PushResult(repo_id, files, dry_run=False, url=commit.commit_url, removed=stale)


def _upload_errors() -> tuple[type[Exception], ...]:
    """The errors of an upload that got no answer, those of this huggingface_hub's HTTP client among them."""
    from huggingface_hub import utils
    from huggingface_hub.errors import OfflineModeIsEnabled

    kinds: list[type[Exception]] = [OfflineModeIsEnabled, RuntimeError, ConnectionError, TimeoutError]
    session = utils.get_session()
    module = __import__(type(session).__module__.split(".")[0])
    for name in ("TransportError", "RequestException"):
        if hasattr(module, name):
            kinds.append(getattr(module, name))
    return tuple(kinds)


def _refusal(error: Exception, repo_id: str, endpoint: str) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403) or status is None:
        return (
            f"the hub at {endpoint} refused to let you write to {repo_id!r}"
            f"{f' (HTTP {status})' if status else ''}: log in with 'hf auth login' or set HF_TOKEN to a token "
            "with write access"
        )
    return f"the hub at {endpoint} answered HTTP {status} for {repo_id!r}: {first_line(error)}"
