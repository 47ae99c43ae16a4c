"""``hf-attn-ext lm-eval``: the harness evaluates the converted model and no other, and mistakes are one line."""

import json
import os
import random
import shutil
import subprocess
import sys

import datasets
import pytest
import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2LMHeadModel, PreTrainedTokenizerFast

import hf_attn_ext as hax
from hf_attn_ext.cli.commands.lm_eval import run_harness
from tests.cli.harness import prepare
from tests.training import small_gpt

LENGTH = 40  # the positions of the tiny GPT-2
TASKS = {
    "tiny_rolling": """
        output_type: loglikelihood_rolling
        doc_to_text: ""
        doc_to_target: "{{text}}"
        metric_list: [{metric: bits_per_byte, aggregation: bits_per_byte, higher_is_better: false}]""",
    "tiny_choice": """
        output_type: multiple_choice
        doc_to_text: "{{passage}}"
        doc_to_choice: choices
        doc_to_target: answer
        metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]""",
    "tiny_words": """
        output_type: generate_until
        doc_to_text: "{{passage}}"
        doc_to_target: anna
        generation_kwargs: {until: ["."], max_gen_toks: 8}
        metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]""",
}


def save_tokenizer(folder, texts):
    """A byte-level BPE trained on ``texts``; as GPT-2's, it has one special token and none for padding."""
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(texts, vocab_size=300, special_tokens=[small_gpt.END], show_progress=False)
    names = {"bos_token": small_gpt.END, "eos_token": small_gpt.END, "unk_token": small_gpt.END}
    made = PreTrainedTokenizerFast(tokenizer_object=trained._tokenizer, **names)
    made.model_input_names = ["input_ids", "attention_mask"]
    made.save_pretrained(folder)
    return made


def question(number: int) -> dict:
    """A passage of 3 to 9 words and choices of different lengths, one of them a single word."""
    words = small_gpt.document(random.Random(100 + number)).split()
    cut = 3 + number % 7
    choices = [" ".join(words[-4:]), words[-1], " ".join(words[-2:]), " ".join(reversed(words[-4:]))]
    return {"passage": " ".join(words[:cut]), "choices": choices, "answer": number % 4}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A softmax model, the same one converted (``ours``), and the three tasks with their texts."""
    root = tmp_path_factory.mktemp("lm-eval")
    texts = [row["text"] for row in small_gpt.documents(12)]
    # white space at the ends, one text of a few tokens, and one that is several times as long as the model
    texts += [f" {texts[0]}\n", "anna", " ".join(texts[:8])]
    tokenizer = save_tokenizer(root / "stock", texts)
    torch.manual_seed(0)
    sizes = {"vocab_size": len(tokenizer), "bos_token_id": tokenizer.bos_token_id, "n_positions": LENGTH}
    sizes |= {"eos_token_id": tokenizer.eos_token_id, "initializer_range": 0.4}
    model = GPT2LMHeadModel(small_gpt.host_config(**sizes)).eval()
    model.save_pretrained(root / "stock")
    hax.convert(model, kernel="flexformer_p", num_features=4).save_pretrained(root / "ours")
    tokenizer.save_pretrained(root / "ours")
    for name, records in (("rolling", [{"text": text} for text in texts]), ("choice", [*map(question, range(9))])):
        small_gpt.save_jsonl(root / f"{name}.jsonl", records)
    (root / "tasks").mkdir()
    for name, lines in TASKS.items():
        file = root / ("rolling.jsonl" if name == "tiny_rolling" else "choice.jsonl")
        head = f"task: {name}\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {file}}}}}\ntest_split: test\n"
        (root / "tasks" / f"{name}.yaml").write_text(head + lines.replace("\n        ", "\n").lstrip())
    return root


@pytest.fixture(autouse=True)
def small_index(monkeypatch, tmp_path_factory):
    prepare(monkeypatch)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path_factory.getbasetemp() / "datasets"))


@pytest.fixture
def harness(run, root, tmp_path):
    """Run the tasks on a folder; return for every task its documents and the model's answers to them, in order."""

    def harness(folder, *options, tasks=tuple(TASKS)):
        out = tmp_path / "-".join(["out", folder, *map(str, options)]).replace("=", "-")
        words = ["--model", "hf", "--model_args", f"pretrained={root / folder}", "--device", "cpu"]
        words += ["--tasks", ",".join(tasks), "--include_path", root / "tasks", "--output_path", out, "--log_samples"]
        done = run("lm-eval", *words, *options)
        assert done.code == 0, done.err
        assert ("flexformer_p in all 2 layers" in done.err) == (folder == "ours")
        return {task: samples(out, task) for task in tasks}

    return harness


def samples(out, task):
    (file,) = out.rglob(f"samples_{task}_*.jsonl")
    found = [json.loads(line) for line in file.read_text().splitlines()]
    return [(row["doc"], row["resps"]) for row in sorted(found, key=lambda row: row["doc_id"])]


def numbers(answers):
    """The log-likelihoods of all documents, one after the other."""
    return [float(value[0] if isinstance(value, list) else value) for _, all_ in answers for (value,) in all_]


def score(model, ids, count):
    """The log-likelihood of the last ``count`` of ``ids``, computed from one unpadded sequence."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids[:-1]]), use_cache=False).logits[0].double()
    chosen = logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])
    return float(chosen[-count:].sum())


def by_hand(folder, answers):
    """What the harness should have found, with nothing of the harness."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    rolling, choice, words = [], [], []
    for row, _ in answers["tiny_rolling"]:
        ids, total = [tokenizer.bos_token_id, *tokenizer(row["text"])["input_ids"]], 0.0
        for start in range(1, len(ids), LENGTH):
            stop = min(start + LENGTH, len(ids))
            total += score(model, ids[max(0, stop - LENGTH - 1) : stop], stop - start)
        rolling.append(total)
    for row, _ in answers["tiny_choice"]:
        begin = tokenizer(row["passage"])["input_ids"]
        for text in row["choices"]:
            ids = tokenizer(f"{row['passage']} {text}")["input_ids"]
            choice.append(score(model, ids, len(ids) - len(begin)))
    for row, _ in answers["tiny_words"]:
        ids = begin = tokenizer(row["passage"])["input_ids"]
        for _ in range(8):
            with torch.no_grad():
                ids = [*ids, int(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax())]
        text = tokenizer.decode(ids[len(begin) :])
        words.append(text.split(small_gpt.END)[0].split(".")[0])
    return rolling, choice, words


def differences(some, others):
    return [abs(a - b) for a, b in zip(some, others, strict=True)]


@pytest.mark.parametrize("folder", ["ours", "stock"])
def test_the_answers_are_those_of_the_model_in_the_folder(harness, root, folder):
    found = harness(folder)
    rolling, choice, words = by_hand(root / folder, found)
    assert numbers(found["tiny_rolling"]) == pytest.approx(rolling, abs=1e-4)
    assert numbers(found["tiny_choice"]) == pytest.approx(choice, abs=1e-4)
    assert [all_[0][0] for _, all_ in found["tiny_words"]] == words
    other = by_hand(root / ("stock" if folder == "ours" else "ours"), found)
    for mine, its in zip(found["tiny_rolling"], differences(rolling, other[0]), strict=True):
        assert its > 1e-2 or mine[0]["text"] == "anna"  # one token, after one: there is nothing to attend to
    assert min(differences(choice, other[1])) > 1e-3
    assert words != other[2]


def test_batches_change_nothing(harness):
    one, many = harness("ours", "--batch_size", 1), harness("ours", "--batch_size", 4)
    for task in ("tiny_rolling", "tiny_choice"):
        assert numbers(many[task]) == pytest.approx(numbers(one[task]), abs=1e-4)
    # these are padded on the left, with passages of 3 to 9 words in a batch
    assert many["tiny_words"] == one["tiny_words"]


def test_options_reach_the_model(harness, root, run):
    """A softmax folder is evaluated as what it was asked to be, and softmax is never put under a converted one."""
    args = ["--model_args", f"pretrained={root / 'stock'},attn_implementation=flexformer"]
    with pytest.warns(UserWarning, match="untrained"):
        linear = harness("stock", *args, tasks=["tiny_rolling"])
    plain = harness("stock", tasks=["tiny_rolling"])
    assert numbers(linear["tiny_rolling"]) != pytest.approx(numbers(plain["tiny_rolling"]), abs=1e-2)
    words = ["--tasks", "tiny_rolling", "--include_path", root / "tasks"]
    softmax = run("lm-eval", "--model_args", f"pretrained={root / 'ours'},attn_implementation=sdpa", *words)
    assert softmax.code == 2 and "sdpa" in softmax.err.splitlines()[-1] and "Traceback" not in softmax.err
    message = run("lm-eval", "--model", "vllm", "--model_args", f"pretrained={root / 'ours'}", *words).mistake()
    assert "--model vllm" in message and "--model hf" in message


def test_mistakes_are_one_line(run, root, masked_lm, tmp_path):
    def said(model_args, *words, model="hf"):
        pretrained = [] if model_args is None else ["--model_args", model_args]
        return run("lm-eval", "--model", model, *pretrained, *words)

    ours, tasks = f"pretrained={root / 'ours'}", ["--include_path", root / "tasks"]
    here = ["--tasks", "tiny_rolling", *tasks]
    assert "'./no-such-folder'" in said("pretrained=./no-such-folder", *here).mistake()
    assert "'convertd' is no folder" in said("pretrained=convertd", *here).mistake()
    assert "config.json" in said(f"pretrained={tmp_path}", *here).mistake()
    shutil.copytree(root / "ours", tmp_path / "mute", ignore=shutil.ignore_patterns("*token*"))
    assert "tokenizer" in said(f"pretrained={tmp_path / 'mute'}", *here).mistake()  # else an empty one
    assert "--tasks" in said(ours).mistake()
    assert "pretrained=FOLDER" in said(None, *here).mistake()
    assert "'nowhere'" in said(ours, "--tasks", "x", "--include_path", "nowhere").mistake()
    for done, part in (
        (said(ours, "--tasks", "tiny_roling", *tasks), "tiny_roling"),
        (said(f"pretrained={root / 'stock'}", *here, model="hff"), "'hff'"),
        (said(ours, *here, "--log_samples"), "--output_path"),
        (said(ours, *here, "--config", "none.yaml"), "none.yaml"),
    ):
        last = done.err.splitlines()[-1]
        assert done.code == 2 and last.startswith("error: ") and part in last and "Traceback" not in done.err
    assert said(ours, *here, "--batchsize", "2").code == 2
    assert run("convert", masked_lm, "--num-features", 4, "--out", tmp_path / "encoder").code == 0
    assert "ForMaskedLM" in said(f"pretrained={tmp_path / 'encoder'}", *here).mistake()


def test_without_the_harness(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    assert 'pip install "hf-attn-ext[lm-eval]"' in run("lm-eval", "ls", "tasks").mistake()


def test_arguments_are_passed_on_unchanged(run, monkeypatch):
    import lm_eval.__main__

    seen, before = [], list(sys.argv)
    monkeypatch.setattr(lm_eval.__main__, "cli_evaluate", lambda: seen.append(sys.argv[1:]))
    words = ["-M", "dummy", "-t", "a", "b,c", "--gen_kwargs", 'until=["\\n", "--"]', "temperature=0", "-L", "2", "-s"]
    words += ["-o=x y", "--verbosity", "DEBUG", "--seed", "1,2,3,4"]
    for given in (words, ["run", *words], ["ls", "tasks"]):
        assert run("lm-eval", *given).code == 0
        assert seen.pop() == (given if given[0] in ("run", "ls") else ["run", *given])  # the harness's own insertion
    assert sys.argv == before
    done = run("lm-eval", "run", "--help")
    assert done.code == 0 and "--model_args" in done.out


def test_other_errors_of_the_harness_keep_their_traceback(monkeypatch):
    import lm_eval.__main__

    def broken():
        raise ValueError("not the user's")

    monkeypatch.setattr(lm_eval.__main__, "cli_evaluate", broken)
    with pytest.raises(ValueError, match="not the user's"):
        run_harness(["--model", "dummy", "--tasks", "x"])


def test_the_module_in_a_fresh_process(root, tmp_path):
    """The real thing, with the harness's own tasks in its index; all that differs is the import."""
    words = ["--model", "hf", "--model_args", f"pretrained={root / 'ours'}", "--device", "cpu", "--tasks"]
    words += ["tiny_choice", "--include_path", str(root / "tasks"), "--output_path", str(tmp_path), "--log_samples"]
    environment = {**os.environ, "HF_DATASETS_CACHE": datasets.config.HF_DATASETS_CACHE}
    command = [sys.executable, "-m", "hf_attn_ext.lm_eval", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    assert "tiny_choice" in done.stdout and "Metric" in done.stdout
    found = {"tiny_rolling": [], "tiny_words": [], "tiny_choice": samples(tmp_path, "tiny_choice")}
    assert numbers(found["tiny_choice"]) == pytest.approx(by_hand(root / "ours", found)[1], abs=1e-4)
