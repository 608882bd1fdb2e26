"""`labkit doctor` tells gaps with the command that mends them, and starts no JAX."""

from __future__ import annotations

import subprocess
import sys

from labkit import doctor


def test_a_report_goes_to_json_and_back_and_prints_one_line():
    report = doctor.examine()
    assert doctor.Report.from_json(report.to_json()) == report
    assert len(str(report).splitlines()) == 1 and report.memory > 2**30 and report.cores >= 1


def test_a_missing_program_comes_with_a_command(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name, *a, **k: None)
    labs = {lab.lab: lab for lab in doctor.examine().labs}
    gap = labs["labkit run"]
    assert not gap.ready and "iverilog" in gap.missing and "iverilog" in gap.mend


def test_it_starts_no_jax():
    code = "import sys; from labkit import doctor; doctor.examine(); sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
