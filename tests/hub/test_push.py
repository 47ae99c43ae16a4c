"""Uploads against a double of the hub, in a fresh process, for huggingface_hub reads the endpoint at import."""

import hashlib
import json
import os
import subprocess
import sys

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

import hf_attn_ext as hax
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hub.files import files_to_upload
from hf_attn_ext.hub.push import push_folder, push_to_hub
from tests.cli.models import tokenizer as word_tokenizer
from tests.hub.double import TOKEN, HubDouble
from tests.hub.folders import converted_folder

WORKER = """
import json, sys
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hub.push import push_folder
for line in sys.stdin:
    arguments = json.loads(line)
    try:
        if arguments.pop("live", False):
            from transformers import AutoModelForMaskedLM, AutoTokenizer
            import hf_attn_ext as hax
            name = arguments.pop("folder")
            model, tokenizer = AutoModelForMaskedLM.from_pretrained(name), AutoTokenizer.from_pretrained(name)
            result = hax.push_to_hub(model, tokenizer=tokenizer, **arguments)
        else:
            result = push_folder(**arguments)
    except AttnExtError as error:
        answer = {"error": str(error)}
    else:
        files = [[file.path, file.size, file.sha256] for file in result.files]
        answer = {"files": files, "url": result.url, "removed": result.removed}
    print("answer " + json.dumps(answer), flush=True)
"""


class Process:
    """A fresh process with its own endpoint, in which pushes run one after another."""

    def __init__(self, endpoint: str, home) -> None:
        ours = ("HF_", "TRANSFORMERS_")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        environment |= {
            "HF_ENDPOINT": endpoint,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HOME": str(home),
            "PYTHONPATH": os.getcwd(),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-c", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def push(self, folder, repo_id="me/converted", **arguments) -> dict:
        self._process.stdin.write(json.dumps({"folder": str(folder), "repo_id": repo_id, **arguments}) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("answer "):
                return json.loads(line.removeprefix("answer "))
        raise AssertionError(f"the pushing process died with {self._process.wait()}")

    def stop(self) -> None:
        self._process.communicate(timeout=60)


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with HubDouble() as double:
        process = Process(double.url, tmp_path_factory.mktemp("hf-home"))
        yield double, process
        process.stop()


@pytest.fixture
def hub(service):
    service[0].reset()
    return service[0]


@pytest.fixture
def push(service):
    def push(folder, token=TOKEN, **arguments):
        return service[1].push(folder, token=token, **arguments)

    return push


def as_listed(files) -> list:
    return [[file.path, file.size, file.sha256] for file in files]


def as_stored(hub, repo_id="me/converted") -> list:
    stored = hub.repos[repo_id]
    return [[name, len(stored[name]), hashlib.sha256(stored[name]).hexdigest()] for name in sorted(stored)]


@pytest.mark.parametrize("shards", [1, 3])
def test_what_is_stored_is_what_the_dry_run_listed_byte_for_byte(hub, push, tmp_path, shards):
    folder = converted_folder(tmp_path / "model", shards)
    dry = push_folder(folder, "me/converted", dry_run=True)
    done = push(folder, private=True, commit_message="First upload")
    assert done["files"] == as_listed(dry.files) == as_stored(hub)
    for name, content in hub.repos["me/converted"].items():
        assert content == (folder / name).read_bytes()
    assert hub.private["me/converted"]
    assert [commit["summary"] for commit in hub.commits] == ["First upload"]
    assert done["url"].startswith(f"{hub.url}/me/converted/commit/")


def test_a_second_push_replaces_the_files_and_removes_weights_that_would_shadow_them(hub, push, tmp_path):
    push(converted_folder(tmp_path / "one"))
    hub.repos["me/converted"]["data/notes.md"] = b"the user's own file"
    second = converted_folder(tmp_path / "three", shards=3)
    done = push(second)
    assert done["removed"] == ["model.safetensors"]
    assert hub.repos["me/converted"].pop("data/notes.md") == b"the user's own file"
    assert as_stored(hub) == as_listed(files_to_upload(second))


def test_a_failed_upload_commits_nothing_and_says_so_in_one_line(hub, push, tmp_path):
    hub.fail_uploads = True
    done = push(converted_folder(tmp_path / "model"))
    assert "'me/converted'" in done["error"] and "\n" not in done["error"]
    assert hub.repos["me/converted"] == {} and hub.commits == []


@pytest.mark.parametrize("token", [None, "hf_wrong_token"])
def test_without_a_valid_token_the_error_says_how_to_log_in(hub, push, tmp_path, token):
    done = push(converted_folder(tmp_path / "model"), token=token)
    assert "hf auth login" in done["error"] and "'me/converted'" in done["error"]
    assert "\n" not in done["error"]
    assert "hf_wrong_token" not in done["error"]
    assert hub.repos == {}


def test_without_a_network_a_dry_run_works_and_an_upload_is_one_line(tmp_path):
    folder = converted_folder(tmp_path / "model")
    process = Process("http://127.0.0.1:9", tmp_path / "hf-home")
    done = process.push(folder, dry_run=True)
    assert done["files"] == as_listed(files_to_upload(folder)) and done["url"] is None
    done = process.push(folder, token=TOKEN)
    assert "http://127.0.0.1:9" in done["error"] and "'me/converted'" in done["error"]
    assert "\n" not in done["error"]
    process.stop()


@pytest.mark.parametrize("name", ["a/b/c", "me/with space", "me/..", "", "-me/x-", None])
def test_a_bad_repository_name_is_refused_before_anything_else(tmp_path, name):
    with pytest.raises(AttnExtError, match="is not a repository name") as caught:
        push_folder(converted_folder(tmp_path / "model"), name, dry_run=True)
    assert repr(name) in str(caught.value)


def test_a_model_in_memory_is_pushed_with_its_tokenizer_and_a_card(hub, service, tmp_path):
    """The files that a dry run lists for a live model are, byte for byte, those that an upload of it stores."""
    torch.manual_seed(0)
    config = BertConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, vocab_size=30)
    folder = tmp_path / "saved"
    hax.convert(BertForMaskedLM(config), kernel="hedgehog", num_features=4).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    dry = service[1].push(folder, "me/live", token=TOKEN, live=True, dry_run=True)
    assert hub.repos == {} and dry["url"] is None
    names = {name for name, _, _ in dry["files"]}
    assert names >= {"config.json", "model.safetensors", "tokenizer.json", "README.md", "attn_ext_manifest.json"}
    done = service[1].push(folder, "me/live", token=TOKEN, live=True)
    assert done["files"] == dry["files"] == as_stored(hub, "me/live")
    assert b'from_pretrained("me/live")' in hub.repos["me/live"]["README.md"]


def test_a_stock_model_in_memory_is_refused():
    config = BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=30)
    with pytest.raises(AttnExtError, match="BertForMaskedLM is not a converted model"):
        push_to_hub(BertForMaskedLM(config), "me/live", dry_run=True)
