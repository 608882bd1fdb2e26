"""Readers: every malformed line is named, good ones survive, and a bad file stops with what to do."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.data.examples import Example, Message
from labkit.data.readers import ReadReport, fenced_code, read_jsonl, read_verilog_eval
from labkit.errors import LabError

GOOD = {"messages": [{"role": "user", "content": "Say hi."}, {"role": "assistant", "content": "hi"}]}
CODEV = {
    "prompt": "Write an AND gate.",
    "response": "<think>\nTwo inputs.\n</think>\n\n<answer>\n```verilog\nmodule a(input x);\nendmodule\n```\n</answer>",
}


def write(path, *records):
    path.write_bytes(b"".join((r if isinstance(r, bytes) else json.dumps(r).encode()) + b"\n" for r in records))
    return path


def user(text):
    return Message("user", text)


def assistant(text):
    return Message("assistant", text)


def test_chat_completion_and_codev_become_one_record_type(tmp_path):
    system = {"messages": [{"role": "system", "content": "Be brief."}, *GOOD["messages"]], "id": "mine"}
    path = write(tmp_path / "mix.jsonl", GOOD, system, {"prompt": "2+2", "completion": "4"}, CODEV)
    examples, report = read_jsonl(path)
    assert examples[0] == Example("mix:1", (user("Say hi."), assistant("hi")))
    assert examples[1] == Example("mine", (Message("system", "Be brief."), user("Say hi."), assistant("hi")))
    assert examples[2] == Example.of("2+2", "4", id="mix:3")
    code = "```verilog\nmodule a(input x);\nendmodule\n```"
    assert examples[3].messages == (
        user("Write an AND gate."),
        assistant(f"<think>\nTwo inputs.\n</think>\n\n{code}"),
    )
    assert (report.lines, report.kept, report.malformed) == (4, 4, ())


BAD_LINES = [
    (b'{"messages": [', "broken JSON"),
    (b"[1, 2]", "not a JSON object"),
    (b"\xff\xfe{}", "not UTF-8 at byte 0"),
    (b"[" * 100_000, "nested too deeply"),
    ({}, "no field 'messages'"),
    ({"prompt": "x"}, "no field"),
    ({"completion": "x"}, "no field 'prompt'"),
    ({"prompt": "x", "completion": " \n"}, "empty answer"),
    ({"prompt": "", "completion": "x"}, "empty prompt"),
    ({"prompt": 3, "completion": "x"}, "prompt is not a text"),
    ({"messages": []}, "not a list of messages"),
    ({"messages": "hi"}, "not a list of messages"),
    ({"messages": ["hi"]}, "not an object"),
    ({"messages": [{"role": "user"}]}, "no field 'content'"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "role 'tool'"),
    ({"messages": GOOD["messages"][:1]}, "ending with the assistant"),
    ({"messages": GOOD["messages"][:1] * 2 + GOOD["messages"][1:]}, "in turn"),
    ({"prompt": "x", "completion": "\ud800"}, "lone surrogate"),
    ({"prompt": "x", "response": "<think>never closed ```verilog\nmodule\n```"}, "<think> is not closed"),
    ({"prompt": "x", "response": "<think>a</think> no code"}, "no fenced code"),
    ({"prompt": "x", "response": "<answer>```verilog\n\n```</answer>"}, "empty answer"),
    ({"prompt": "x", "response": "<think>```verilog\nmodule a;\n```</think><answer></answer>"}, "empty answer"),
]


@pytest.mark.parametrize(("line", "reason"), BAD_LINES)
def test_each_kind_of_malformed_line_is_counted_with_its_number_and_reason(tmp_path, line, reason):
    path = write(tmp_path / "data.jsonl", GOOD, b"", line, GOOD)
    examples, report = read_jsonl(path, max_bad_share=0.5)
    assert len(examples) == 2 and examples[1].id == "data:4"
    (bad,) = report.malformed
    assert bad.line == 3 and reason in bad.reason and "line 3" in str(bad)
    with pytest.raises(LabError, match=r"1 of 3 samples are malformed .line 3"):
        read_jsonl(path, max_bad_share=0.33)


def test_huge_lines_are_skipped_without_reading_them_whole(tmp_path):
    huge = {"prompt": "x" * 5000, "completion": "y"}
    path = write(tmp_path / "data.jsonl", huge, GOOD, huge)
    examples, report = read_jsonl(path, max_line_bytes=1000, max_bad_share=0.9)
    assert [e.id for e in examples] == ["data:2"]
    assert [(m.line, m.reason) for m in report.malformed] == [(n, "longer than the line limit") for n in (1, 3)]
    assert read_jsonl(path, max_line_bytes=6000)[1].kept == 3


def test_byte_order_mark_windows_line_ends_and_missing_last_newline(tmp_path):
    path = tmp_path / "data.jsonl"
    line = json.dumps(GOOD)
    path.write_bytes(b"\xef\xbb\xbf" + f"{line}\r\n\r\n{line}".encode())
    examples, report = read_jsonl(path)
    assert [e.id for e in examples] == ["data:1", "data:3"] and report.lines == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (json.dumps(GOOD).encode("utf-16"), "UTF-16"),
        (json.dumps([GOOD]).encode(), "JSON array"),
        (b"\xef\xbb\xbf\n [", "JSON array"),
        (b"", "no sample"),
        (b"\n\n", "no sample"),
    ],
)
def test_files_that_are_not_json_lines(tmp_path, content, message):
    (tmp_path / "data.jsonl").write_bytes(content)
    with pytest.raises(LabError, match=message):
        read_jsonl(tmp_path / "data.jsonl", max_bad_share=1.0)


def test_missing_file_folder_and_unknown_form(tmp_path):
    with pytest.raises(LabError, match="No such file"):
        read_jsonl(tmp_path / "none.jsonl")
    with pytest.raises(LabError, match="directory"):
        read_jsonl(tmp_path)
    with pytest.raises(LabError, match=r"codeev.*codev"):
        read_jsonl(tmp_path, "codeev")


def test_limit_stops_early_and_form_is_enforced(tmp_path):
    path = write(tmp_path / "data.jsonl", *[GOOD] * 5)
    assert read_jsonl(path, limit=2)[1].lines == 2
    with pytest.raises(LabError, match="no field 'completion'"):
        read_jsonl(path, "completion")


@given(st.lists(st.text(min_size=1).filter(str.strip), min_size=1, max_size=3), st.booleans())
def test_any_text_survives(tmp_path_factory, answers, escaped):
    folder = tmp_path_factory.mktemp("any")
    lines = [json.dumps({"prompt": "q", "completion": a}, ensure_ascii=escaped).encode() for a in answers]
    examples, _ = read_jsonl(write(folder / "data.jsonl", *lines))
    assert [e.answer for e in examples] == answers


def test_codev_takes_the_last_block_of_the_answer_and_list_prompts(tmp_path):
    record = {
        "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
        "response": "<think>```verilog\nwrong\n```</think><answer>```verilog\nfirst\n```\n```\r\nlast\r\n```",
    }
    (example,), _ = read_jsonl(write(tmp_path / "c.jsonl", record), "codev")
    assert [m.role for m in example.messages] == ["system", "user", "assistant"]
    assert example.answer == "<think>```verilog\nwrong\n```</think>\n\n```verilog\nlast\n```"
    assert fenced_code("none") == ""


def test_report_goes_to_and_from_json(tmp_path):
    _, report = read_jsonl(write(tmp_path / "d.jsonl", GOOD, b"x"), max_bad_share=0.5)
    assert ReadReport.from_json(report.to_json()) == report
    assert "1 of 2 samples, 1 malformed (50.00%)" in str(report)


def make_checkout(root, names):
    folder = root / "dataset_spec-to-rtl"
    folder.mkdir()
    for name in names:
        (folder / f"{name}_prompt.txt").write_text(f"\n\nImplement {name}.\n\n")
        (folder / f"{name}_ref.sv").write_text("module RefModule(output zero);\n  assign zero = 0;\nendmodule\n")
        (folder / f"{name}_test.sv").write_text("module tb; initial $display; endmodule\n")
    return folder


def test_verilog_eval_checkout(tmp_path):
    folder = make_checkout(tmp_path, ["Prob002_b", "Prob001_a"])
    problems, report = read_verilog_eval(tmp_path)
    assert [p.id for p in problems] == ["Prob001_a", "Prob002_b"] and report.kept == 2
    assert problems[0].spec == "Implement Prob001_a." and problems[0].top == "TopModule"
    assert "RefModule" in problems[0].reference and "tb" in problems[0].testbench
    assert read_verilog_eval(folder)[0] == problems


def test_verilog_eval_with_missing_or_wrong_files(tmp_path):
    folder = make_checkout(tmp_path, ["Prob001_a", "Prob002_b", "Prob003_c"])
    (folder / "Prob001_a_ref.sv").unlink()
    (folder / "Prob002_b_ref.sv").write_text("module Other; endmodule")
    with pytest.raises(LabError, match=r"2 of 3 samples are malformed .Prob001_a_prompt.txt: Prob001_a_ref.sv is miss"):
        read_verilog_eval(tmp_path)
    problems, report = read_verilog_eval(tmp_path, max_bad_share=0.7)
    assert [p.id for p in problems] == ["Prob003_c"] and "RefModule" in report.malformed[1].reason
    with pytest.raises(LabError, match="holds no ProbNNN"):
        read_verilog_eval(tmp_path / "nowhere")
