"""The main job at the smallest size: every stage, a report, going on after a kill, and folders of others."""

from __future__ import annotations

import json

import pytest

from labkit import evaluate, models, pipeline, resources, sft
from labkit.data import verilog
from labkit.errors import LabError
from labkit.evaluate import sampling
from tests.tiny import make_tiny_gemma4

SIZE = {"problems": 46, "unseen": 34}
RECIPE = sft.Recipe(steps=2, seq_len=256, batch_size=2, samples=40, rank=2, alpha=4.0, warmup=1, save_every=1)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    base = make_tiny_gemma4(tmp_path_factory.mktemp("base"), hidden_size=32, intermediate_size=32, num_hidden_layers=2)
    out = tmp_path_factory.mktemp("job") / "run"
    return base, out, pipeline.run(out=out, model=str(base), recipe=RECIPE, **SIZE)


@pytest.mark.slow
def test_the_report_holds_what_readers_look_for(finished):
    _, out, report = finished
    stored = json.loads((out / "report.json").read_text())
    assert stored["base"]["pass_at_1"] == report.base.pass_at_1 == 0
    assert stored["sft"]["problems"] == SIZE["problems"] and len(stored["sft"]["by_family"]) == 46
    assert stored["train_seconds"] > 0 and stored["useful_tokens_per_second"] > 0
    assert len(stored["controls"]) == 3
    page = (out / "report.html").read_text()
    assert "<h1>From specification" in page and 'src="http' not in page
    assert pipeline.RunReport.from_json(report.to_json()) == report


@pytest.mark.slow
def test_what_it_exports_can_be_loaded(finished):
    _, out, _ = finished
    assert models.load(out / "merged").spec.embed_dim == 32
    assert (out / "adapter" / "adapter_config.json").is_file()


@pytest.mark.slow
def test_the_same_call_goes_on_from_what_is_there(finished, monkeypatch):
    base, out, report = finished
    (out / "sft.json").unlink()
    asked = []
    original = pipeline.run.__globals__["judging"].evaluate
    monkeypatch.setattr(
        pipeline.run.__globals__["judging"], "evaluate", lambda *a, **k: asked.append(k["name"]) or original(*a, **k)
    )
    again = pipeline.run(out=out, model=str(base), recipe=RECIPE, **SIZE)
    assert asked == ["sft"]
    assert again.sft == report.sft and again.train.last_loss == report.train.last_loss


def test_folders_of_others_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text("mine")
    with pytest.raises(LabError, match="no labkit run"):
        pipeline.run(out=tmp_path, model="tiny-gemma4", recipe=RECIPE)
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_other_settings_are_refused(tmp_path):
    pipeline.run.__globals__["Settings"](RECIPE, 46, 34, 0).save(tmp_path / "settings.json")
    with pytest.raises(LabError, match="other settings"):
        pipeline.run(out=tmp_path, model="tiny-gemma4", recipe=RECIPE.replace(rank=3), **SIZE)


@pytest.mark.slow
@pytest.mark.parity
def test_the_stored_merged_model_answers_in_transformers_as_it_does_here():
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    directory = resources.path("models", "tiny-gemma4-sft")
    loaded = models.load(directory)
    prompts = [evaluate.controls.question(p, loaded.tokenizer).text for p in verilog.problems("test_seen", 50, seed=1)]
    ours = evaluate.generate(loaded.model, loaded.tokenizer, prompts)
    theirs = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    stops = sampling.stop_ids(loaded.tokenizer)
    for prompt, completion in zip(prompts, ours, strict=True):
        ids = loaded.tokenizer(prompt, add_special_tokens=False, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            output = theirs.generate(ids, max_new_tokens=256, do_sample=False, eos_token_id=stops)[0, ids.shape[1] :]
        assert loaded.tokenizer.decode(output, skip_special_tokens=True) == completion.text
