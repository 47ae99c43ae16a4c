"""``hf-attn-ext push``: upload a converted model's folder, or show exactly what would be uploaded."""

from __future__ import annotations

from typing import Annotated

import typer


def push(
    folder: Annotated[str, typer.Argument(help="A converted model's folder.")],
    repo_id: Annotated[str, typer.Argument(help="The repository: user/name.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the files; send nothing.")] = False,
    private: Annotated[bool | None, typer.Option("--private/--public", help="For a new repository.")] = None,
    message: Annotated[str, typer.Option("--message", help="The commit's message.")] = "Upload converted model",
) -> None:
    """Upload a converted model's folder to the hub.

    Only the model, its tokenizer, its card and its loading code are sent: no checkpoints, optimizer states or logs.
    """
    from hf_attn_ext.hub.push import push_folder

    result = push_folder(folder, repo_id, dry_run, private=private, commit_message=message)
    width = max(len(file.path) for file in result.files)
    for file in result.files:
        typer.echo(f"{file.path:{width}}  {file.size:>12,}  {file.sha256}")
    total = f"{len(result.files)} files, {result.total_size:,} bytes"
    if result.dry_run:
        typer.echo(f"dry run: {total} would be uploaded to {result.repo_id}; nothing was sent")
        return
    for name in result.removed:
        typer.echo(f"removed the older weight file {name}")
    typer.echo(f"uploaded {total}: {result.url}")
