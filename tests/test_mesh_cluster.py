"""What `labkit cluster` promises: files that the engines' own validators take, for the slice that was asked for."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import yaml

from labkit import hardware
from labkit.errors import LabError
from labkit.mesh import cluster

ROOT = Path(__file__).resolve().parents[1]
GKE_SLICES = ("v4-8", "v5e-1", "v5e-8", "v5e-16", "v5p-8", "v5p-128", "v6e-8", "v6e-256", "tpu7x-8", "2xv5e-16")
# The fields of JobSet v1alpha2 and which of them must be there: JobSetSpec, ReplicatedJob, Network, FailurePolicy in
# github.com/kubernetes-sigs/jobset, api/jobset/v1alpha2/jobset_types.go at commit 0336a8fd9fd3.
JOBSET_SPEC = {
    "replicatedJobs", "network", "successPolicy", "failurePolicy", "startupPolicy", "suspend", "coordinator",
    "managedBy", "ttlSecondsAfterFinished", "volumeClaimPolicies",
}  # fmt: skip
REPLICATED_JOB = {"name", "template", "replicas", "groupName", "dependsOn"}
NETWORK = {"enableDNSHostnames", "subdomain", "publishNotReadyAddresses"}
FAILURE_POLICY = {"maxRestarts", "rules", "restartStrategy"}
# ExclusiveKey of the same file; the concepts page of JobSet shows it with GKE's node pools.
EXCLUSIVE = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}


def documents(name: str, **options) -> list[dict]:
    return list(yaml.safe_load_all(cluster.launch(name, **options).files["jobset.yaml"]))


def job(jobset: dict) -> dict:
    return jobset["spec"]["replicatedJobs"][0]["template"]["spec"]


@pytest.mark.parametrize("name", GKE_SLICES)
@pytest.mark.parametrize("options", [{}, {"bucket": "checkpoints", "spot": True}])
def test_kubernetes_own_schemas_take_the_core_objects(name, options):
    """A JobSet's job template is a batch/v1 Job, whose pod template is a core Pod."""
    validator = pytest.importorskip("kubernetes_validate")
    namespace, account, jobset = documents(name, **options)
    template = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "slice"}, "spec": job(jobset)}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": job(jobset)["template"]["spec"]}
    for document in (namespace, account, template, pod):
        validator.validate(document, validator.latest_version(), strict=True)
    wrong = json.loads(json.dumps(template).replace('"backoffLimit"', '"backofLimit"'))
    with pytest.raises(validator.ValidationError):
        validator.validate(wrong, validator.latest_version(), strict=True)


@pytest.mark.parametrize("name", GKE_SLICES)
def test_the_jobset_has_the_fields_of_its_api_and_the_numbers_of_the_slice(name):
    jobset, wanted = documents(name)[2], hardware.slice(name)
    assert (jobset["apiVersion"], jobset["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert jobset["metadata"]["annotations"] == EXCLUSIVE
    spec = jobset["spec"]
    assert set(spec) <= JOBSET_SPEC and set(spec["network"]) <= NETWORK
    assert set(spec["failurePolicy"]) <= FAILURE_POLICY
    (replicated,) = spec["replicatedJobs"]
    assert {"name", "template"} <= set(replicated) <= REPLICATED_JOB
    assert replicated["replicas"] == wanted.slices
    hosts = wanted.hosts // wanted.slices
    assert job(jobset)["parallelism"] == job(jobset)["completions"] == hosts
    pod = job(jobset)["template"]["spec"]
    chips = pod["containers"][0]["resources"]["limits"]["google.com/tpu"]
    assert chips * hosts * wanted.slices == wanted.chips
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "x".join(map(str, wanted.shape))


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("v4-8", "tpu-v4-podslice"),
        ("v5e-16", "tpu-v5-lite-podslice"),
        ("v5p-8", "tpu-v5p-slice"),
        ("v6e-8", "tpu-v6e-slice"),
        ("tpu7x-8", "tpu7x"),
    ],
)
def test_the_accelerator_label_is_gkes(name, label):
    """cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus, the values of the node label."""
    pod = job(documents(name)[2])["template"]["spec"]
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-accelerator"] == label


@pytest.mark.parametrize(
    ("name", "accelerator", "runtime"),
    [
        ("v5p-8", "v5p-8", "v2-alpha-tpuv5"),
        ("v5e-16", "v5litepod-16", "v2-alpha-tpuv5-lite"),
        ("v6e-8", "v6e-8", "v2-alpha-tpuv6e"),
        ("v4-16", "v4-16", "tpu-ubuntu2204-base"),
    ],
)
def test_the_queued_resource_asks_for_the_slice(name, accelerator, runtime):
    script = cluster.launch(name, spot=True).files["queued_resource.sh"]
    request = re.search(r"^gcloud compute tpus queued-resources create.*?[^\\]$", script, re.M | re.S)
    words = shlex.split(request[0].replace("\\\n", " "))
    assert words[:6] == ["gcloud", "compute", "tpus", "queued-resources", "create", "labkit-03"]
    assert set(words[6:]) == {
        "--node-id=labkit-03", "--project=$PROJECT", "--zone=$ZONE", f"--accelerator-type={accelerator}",
        f"--runtime-version={runtime}", "--spot",
    }  # fmt: skip


def test_the_script_is_bash_and_runs_the_lab_on_every_host_of_every_slice(tmp_path):
    """gcloud is a stand-in that writes down what it is asked; the request is active at once."""
    log, bin_dir = tmp_path / "log", tmp_path / "bin"
    cluster.launch("2xv5e-16", lab="01_mesh_setup", axes="fsdp=16,tp=2", engine="gcloud", out=tmp_path)
    bin_dir.mkdir()
    fake = f"#!/bin/bash\nprintf '%s ' \"$@\" >> {log}\necho >> {log}\ncase $* in *describe*) echo ACTIVE ;; esac\n"
    (bin_dir / "gcloud").write_text(fake)
    (bin_dir / "gcloud").chmod(0o755)
    env = {"PATH": f"{bin_dir}:{os.environ['PATH']}", "PROJECT": "p", "ZONE": "z"}
    subprocess.run(["bash", str(tmp_path / "queued_resource.sh")], env=env, check=True, cwd=tmp_path)
    said = log.read_text().splitlines()
    assert "--node-count=2 --node-prefix=labkit-01" in said[0]
    runs = [line for line in said if " ssh " in line]
    assert [re.search(r"ssh (\S+)", line)[1] for line in sorted(runs)] == ["labkit-01-0", "labkit-01-1"]
    assert all("--worker=all" in line and "python -m labkit.mesh --axes fsdp=16,tp=2" in line for line in runs)
    bare = subprocess.run(
        ["bash", str(tmp_path / "queued_resource.sh")], env={"PATH": env["PATH"]}, capture_output=True
    )
    assert bare.returncode and b"export PROJECT" in bare.stderr


def test_engines_that_do_not_have_a_slice_are_left_out_and_said():
    ironwood = cluster.launch("tpu7x-8")
    assert set(ironwood.files) == {"Dockerfile", "jobset.yaml"} and "on GKE only" in str(ironwood)
    many = cluster.launch("2xv6e-16")
    assert "sky.yaml" not in many.files and "SkyPilot has no multislice" in str(many)
    assert "All hosts must see the --out folder" in str(many)
    with pytest.raises(LabError, match="skypilot does not have 2xv6e-16"):
        cluster.launch("2xv6e-16", engine="skypilot")


def test_a_bucket_is_mounted_where_the_run_writes():
    found = cluster.launch("v5e-16", bucket="mine")
    pod = job(list(yaml.safe_load_all(found.files["jobset.yaml"]))[2])["template"]["spec"]
    mount = pod["containers"][0]["volumeMounts"][0]["mountPath"]
    assert f"--out {mount}/labkit-03" in pod["containers"][0]["command"][2]
    assert mount not in found.files["queued_resource.sh"] and mount not in found.files["sky.yaml"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"slice_name": "v5p-9"}, "v5p"),
        ({"slice_name": "v5p-8", "lab": "03_lora"}, "03_lora_sft"),
        ({"slice_name": "v5p-8", "name": "My Job"}, "no name for a job"),
        ({"slice_name": "v5p-8", "engine": "slurm"}, "gke, skypilot, gcloud"),
    ],
)
def test_bad_wishes_are_refused(arguments, message):
    with pytest.raises(LabError, match=message):
        cluster.launch(**arguments)


def test_the_command_writes_the_files_and_prints_them(tmp_path):
    command = [sys.executable, "-m", "labkit.cli", "cluster", "--slice", "v5e-16", "--out", str(tmp_path), "--json"]
    code = "import sys; from labkit.cli import main; main(sys.argv[1:])"
    done = subprocess.run([sys.executable, "-c", code, *command[3:]], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert {p.name for p in tmp_path.iterdir()} == set(record["files"])
    assert record["command"] == "labkit sft --axes fsdp=16 --out out/labkit-03"
    assert cluster.Launch.from_json(done.stdout).files["sky.yaml"] == (tmp_path / "sky.yaml").read_text()


def test_the_labs_are_the_notebooks():
    have = {path.stem for path in (ROOT / "notebooks" / "src").glob("*.py")}
    assert {lab for lab in cluster.LABS if lab.startswith("00")} <= have


LOAD = """
import sys, yaml, sky
for text in sys.stdin.read().split("\\n===\\n"):
    task = sky.Task.from_yaml_config(yaml.safe_load(text))
    (resource,) = task.resources
    print(task.num_nodes, resource.cloud, *resource.accelerators, resource.accelerator_args["runtime_version"])
try:
    sky.Task.from_yaml_config(yaml.safe_load(text) | {"num_node": 2})
except Exception as error:
    print(type(error).__name__)
"""


@pytest.fixture(scope="session")
def skypilot(tmp_path_factory) -> Path:
    """Python of an environment of its own with SkyPilot, which pins other versions than labkit's."""
    folder = Path(os.environ.get("LABKIT_SKYPILOT") or tmp_path_factory.mktemp("skypilot"))
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        done = subprocess.run([python, "-m", "pip", "install", "-q", "skypilot"], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"SkyPilot cannot be installed here: {done.stderr.strip()[-200:]}")
    return python


@pytest.mark.slow
def test_skypilots_own_loader_takes_the_tasks(skypilot, tmp_path):
    """Set LABKIT_SKYPILOT to an environment that has it to save the installation (460 MB, about 10 minutes)."""
    names = ("v4-8", "v5e-8", "v5e-16", "v5p-8", "v6e-8")
    text = "\n===\n".join(cluster.launch(name, spot=True).files["sky.yaml"] for name in names)
    env = os.environ | {"HOME": str(tmp_path), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    done = subprocess.run(
        [skypilot, "-c", LOAD], input=text, env=env, capture_output=True, text=True, cwd=ROOT, timeout=500
    )
    assert done.returncode == 0, done.stderr[-2000:]
    *tasks, refused = done.stdout.strip().splitlines()
    assert tasks == [
        "1 GCP tpu-v4-8 tpu-ubuntu2204-base",
        "1 GCP tpu-v5litepod-8 v2-alpha-tpuv5-lite",
        "1 GCP tpu-v5litepod-16 v2-alpha-tpuv5-lite",
        "1 GCP tpu-v5p-8 v2-alpha-tpuv5",
        "1 GCP tpu-v6e-8 v2-alpha-tpuv6e",
    ]
    assert refused == "InvalidSkyPilotConfigError"
