"""``bench attention`` from the command line to its files, at tiny sizes; no time is ever asserted."""

import json

import pytest

from benchmarks.speed.attention import bench as attention
from benchmarks.speed.attention.bench import AttentionBench, bench_attention
from benchmarks.speed.attention.contestants import PASSES, Workload, contestants
from benchmarks.speed.attention.plot import draw_attention
from benchmarks.speed.attention.report import attention_tables, notes
from benchmarks.speed.attention.summary import summarise
from hf_attn_ext.attention import list_kernels

EVERYBODY = {"sdpa", "eager", "performer-pytorch", *list_kernels()}
PNG = b"\x89PNG\r\n\x1a\n"


def test_everybody_is_in_the_report_at_every_length(report_of):
    done, report, folder = report_of("--lengths", "16,64,128", "--skip-memory", "--eager-limit", 64)
    assert report["complete"] and {c["name"] for c in report["contestants"]} == EVERYBODY
    rows = {(r["direction"], r["length"], r["pass"], r["contestant"]): r for r in report["measurements"]}
    assert set(rows) == {
        (direction, length, which, name)
        for direction in ("bidirectional", "causal")
        for length in (16, 64, 128)
        for which in PASSES
        for name in EVERYBODY
    }
    for (_, length, _, name), row in rows.items():
        if name == "eager" and length > 64:
            assert row["seconds"] is None and row["skipped"] == "eager is run to 64 tokens (--eager-limit)"
        else:
            assert row["skipped"] is None and row["seconds"]["median"] > 0 and row["operations"]["products"] > 0
            assert row["seconds"]["lower"] <= row["seconds"]["median"] <= row["seconds"]["upper"]
    assert {row["contestant"] for row in report["summary"]} == EVERYBODY
    for row in report["summary"]:
        assert row["length"] == row["limit_length"] == 128
        crossing = row["crossover"]["forward"]
        assert crossing is None if row["contestant"] == "sdpa" else crossing["kind"] in ("at", "always", "never")
    for name in EVERYBODY:
        assert f" {name} " in done.out
    for part in ("faster from", "share of limit 128", "eager not run: eager is run to 64 tokens", "GFLOP/s"):
        assert part in done.out
    assert report["machine"]["threads"] == 1 and report["machine"]["versions"]["performer-pytorch"]
    picture = (folder / "attention.png").read_bytes()
    assert picture.startswith(PNG) and len(picture) > 10_000
    assert sorted(path.name for path in folder.iterdir()) == ["attention.json", "attention.png"]


def test_memory_is_measured_and_compared(report_of):
    done, report, _ = report_of("--lengths", "64,512", "--kernels", "hedgehog", "--causal")
    peaks = {
        (r["contestant"], r["length"]): r["peak_bytes"]
        for r in report["measurements"]
        if r["pass"] == "forward+backward"
    }
    assert all(peak is not None for peak in peaks.values()) and peaks["eager", 512] > 2 * 2 * 512**2 * 4
    row = next(r for r in report["summary"] if r["contestant"] == "hedgehog")
    share = peaks["hedgehog", 512] / peaks["eager", 512]
    assert row["memory_to_eager"]["forward+backward"] == pytest.approx(share)
    assert {r["direction"] for r in report["measurements"]} == {"causal"} and "peak memory, MiB" in done.out


def test_who_would_not_fit_is_not_run_and_says_so(report_of, monkeypatch):
    monkeypatch.setattr(attention, "available_bytes", lambda device: 1000)
    _, report, _ = report_of("--lengths", "64", "--kernels", "elu", "--bidirectional", "--skip-memory")
    said = {row["contestant"]: row["skipped"] for row in report["measurements"]}
    assert said["eager"] == "needs about 0.0 GB, 0.0 GB are free" and said["sdpa"] is None and said["elu"] is None
    assert all(row["memory_to_eager"]["forward"] is None for row in report["summary"])


def test_a_missing_rival_is_a_row_with_its_reason(monkeypatch, tmp_path):
    def without(workload, kernels=None):
        found = contestants(workload, kernels)
        return [c if c.family != "performer-pytorch" else type(c)(c.name, c.family, absent="not here") for c in found]

    monkeypatch.setattr(attention, "contestants", without)
    settings = AttentionBench((16,), ("elu",), workload=Workload(heads=1, head_dim=4), repeats=1, memory=False)
    report = bench_attention(settings)
    rows = [row for row in report["measurements"] if row["contestant"] == "performer-pytorch"]
    assert len(rows) == 4 and all(row["skipped"] == "not here" for row in rows)
    assert any(line.startswith("performer-pytorch not run: not here") for line in notes(report))
    assert attention_tables(report)
    draw_attention(report, tmp_path / "a.png")


def test_the_file_is_there_after_every_length_and_stays_whole(monkeypatch):
    saved = []
    settings = AttentionBench((8, 16), ("elu",), ("causal",), Workload(heads=1, head_dim=4), repeats=1, memory=False)
    bench_attention(settings, save=lambda report: saved.append(json.loads(json.dumps(report, allow_nan=False))))
    assert [(r["complete"], len(r["measurements"])) for r in saved] == [(False, 8), (False, 16), (True, 16)]


def synthetic(times, peaks=None, kind="linear"):
    """A report of sdpa, eager, performer-pytorch and one kernel from formulas of the length."""
    lengths = (1024, 2048, 4096, 8192, 16384)
    operations = {"products": 30.0, "exponentials": 4.0, "cosines": 0.0}
    return {
        "contestants": [{"name": name} for name in times],
        "rates": {"products": 10.0, "exponentials": 2.0, "cosines": 1.0},
        "measurements": [
            {
                "direction": "causal",
                "pass": which,
                "contestant": name,
                "length": length,
                "seconds": {"median": factor * time(length)},
                "peak_bytes": length * 100 if name == kind else length**2,
                "operations": operations,
            }
            for name, time in times.items()
            for length in lengths
            for which, factor in zip(PASSES, (1, 3), strict=True)
        ],
    }


def test_the_summary_of_known_numbers_is_exact():
    times = {
        "sdpa": lambda n: (n / 1024) ** 2,
        "eager": lambda n: 4 * (n / 1024) ** 2,
        "performer-pytorch": lambda n: 8 * n / 1024,
        "linear": lambda n: 4 * n / 1024,
    }
    summary = {row["contestant"]: row for row in summarise(synthetic(times))}
    row = summary["linear"]
    for which in PASSES:
        assert row["speed_to_sdpa"][which] == 1.0  # 4096 tokens: both take 16
        assert row["speed_to_performer_pytorch"][which] == 2.0
        assert row["crossover"][which] == {"kind": "at", "length": 4096.0, "changes": 1}
        assert row["time_growth"][which] == {"slope": pytest.approx(1.0), "from": 1024, "to": 16384}
        assert row["memory_growth"][which]["slope"] == pytest.approx(1.0)
        assert row["memory_to_eager"][which] == 100 / 4096
        assert summary["sdpa"]["time_growth"][which]["slope"] == pytest.approx(2.0)
    assert row["limit_share"] == {"forward": 5 / 32, "forward+backward": 5 / 96}  # 30 / 10 + 4 / 2 seconds of 4 x 8
    assert (
        summary["sdpa"]["crossover"]["forward"] is None and summary["eager"]["crossover"]["forward"]["kind"] == "never"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--kernels", "hedgehg"], ["'hedgehg'", "'hedgehog'"]),
        (["--kernels", "elu,elu"], ["'elu' is named twice"]),
        (["--lengths", "64,32"], ["--lengths must increase, got 32 after 64"]),
        (["--lengths", "64,64"], ["--lengths must increase"]),
        (["--lengths", "0,64"], ["--lengths must be at least 1, got 0"]),
        (["--lengths", "64,-3"], ["got -3"]),
        (["--lengths", "64;128"], ["'64;128'", "whole numbers"]),
        (["--lengths", ""], ["--lengths"]),
        (["--device", "cuda"], ["'cuda'", "no CUDA device"]),
        (["--device", "cud"], ["'cud'", "'cuda'"]),
        (["--dtype", "float23"], ["'float23'", "'float32'"]),
        (["--heads", "0"], ["heads", "0"]),
        (["--threads", "0"], ["threads"]),
        (["--repeats", "0"], ["repeats"]),
        (["--budget-seconds", "0"], ["budget in seconds must be above 0"]),
    ],
)
def test_mistakes_are_one_line(run, tmp_path, monkeypatch, words, said):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    message = run("bench", "attention", "--out", tmp_path / "out", *words).mistake()
    for part in said:
        assert part in message
    assert not (tmp_path / "out").exists()


def test_out_must_be_a_folder(run, tmp_path):
    (tmp_path / "file").write_text("mine")
    message = run("bench", "attention", "--lengths", "8", "--out", tmp_path / "file").mistake()
    assert "is a file" in message and (tmp_path / "file").read_text() == "mine"


def test_the_commands_have_help(run):
    assert "attention" in run("bench", "--help").out and "decode" in run("bench", "--help").out
    assert "--eager-limit" in run("bench", "attention", "--help").out
    assert "'attention'" in run("bench", "atention").mistake()


@pytest.mark.parametrize(("name", "value"), [("lengths", ()), ("lengths", (1.5,)), ("directions", ("caus",))])
def test_settings_are_checked_without_the_command_line_too(name, value):
    from hf_attn_ext.errors import AttnExtError

    with pytest.raises(AttnExtError):
        AttentionBench(**{name: value})
